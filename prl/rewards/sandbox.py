"""Running a program that nobody trusts: the side of the parent. What shuts it in is in ``sandbox_launch.py``.

- A program that exceeds a limit is an outcome with that reason; a sandbox that cannot be set up is a SandboxError, and
  nothing was run then. Isolation is never weaker than what was asked for.
- The program's output is read up to a limit, past which it is killed. When ``run`` returns, or is cancelled, no process
  of it is left; with limits alone, unless it killed the one that sees to that.
- A program that was killed, and not for its use of a limit, was so by itself or by a machine without memory: it is
  ``killed``, which is told apart from every limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Literal

import msgspec

from prl.deadlines import awake_timeout
from prl.errors import PluginError, RewardError
from prl.process import signal_group

Isolation = Literal["namespace", "limits"]
_LAUNCH = str(Path(__file__).with_name("sandbox_launch.py"))
_REAP_TIMEOUT_S = 5.0
_PROBE_TIMEOUT_S = 30.0
_CHUNK = 65536
_END = re.compile(r"(exit|signal) (\d+) (\d+\.?\d*)")


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

    outcome: Literal["exit", "signal", "killed", "exhausted_cpu", "exhausted_wall", "exhausted_output"]
    code: int
    """Exit status, or the number of the signal."""
    stdout: str
    stderr: str


async def run(program: str, given: str, limits: Limits, isolation: Isolation) -> Ran:
    """Run a Python program on ``given`` as its stdin. Raises SandboxError where it cannot be shut in."""
    reading, writing = os.pipe()
    with contextlib.ExitStack() as stack:
        report = stack.enter_context(os.fdopen(reading, "rb", 0))
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
            said = await _put_away(process, report)
        if said is not None:
            return _ended(said, outcome, stdout, stderr, limits)
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
    if [line.rpartition(" ")[0] or line for line in report.splitlines()] != ["isolated", "exit 0"]:
        raise SandboxError(f"isolation = {isolation!r} is not to be had on this machine: {report.strip()}")
    if isolation == "namespace":
        return "programs run in user, network, process and mount namespaces, read-only, under limits"
    return "programs run under limits alone (isolation = 'limits'): they can reach the network, files and processes"


def offered(isolation: Isolation, whose: str) -> str:
    """The same for ``whose`` programs, when it is made: a PluginError that says what there is to do."""
    try:
        return describe(isolation)
    except SandboxError as error:
        hint = "; isolation = 'limits' does without, for programs that you trust" if isolation != "limits" else ""
        raise PluginError(f"{whose}: {error}{hint}") from error


def how_stopped(ran: Ran, limits: Limits) -> str | None:
    """What stopped a program that did not end by itself, in words; None where it did, well or not."""
    match ran.outcome:
        case "exhausted_cpu":
            return f"it was stopped after {limits.cpu_s} s of CPU time (cpu_s)"
        case "exhausted_wall":
            return f"it was stopped after {limits.wall_s:g} s (wall_s)"
        case "exhausted_output":
            return f"it was stopped after {limits.output_kib} KiB of output (output_kib)"
        case "killed":
            return "it was killed, by itself or since the machine had no memory left"
    return None


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
            else:
                await process.wait()
    except TimeoutError:
        outcome = "exhausted_wall"
    return outcome, stdout.decode(errors="replace"), stderr.decode(errors="replace")


async def _put_away(process: asyncio.subprocess.Process, report: IO[bytes]) -> str | None:
    """Kill what is left and wait until nothing is: what was reported, or None where that took too long."""
    signal_group(process.pid, signal.SIGKILL)
    # Output past a limit is not read to its end, and asyncio waits for that end. Closing the whole transport would ask
    # for the exit status beside the loop, which then has lost it.
    transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]  # noqa: SLF001
    for stream in (0, 1, 2):
        if (end := transport.get_pipe_transport(stream)) is not None:
            end.close()
    reader = asyncio.StreamReader()
    # The loop's own: it closes what it is given, and later than here, when the number may be another file's.
    own = os.fdopen(os.dup(report.fileno()), "rb", 0)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), own)
    try:
        async with asyncio.timeout(_REAP_TIMEOUT_S):
            await process.wait()
            return (await reader.read()).decode()
    except TimeoutError:
        return None
    finally:
        pipe.close()


async def _read(stream: asyncio.StreamReader, into: bytearray, limit: int, pid: int) -> bool:
    """Read to the end; False, and the program is killed, where that is more than ``limit``."""
    while chunk := await stream.read(_CHUNK):
        into += chunk[: limit - len(into)]
        if len(into) >= limit:
            signal_group(pid, signal.SIGKILL)
            return False
    return True


def _ended(report: str, outcome: str | None, stdout: str, stderr: str, limits: Limits) -> Ran:
    lines = report.splitlines()
    if not lines or lines[0] != "isolated":
        raise SandboxError(f"a program could not be shut in: {report.strip() or stderr[-500:] or 'without a word'}")
    if outcome is not None:
        return Ran(outcome=outcome, code=0, stdout=stdout, stderr=stderr)  # type: ignore[arg-type]
    found = _END.fullmatch(lines[1] if len(lines) > 1 else "signal 9 0")
    how, number, used_s = found.groups() if found else ("signal", "0", "0")  # it did not end as a program does
    code = int(number)
    if how == "signal" and (code == signal.SIGXCPU or (code == signal.SIGKILL and float(used_s) >= limits.cpu_s)):
        how = "exhausted_cpu"
    elif how == "signal" and code == signal.SIGKILL:
        how = "killed"
    return Ran(outcome=how, code=code, stdout=stdout, stderr=stderr)  # type: ignore[arg-type]
