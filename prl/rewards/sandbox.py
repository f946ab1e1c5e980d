"""Running a program that nobody trusts: the side of the parent. What shuts it in is in ``sandbox_launch.py``.

- A program that exceeds a limit is an outcome with that reason; a sandbox that cannot be set up is a SandboxError, and
  nothing was run then. Isolation is never weaker than what was asked for.
- The program's output is read up to a limit, past which it is killed. When ``run`` returns, or is cancelled, no process
  of it is left; with limits alone, none but those that took themselves out of its process group.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from prl.deadlines import awake_timeout
from prl.errors import RewardError
from prl.process import signal_group

Isolation = Literal["namespace", "limits"]
_LAUNCH = str(Path(__file__).with_name("sandbox_launch.py"))
_REAP_TIMEOUT_S = 5.0
_PROBE_TIMEOUT_S = 30.0
_CHUNK = 65536


class SandboxError(RewardError):
    """A program could not be shut in, and was not run."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one program may use."""

    cpu_s: int
    wall_s: float
    memory_mib: int
    """Address space of each of its processes."""
    disk_mib: int
    """Of its working directory, and of each file."""
    num_processes: int
    """Processes and threads at once."""
    output_kib: int
    """Of stdout and of stderr."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended."""

    outcome: Literal["exit", "signal", "exhausted_cpu", "exhausted_wall", "exhausted_output"]
    code: int
    """Exit status, or the number of the signal."""
    stdout: str
    stderr: str


async def run(program: str, given: str, limits: Limits, isolation: Isolation) -> Ran:
    """Run a Python program on ``given`` as its stdin. Raises SandboxError where it cannot be shut in."""
    reading, writing = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, reading)
        work = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        asked = json.dumps({"program": program, "input": given, "work": work}).encode()
        try:
            process = await asyncio.create_subprocess_exec(
                *_command(isolation, limits, writing),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(writing,),
                start_new_session=True,
                env={},
            )
        finally:
            os.close(writing)
        try:
            outcome, stdout, stderr = await _watch(process, asked, limits)
        finally:
            signal_group(process.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REAP_TIMEOUT_S):
                    await process.wait()
        os.set_blocking(reading, False)
        with contextlib.suppress(BlockingIOError):
            return _ended(os.read(reading, 4096).decode(), outcome, stdout, stderr)
    raise SandboxError("the sandbox did not report in time whether the program was shut in")


def describe(isolation: Isolation) -> str:
    """What this machine offers, tried out. Raises SandboxError where it is less than ``isolation``."""
    limits = Limits(cpu_s=5, wall_s=5, memory_mib=512, disk_mib=1, num_processes=8, output_kib=1)
    reading, writing = os.pipe()
    work = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    try:
        asked = json.dumps({"program": "", "input": "", "work": work.name}).encode()
        subprocess.run(  # noqa: S603 - this program on an empty one
            _command(isolation, limits, writing),
            input=asked,
            capture_output=True,
            pass_fds=(writing,),
            env={},
            timeout=_PROBE_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
        os.set_blocking(reading, False)
        report = os.read(reading, 4096).decode() if sys.platform == "linux" else "failed: this is no Linux"
    except (BlockingIOError, subprocess.TimeoutExpired):
        report = "failed without a word"
    finally:
        os.close(writing)
        os.close(reading)
        work.cleanup()
    if report.splitlines() != ["isolated", "exit 0"]:
        raise SandboxError(f"isolation = {isolation!r} is not to be had on this machine: {report.strip()}")
    if isolation == "namespace":
        return "programs run in user, network, process and mount namespaces, read-only, under limits"
    return "programs run under limits alone (isolation = 'limits'): they can reach the network, files and processes"


def _command(isolation: Isolation, limits: Limits, report: int) -> list[str]:
    said = msgspec.json.encode(limits).decode()
    return [sys.executable, "-I", "-S", _LAUNCH, str(os.getpid()), isolation, said, str(report)]


async def _watch(
    process: asyncio.subprocess.Process, asked: bytes, limits: Limits
) -> tuple[Literal["exhausted_wall", "exhausted_output"] | None, str, str]:
    """Feed it and read it, until it closes its output or exceeds a limit."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    stdout, stderr = bytearray(), bytearray()
    outcome: Literal["exhausted_wall", "exhausted_output"] | None = None
    try:
        async with awake_timeout(limits.wall_s):
            with contextlib.suppress(ConnectionError):
                process.stdin.write(asked)
                process.stdin.close()
            async with asyncio.TaskGroup() as group:
                reads = [
                    group.create_task(_read(stream, into, limits.output_kib * 1024, process.pid))
                    for stream, into in ((process.stdout, stdout), (process.stderr, stderr))
                ]
            if not all(task.result() for task in reads):
                outcome = "exhausted_output"
            await process.wait()
    except TimeoutError:
        outcome = "exhausted_wall"
    return outcome, stdout.decode(errors="replace"), stderr.decode(errors="replace")


async def _read(stream: asyncio.StreamReader, into: bytearray, limit: int, pid: int) -> bool:
    """Read to the end; False, and the program is killed, where that is more than ``limit``."""
    while chunk := await stream.read(_CHUNK):
        into += chunk[: limit - len(into)]
        if len(into) >= limit:
            signal_group(pid, signal.SIGKILL)
            return False
    return True


def _ended(report: str, outcome: str | None, stdout: str, stderr: str) -> Ran:
    lines = report.splitlines()
    if not lines or lines[0] != "isolated":
        raise SandboxError(f"a program could not be shut in: {report.strip() or stderr[-500:] or 'without a word'}")
    if outcome is not None:
        return Ran(outcome=outcome, code=0, stdout=stdout, stderr=stderr)  # type: ignore[arg-type]
    how, _, number = (lines[1] if len(lines) > 1 else "signal 9").partition(" ")
    if how not in {"exit", "signal"} or not number.isdecimal():
        how, number = "signal", "0"  # it is no report: the program did not end as one does
    if how == "signal" and int(number) in (signal.SIGXCPU, signal.SIGKILL):
        return Ran(outcome="exhausted_cpu", code=int(number), stdout=stdout, stderr=stderr)
    return Ran(outcome="exit" if how == "exit" else "signal", code=int(number), stdout=stdout, stderr=stderr)
