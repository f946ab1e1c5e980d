"""What a run that goes on says of itself, to one who looks at its folder."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prl.check_control import CONTROL_TOKEN
from prl.config_control import ControlConfig
from prl.control import address as control_file
from prl.control.route import Route
from prl.control.server import ControlServer
from prl.view import live
from prl.view.live import Live, Statuses


async def test_a_run_is_asked_once_however_many_look(tmp_path: Path) -> None:
    """At its control address, with the token of its folder; nobody there is no status."""
    asked = 0

    async def status(_: Any) -> Any:
        nonlocal asked
        asked += 1
        return {"stage": "training"}

    server = ControlServer(ControlConfig(), tmp_path, [Route("GET", "/status", status)])
    server.bind()
    await server.open()
    statuses = Statuses()
    for _ in range(3):
        assert await asyncio.to_thread(statuses.of, tmp_path) == {"stage": "training"}
    await server.close()
    assert asked == 1
    assert await asyncio.to_thread(Statuses().of, tmp_path) is None


@pytest.mark.parametrize("url", ["http://192.0.2.1:80", "http://example.invalid:80", "http://[", "file:///etc/passwd"])
def test_a_folder_from_elsewhere_sends_nobody_our_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """What it calls the run's address is asked only if it is on this machine."""
    asked: list[Any] = []
    monkeypatch.setenv(CONTROL_TOKEN, "0123456789abcdef")
    monkeypatch.setattr(live, "Client", lambda *given, **_: asked.append(given))
    here = control_file.of_this_process(url, None)
    with monkeypatch.context() as another:
        another.setattr(live.os, "geteuid", lambda: os.getuid() + 1)
        control_file.write(tmp_path, msgspec.structs.replace(here, url="http://127.0.0.1:1"))
        assert Statuses().of(tmp_path) is None
    for told in (here, msgspec.structs.replace(here, host="elsewhere", url="http://127.0.0.1:1")):
        control_file.write(tmp_path, told)
        assert Statuses().of(tmp_path) is None
    assert asked == []


def test_who_was_away_for_long_hears_of_the_newest(tmp_path: Path) -> None:
    """Of the last step, and of so many events; a file that was cut meanwhile is told of from there on."""
    control_file.write(tmp_path, control_file.of_this_process("http://127.0.0.1:1", "t"))
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in range(1, 6)))
    (tmp_path / "events.jsonl").write_text("".join(f'{{"event": "{number}"}}\n' for number in range(500)))
    told = Live(tmp_path, "0.0.0", lambda: {"stage": "training"})
    news = told.news()
    kinds = [message.event for message in news]
    assert (kinds.count("step"), kinds.count("event"), kinds.count("status")) == (1, live.MAX_EVENTS, 1)
    assert (news[0].data, news[1].data["event"]) == ({"step": 5, "at": None}, "400")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert told.news() == []
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2}\n')
    assert [message.data["step"] for message in told.news()] == [2]
