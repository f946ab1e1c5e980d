"""What happened: ``events.jsonl``, a page at a time from either end.

Invariants:

- An event is known by the byte where its line begins, which stays so while the file only grows: a page that asks for
  what is new misses none and sees none twice.
- The file's bytes are not kept, only where each line is and how grave; a search reads them again.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from prl.log import LEVELS
from prl.view.files import Line, read_at

_CHUNK = 2000
_MAX_EVENT_BYTES, _MAX_READ_BYTES = 1 << 16, 1 << 22


class Page(NamedTuple):
    """Some events, oldest first."""

    events: list[dict[str, Any]]
    """Each with its ``id``."""
    previous: int | None
    """``before`` of the page with older ones; None where there are none."""
    next: int
    """``after`` of the page with newer ones."""


class _Level(msgspec.Struct):
    level: str = "info"


class Events:
    """See the module."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(_Level)
        self.clear()

    def clear(self) -> None:
        """Forget all events."""
        self.num_malformed = 0
        self._offsets, self._sizes, self._levels = array("q"), array("q"), array("h")

    def add(self, lines: list[Line]) -> None:
        """Take lines."""
        for line in lines:
            try:
                level = LEVELS.get(self._decoder.decode(line.text).level, LEVELS["info"])
            except (msgspec.MsgspecError, RecursionError):
                self.num_malformed += 1
                continue
            self._offsets.append(line.offset)
            self._sizes.append(len(line.text))
            self._levels.append(level)

    def page(self, *, after: int | None, before: int | None, limit: int, level: str, text: str) -> Page:
        """The first ``limit`` events behind ``after``, or the last ``limit`` before ``before`` (absent: the newest).

        Args:
            after: id of an event; None reads backwards.
            before: id of an event, or None.
            limit: most events.
            level: only events at least as grave.
            text: only events whose line holds this, in whatever case; empty: all.

        Raises:
            OSError: the file is gone.
        """
        offsets, levels = np.array(self._offsets), np.array(self._levels)
        kept = levels >= LEVELS.get(level, 0)
        if after is not None:
            kept &= offsets > after
        elif before is not None:
            kept &= offsets < before
        rows = np.flatnonzero(kept).tolist()
        if after is None:
            rows.reverse()
        found: list[dict[str, Any]] = []
        looked_at = 0
        for begin in range(0, len(rows), _CHUNK):
            for row, line in self._read(rows[begin : begin + _CHUNK]):
                looked_at += 1
                if not text or text.casefold() in line.decode(errors="replace").casefold():
                    found.append(self._event(row, line))
                    if len(found) == limit:
                        return self._page(found, is_backwards=after is None, is_all=looked_at == len(rows))
        return self._page(found, is_backwards=after is None, is_all=True)

    def _page(self, found: list[dict[str, Any]], *, is_backwards: bool, is_all: bool) -> Page:
        newest = self._offsets[-1] if self._offsets else -1
        if is_backwards:
            return Page(found[::-1], None if is_all or not found else found[-1]["id"], newest)
        return Page(found, None, newest if is_all or not found else found[-1]["id"])

    def _read(self, rows: list[int]) -> list[tuple[int, bytes]]:
        """The lines of neighbouring rows, in one read of what lies between them where that is not much."""
        if not rows:
            return []
        low, high = min(rows), max(rows)
        start = self._offsets[low]
        size = self._offsets[high] + self._sizes[high] - start
        if size > _MAX_READ_BYTES and len(rows) > 1:
            half = len(rows) // 2
            return self._read(rows[:half]) + self._read(rows[half:])
        data = read_at(self._path, start, size)
        found = []
        for row in rows:
            at = self._offsets[row] - start
            found.append((row, data[at : at + self._sizes[row]]))
        return found

    def _event(self, row: int, line: bytes) -> dict[str, Any]:
        if len(line) > _MAX_EVENT_BYTES:
            text = line[:_MAX_EVENT_BYTES].decode(errors="replace")
            return {"id": self._offsets[row], "event": text, "truncated": True}
        try:
            event = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError:  # the file is another one by now
            event = {"event": line.decode(errors="replace")}
        return {**event, "id": self._offsets[row]}
