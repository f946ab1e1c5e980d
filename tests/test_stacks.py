"""Stacks of other processes: given by those that said they would, whatever they do, and by nobody else."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager

import pytest

from prl import stacks
from prl.process import NAME_VARIABLE

ANSWERING = """
import hashlib, time
from prl import stacks
def deep_in_c():
    print("here", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
stacks.answer_requests("part")
deep_in_c()
"""
SILENT = """
import time
print("here", flush=True)
time.sleep(1000)
"""


@contextmanager
def child(program: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun."""
    env = {**os.environ, NAME_VARIABLE: "engine-7"}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            yield process
        finally:
            process.kill()


def found(pid: int) -> stacks.ProcessStacks:
    """What is told of one process."""
    return next(process for process in stacks.processes() if process.pid == pid)


def test_a_process_busy_in_c_gives_its_stacks() -> None:
    """Whatever it computes, and as often as it is asked; it goes on unharmed."""
    with child(ANSWERING) as process:
        for _ in range(2):
            told = found(process.pid)
            assert told.name == "engine-7 part"
            assert "in deep_in_c" in told.stacks
            assert told.stacks.count("most recent call first") == 1, "of this request alone"
        assert process.poll() is None


def test_a_process_that_said_nothing_is_not_signalled() -> None:
    """The signal would kill it: it is listed by its command, without stacks, and lives."""
    with child(SILENT) as process:
        told = found(process.pid)
        assert "cannot be asked" in told.stacks
        assert "-c" in told.name
        assert process.poll() is None


def test_a_stopped_process_is_told_as_such() -> None:
    """It cannot answer: its state says why, and nobody waits for it for long."""
    with child(ANSWERING) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        told = found(process.pid)
        os.kill(process.pid, signal.SIGCONT)
    assert (told.name, told.state) == ("engine-7 part", "stopped")
    assert "no answer" in told.stacks


def test_an_id_that_was_used_again_is_not_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a process that is gone does not speak for another that has its id."""
    with child(SILENT) as process:
        other = stacks._answers() / f"{process.pid}-1.txt"
        other.write_text("somebody else\n")
        try:
            assert "cannot be asked" in found(process.pid).stacks
            assert process.poll() is None
        finally:
            other.unlink()


def test_what_ended_leaves_nothing_for_long() -> None:
    """Files of processes that are gone are removed by the next that comes."""
    with child(ANSWERING) as process:
        pid = process.pid
        assert list(stacks._answers().glob(f"{pid}-*"))
    with child(ANSWERING):
        assert not list(stacks._answers().glob(f"{pid}-*"))


async def test_tasks_are_followed_through_generators() -> None:
    """A task that waits within an asynchronous generator is shown down to where it waits."""
    reached = asyncio.Event()

    async def endless() -> AsyncIterator[int]:
        yield 1
        reached.set()
        await asyncio.get_running_loop().create_future()

    async def consume() -> None:
        async with aclosing(endless()) as numbers:
            async for _ in numbers:
                pass

    async with asyncio.TaskGroup() as group:
        task = group.create_task(consume(), name="consumer")
        await reached.wait()
        await asyncio.sleep(0)
        told = stacks.own_stacks(asyncio.get_running_loop())
        task.cancel()
    names = [place.partition(" ")[0].rpartition(".")[2] for place in stacks.places(task)]
    assert names == []
    assert "consumer\n" in told
    assert "endless" in told.partition("consumer\n")[2].partition("\n\n")[0]
    assert "thread MainThread" in told
