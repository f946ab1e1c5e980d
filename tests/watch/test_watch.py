"""``prl watch``: what it shows of a run in every state, in terminals of every size, and how one leaves."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from prl.asking import Told
from prl.cli import main
from prl.config_control import ControlConfig
from prl.control.route import Route
from prl.control.server import ControlServer
from prl.run_folder import Summary
from prl.settings import to_toml
from prl.status import Status
from prl.watch.screen import render
from prl.watch.seen import CURVES, Watched, report_of
from tests.control.test_prometheus import snapshot
from tests.factories import make_evaluation
from tests.test_panel import report
from tests.test_pipeline import simulated

ROOT = Path(__file__).parents[2]
START_S = 60.0


def add_steps(folder: Path, steps: Iterable[int], **changes: Any) -> None:
    """Lines as a run writes them."""
    with (folder / "metrics.jsonl").open("ab") as file:
        for step in steps:
            line = report(step, entropy=float("nan") if step == 2 else 1.0 / step, dropped={"timeout": 1}, **changes)
            file.write(msgspec.json.encode(line.line()) + b"\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a run of 10 steps leaves that was killed after 6."""
    (tmp_path / "config.toml").write_text(to_toml(simulated()))
    add_steps(tmp_path, range(1, 7))
    evaluation = make_evaluation(version=4, reward_mean=0.625, interval=(0.5, 0.75))
    (tmp_path / "evaluations.jsonl").write_bytes(msgspec.json.encode(evaluation.line()) + b"\n")
    events = [{"time": "2026-01-01T10:11:12.5+00:00", "level": "info", "event": "started", "logger": "pipeline"}]
    events.append({**events[0], "level": "warning", "event": "odd \x1b[2J text", "why": "be\ncause"})
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return tmp_path


def drawn(watched: Watched, width: int = 100, height: int = 40) -> str:
    """The view as text."""
    console = Console(width=width, height=height, force_terminal=False)
    with console.capture() as captured:
        console.print(render(watched.look(), width, height))
    return captured.get()


def test_a_killed_run_is_shown_from_its_folder(folder: Path) -> None:
    """With its state in words, its curves, and the last events without what a terminal takes for a command."""
    (folder / "control.json").write_text(
        json.dumps({"url": "http://127.0.0.1:1", "token": "t", "pid": 2**22 + 1, "host": os.uname().nodename})
    )
    text = drawn(Watched(folder))
    assert "killed" in text.splitlines()[0]
    assert "its process is gone" in text
    for shown in ("6/4", "0.600", "0.625 (0.500 to 0.750) at step 4", "max 1", "entropy", "6 completions"):
        assert shown in text, shown
    assert "10:11:12 warning odd  [2J text  why=be cause" in text
    assert "\x1b" not in text


def test_an_evaluation_of_an_older_run_is_shown(folder: Path) -> None:
    """One that does not say yet whether it is an accuracy: a run folder outlives the code that wrote it."""
    line = make_evaluation(version=6, reward_mean=0.875).line()
    del line["is_accuracy"]
    (folder / "evaluations.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")
    assert "0.875 (0.400 to 0.600) at step 6" in drawn(Watched(folder))


def test_a_run_that_has_ended_says_how(folder: Path) -> None:
    """Done, stopped, or failed with its error."""
    for status, error, shown in (("done", None, "the run is done"), ("failed", "Boom: it burst", "Boom: it burst")):
        (folder / "summary.json").write_bytes(msgspec.json.encode(Summary(status=status, steps=6, error=error)))
        text = drawn(Watched(folder))
        assert status in text.splitlines()[0]
        assert shown in text


def test_what_is_added_or_done_again_is_seen(folder: Path) -> None:
    """New lines come to the curves; where a resumed run cut the file, only its own count."""
    watched = Watched(folder)
    before = watched.look()
    add_steps(folder, [7])
    after = watched.look()
    assert (before.progress.step, after.progress.step, len(after.curves["entropy"])) == (6, 7, 7)
    kept = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:3]
    (folder / "new").write_bytes(b"".join(kept))
    (folder / "new").replace(folder / "metrics.jsonl")
    add_steps(folder, [4], reward_mean=0.9)
    again = watched.look()
    assert again.progress.rewards == [0.1, 0.2, 0.3, 0.9]
    assert len(again.curves["grad_norm"]) == 4


def test_a_line_is_the_report_that_it_was() -> None:
    """But for rewards' own numbers; lines of another version of prl, or of nobody, do no harm."""
    whole = report(3, dropped={"timeout": 2})
    assert report_of(whole.line()) == whole
    assert report_of({"step": 3, "new_key": 1}) is not None
    assert report_of({"step": "x"}) is None


@pytest.mark.parametrize(("width", "height"), [(40, 22), (60, 30), (200, 60)])
def test_it_fits_any_terminal(folder: Path, width: int, height: int) -> None:
    """No line is wider than the terminal, and events give way where it is low."""
    watched = Watched(folder)
    told = Told(state="running", chain="trainer waits for batch 41 <- group 1307 <- engine-1: no token for 32 s")
    seen = msgspec.structs.replace(watched.look(), status=snapshot().status, told=told)
    console = Console(width=width, height=height, force_terminal=False)
    with console.capture() as captured:
        console.print(render(seen, width, height))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert any("engine-1" in line and "lost" in line for line in lines)
    assert len(lines) <= height
    assert "no token for 32 s" in re.sub(r"[│\s]+", " ", captured.get())
    assert any("10:11:12" in line for line in lines)
    assert any("grad norm" in line for line in lines) == (height > 22)


def test_without_a_terminal_it_is_printed_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a folder that holds no run is one line."""
    assert main(["watch", str(folder)]) == 0
    assert "nobody can be asked" in capsys.readouterr().out
    assert main(["watch", str(folder / "nowhere")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


class Terminal:
    """``prl watch`` in a terminal of its own."""

    def __init__(self, folder: Path, rows: int = 40, columns: int = 100) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prl", "watch", str(folder)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "PYTHONPATH": path, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        self.pid, self._slave, self.text = self._process.pid, slave, ""

    async def shows(self, pattern: str) -> None:
        """Wait until it does."""
        async with asyncio.timeout(START_S):
            while re.search(pattern, self.text) is None:
                read = await asyncio.to_thread(os.read, self._master, 1 << 16)
                self.text += read.decode(errors="replace")

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._master, keys.encode())

    async def ended(self) -> int:
        """Its exit code; the terminal is as it was."""
        code = await asyncio.to_thread(self._read_to_its_end)
        assert termios.tcgetattr(self._slave) == self.before
        os.close(self._slave)
        os.close(self._master)
        return code

    def _read_to_its_end(self) -> int:
        """As a terminal does: a process whose last words nobody takes does not end."""
        deadline = time.monotonic() + START_S
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                pytest.fail(f"it did not leave within {START_S} s:\n{self.text}")
            if select.select([self._master], [], [], 0.1)[0]:
                self.text += os.read(self._master, 1 << 16).decode(errors="replace")
        return self._process.returncode


async def test_one_comes_and_leaves_while_the_run_goes_on(folder: Path) -> None:
    """Against a live control address: its status is shown, and q and ctrl-C leave without another request."""
    asked: list[str] = []

    async def status(request: Any) -> Status:
        asked.append(request.method)
        return msgspec.structs.replace(snapshot().status, stage="counting sheep", why="trainer <- sheep")

    server = ControlServer(ControlConfig(), folder, [Route("GET", "/status", status)])
    server.bind()
    await server.open()
    try:
        terminal = Terminal(folder)
        await terminal.shows("counting sheep")
        await terminal.shows("trainer <- sheep")
        await terminal.shows("q leaves; the run goes on")
        terminal.press("x\x1b[A")  # nothing
        terminal.press("q")
        assert await terminal.ended() == 0
        assert "\x1b[?1049l" in terminal.text or "\x1b[?1049h" in terminal.text
        assert set(asked) == {"GET"}
    finally:
        await server.close()


async def test_an_interrupt_leaves_too(folder: Path) -> None:
    """With exit code 0, from the folder of a run that nobody can ask."""
    terminal = Terminal(folder)
    await terminal.shows("q leaves")
    os.killpg(terminal.pid, signal.SIGINT)
    assert await terminal.ended() == 0
    assert set(CURVES) >= {"entropy"}
