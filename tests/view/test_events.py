"""Events of a run, a page at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from prl.view import events as events_module
from prl.view.events import Events
from prl.view.files import Follower


def followed(path: Path, *rows: Any) -> Events:
    """Events of a file with these rows; bytes are a line as it is."""
    file = path / "events.jsonl"
    file.write_bytes(b"".join((row if isinstance(row, bytes) else msgspec.json.encode(row)) + b"\n" for row in rows))
    found = Events(file)
    Follower(file, found).advance(1)
    return found


def page(events: Events, **wanted: Any) -> tuple[list[str], int | None]:
    """The sentences of a page, and where the next begins."""
    asked = {"is_newest_first": False, "after": None, "limit": 3, "level": "", "text": "", **wanted}
    found = events.page(**asked)
    return [event["event"] for event in found.events], found.next


@pytest.mark.parametrize(("is_newest_first", "order"), [(False, "abcdefg"), (True, "gfedcba")])
def test_every_event_is_on_one_page(tmp_path: Path, is_newest_first: bool, order: str) -> None:
    """From either end, ``next`` leads to the page behind, and the last has none."""
    events = followed(tmp_path, *({"level": "info", "event": letter} for letter in "abcdefg"))
    found, after = [], None
    for count in (3, 3, 1):
        told, after = page(events, after=after, is_newest_first=is_newest_first)
        assert len(told) == count
        found += told
    assert ("".join(found), after) == (order, None)


def test_events_are_found_by_how_grave_they_are_and_by_their_words(tmp_path: Path) -> None:
    """A level asks for those at least as grave; words are found in any part of the line, in whatever case."""
    rows = [
        {"level": "info", "event": "pushed", "engine": "E1"},
        {"level": "warning", "event": "moved"},
        {"level": "error", "event": "died", "engine": "e1"},
        {"level": "odd", "event": "odd"},
    ]
    events = followed(tmp_path, *rows, b"no event", b"[1]")
    assert events.num_malformed == 2
    assert page(events, level="warning") == (["moved", "died"], None)
    assert page(events, text="E1") == (["pushed", "died"], None)
    assert page(events, text="none of it") == ([], None)


def test_pages_of_far_apart_events_read_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two errors with a lot between them, and an event that is too long to be sent whole."""
    monkeypatch.setattr(events_module, "_MAX_READ_BYTES", 200)
    monkeypatch.setattr(events_module, "_MAX_EVENT_BYTES", 100)
    errors = [{"level": "error", "event": f"e{index}"} for index in range(2)]
    between = [{"level": "info", "event": "between"}] * 50
    events = followed(tmp_path, errors[0], *between, errors[1], {"level": "error", "event": "x" * 500})
    found = events.page(is_newest_first=False, after=None, limit=10, level="error", text="")
    assert [event["event"][:2] for event in found.events] == ["e0", "e1", '{"']
    assert found.events[-1]["truncated"] is True
