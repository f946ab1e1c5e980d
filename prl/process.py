"""Child processes that cannot outlive their parent and cannot die unheard.

- Every child leads a process group of its own, so that a signal reaches its children too.
- Every child asks the kernel for SIGKILL at its parent's death (Linux), and watches its parent's id besides (anywhere).
- What a child prints goes to a log file; its last lines stand in the error that reports its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_WATCH_INTERVAL_S = 0.5
NAME_VARIABLE = "PRL_PROCESS"
"""Environment variable with what a child is called."""
_REAP_TIMEOUT_S = 5.0
"""Longest wait for a killed process to be gone: the kernel may hold it, in a device driver say, for ever."""


def die_with_parent(parent: int | None = None) -> None:
    """Make this process end when its parent does, even after SIGKILL. Call it first thing in a child.

    The kernel's signal covers a stopped or busy process; it is tied to the *thread* that started the child, so that
    thread must live as long as the child should. The watch of the parent's id covers systems without the signal.
    """
    parent = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_watch_parent, args=(parent,), name="prl-parent-watch", daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_INTERVAL_S)
    os._exit(1)


def tail(path: Path, num_lines: int = 20) -> str:
    """The last lines of a log file, or a word that there are none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 64 * 1024))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return f"(no log at {path})"
    return "\n".join(lines[-num_lines:]) or f"({path} is empty)"


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the group that ``pid`` leads, if any of it is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def free_port(host: str) -> int:
    """A TCP port of ``host`` that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


class Child:
    """One child process with its group, its log and its end."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self.log, self._process = name, log, process

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        pass_fds: Collection[int] = (),
    ) -> Child:
        """Start ``command`` (no shell) with stdout and stderr appended to ``log``, and ``pass_fds`` open in it.

        It runs through this file, which ties it to this process and then becomes it. As a script, isolated from the
        environment's Python settings, it starts without importing prl.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", __file__, str(os.getpid()), *command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, NAME_VARIABLE: name, **(env or {})},
                start_new_session=True,
                pass_fds=pass_fds,
            )
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    async def ended(self) -> str:
        """Wait for the end and say it in one paragraph: name, exit, last log lines."""
        code = await self._process.wait()
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with {code}"
        return f"{self.name} (pid {self.pid}) {how}; last lines of {self.log}:\n{tail(self.log)}"

    async def stop(self, grace_s: float = 5.0) -> None:
        """SIGTERM to the group, SIGKILL after ``grace_s`` or when cancelled; returns when the process is reaped."""
        try:
            if self.returncode is None:
                signal_group(self.pid, signal.SIGTERM)
                await self._gone_within(grace_s)
        finally:
            signal_group(self.pid, signal.SIGKILL)
        await self._gone_within(_REAP_TIMEOUT_S)

    async def _gone_within(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._process.wait()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _become(argv: list[str]) -> None:
    """``process.py PARENT COMMAND...``: tie this process to PARENT, then become COMMAND."""
    parent, command = int(argv[0]), argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    _become(sys.argv[1:])
