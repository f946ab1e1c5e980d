"""The page beside a run: nothing until somebody knocks, and nothing that matters to the run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import urllib.request
from pathlib import Path

import psutil
import pytest

import prl
from prl.config_view import ViewConfig
from prl.errors import ConfigError
from prl.failure import running
from prl.view import beside
from prl.view.beside import FILE, Page, Place
from tests.view import recorded

DEADLINE_S = 30


def runs_at(url: str) -> list[str]:
    """Names of the runs that are served there."""
    with urllib.request.urlopen(f"{url}api/runs", timeout=DEADLINE_S) as answer:
        return [line["run"] for line in json.load(answer)["runs"]]


def children() -> list[psutil.Process]:
    """Processes of this one that make a page."""
    return [child for child in psutil.Process().children() if "prl.view.child" in child.cmdline()]


async def test_the_first_who_knocks_starts_it_and_so_does_the_next_when_it_has_died(tmp_path: Path) -> None:
    """At the same address; it gives way to others; where it is stands in the folder as long as the run goes on."""
    run = tmp_path / "run"
    recorded.make(run, num_steps=2, num_samples=8)
    page = Page(ViewConfig(), run)
    page.bind()
    assert page.url is not None
    async with asyncio.timeout(2 * DEADLINE_S), running(page.serve()):
        assert children() == []
        assert await asyncio.to_thread(runs_at, page.url) == ["run"]
        (first,) = children()
        assert first.nice() > psutil.Process().nice()
        assert json.loads((run / FILE).read_text())["url"] == page.url
        first.kill()
        assert await asyncio.to_thread(runs_at, page.url) == ["run"]
        (second,) = children()
        assert second != first
    assert (children(), page.url, (run / FILE).exists()) == ([], None, False)


async def test_it_dies_with_a_run_that_is_killed(tmp_path: Path) -> None:
    """Even by SIGKILL: whoever looks sees the connection end."""
    run = tmp_path / "run"
    recorded.make(run, num_steps=2, num_samples=8, ended=False)
    script = (
        "import asyncio, sys; from pathlib import Path; from prl.config_view import ViewConfig\n"
        "from prl.view.beside import Page\n"
        f"page = Page(ViewConfig(), Path({str(run)!r})); page.bind(); print(page.url, flush=True)\n"
        "asyncio.run(page.serve())\n"
    )
    root = str(Path(prl.__file__).parent.parent)
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}
    )
    assert parent.stdout is not None
    (run / "lock").write_text(f"{parent.pid}\n")
    async with asyncio.timeout(2 * DEADLINE_S):
        port = int((await parent.stdout.readline()).decode().rstrip("/\n").rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /api/run/stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
        await reader.read()
        writer.close()


async def test_a_process_that_ends_again_and_again_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a few starts nothing listens any more; whoever serves it, the run, is told nothing but a warning."""
    monkeypatch.setattr(beside.sys, "executable", "/bin/false")
    page = Page(ViewConfig(), tmp_path)
    page.bind()
    assert page.url is not None
    port = int(page.url.rstrip("/").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)):
        async with asyncio.timeout(DEADLINE_S):
            await page.serve()
    assert page.url is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_a_run_that_ends_at_once_leaves_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was being written when it ended is waited for, and taken away."""
    began, may_write, written, write = asyncio.Event(), threading.Event(), threading.Event(), beside._write
    loop = asyncio.get_running_loop()

    def slowly(run_dir: Path, place: Place) -> None:
        loop.call_soon_threadsafe(began.set)
        may_write.wait(DEADLINE_S)
        write(run_dir, place)
        written.set()

    monkeypatch.setattr(beside, "_write", slowly)
    page = Page(ViewConfig(), tmp_path)
    page.bind()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(page.serve())
        await began.wait()
        serving.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        may_write.set()
    assert await asyncio.to_thread(written.wait, DEADLINE_S)
    assert not (tmp_path / FILE).exists()


def test_an_address_that_was_chosen_must_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is taken is one line before anything starts; for want of the default no run ends."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        page = Page(ViewConfig(port=taken.getsockname()[1]), tmp_path)
        with pytest.raises(ConfigError, match=r"view\.address = '127\.0\.0\.1', view\.port = \d+: .* in use"):
            page.bind()

    def nothing_free(*_: object) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(beside, "listener", nothing_free)
    page = Page(ViewConfig(), tmp_path)
    page.bind()
    assert page.url is None
    off = Page(ViewConfig(enabled=False), tmp_path)
    off.bind()
    assert off.url is None
