"""A fixed number of worker processes that judge texts and may be killed at any moment: the side of the parent.

- A question has a worker to itself. Waiting for one, free (``turns.py``) and started, is not counted against the
  caller's deadline; the answer has ``wall_s``, and the kernel stops the worker at its limit of processor time before
  that.
- A worker that exhausts a limit, or whose caller is cancelled, is killed, reaped and replaced before anyone else is
  served by it. So the number of processes returns to ``num_workers``, and one text never holds up more than one worker.
- To exhaust a limit is an outcome (``Exhausted``); a worker that ends for any other reason is a RewardError, and so is
  one that somebody stopped: its question used up nothing. One that a signal ends or stops while it starts is replaced,
  ``NUM_STARTS`` times at most; one that ends by itself would do so again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from prl.deadlines import awake_timeout, uncounted
from prl.errors import RewardError
from prl.failure import running
from prl.hidden import is_secret
from prl.process import signal_group
from prl.rewards.turns import Turns
from prl.rewards.worker import Question, Reply
from prl.wire import Channel, WireClosedError

_REAP_TIMEOUT_S = 5.0
START_TIMEOUT_S = 60.0
NUM_STARTS = 3
_LOOK_S = 2.0
_EXIT_TIMEOUT_S = 5.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker may use."""

    cpu_s: int
    """Processor time of one question, whole seconds (exceeded by at most one)."""
    wall_s: float
    """Time of one question on the clock."""
    memory_mib: int
    """Address space of one process."""


class Exhausted(msgspec.Struct, frozen=True):
    """A question used up a limit."""

    reason: str
    """``exhausted_cpu``, ``exhausted_wall`` or ``exhausted_memory``."""


class WorkerPool:
    """``num_workers`` processes that run one module (which calls ``worker.serve``)."""

    def __init__(self, module: str, num_workers: int, limits: Limits, *, arguments: Sequence[str] = ()) -> None:
        """``arguments`` are the module's own, on its command line behind those that every worker has."""
        self._workers = [_Worker(module, limits, arguments) for _ in range(num_workers)]

    async def open(self, *, wait: bool = True) -> None:
        """Start every worker and wait until all are ready. Raises RewardError with what a worker printed.

        Without ``wait`` the first questions wait instead.
        """
        self._idle = list(self._workers)
        self._turns = Turns(len(self._workers))
        for worker in self._workers:
            await worker.spawn()
        if wait:
            for worker in self._workers:
                await worker.ready()

    async def ask(self, question: Question, group: int = 0) -> Reply | Exhausted:
        """Have one question of a group judged. Raises RewardError when a worker dies or cannot be started."""
        async with self._turns.turn(group) as standing:
            worker = self._idle.pop()
            try:
                with uncounted():
                    await worker.ready()
                reply = await worker.answer(question)
                standing.num_exhausted += isinstance(reply, Exhausted)
                return reply
            finally:
                try:
                    with uncounted():
                        await worker.mend()
                finally:
                    self._idle.append(worker)

    async def close(self) -> None:
        """Kill and reap every worker. Idempotent."""
        for worker in self._workers:
            await worker.kill()

    @property
    def pids(self) -> list[int]:
        """The processes that live now."""
        return [worker.pid for worker in self._workers if worker.pid is not None]


class _Worker:
    """One place in the pool, and the process that fills it at the moment."""

    def __init__(self, module: str, limits: Limits, arguments: Sequence[str]) -> None:
        self._module, self._limits, self._arguments = module, limits, arguments
        self._process: asyncio.subprocess.Process | None = None
        self._state: Literal["none", "starting", "ready", "asked"] = "none"

    @property
    def pid(self) -> int | None:
        """The process that lives now."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def spawn(self) -> None:
        """Start the process; ``ready`` waits for it. What filled this place before is cleared away."""
        await self.kill()
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as on_failure:
            on_failure.callback(ours.close)
            output = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the process)
            on_failure.callback(output.close)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self._module, str(os.getpid())),
                *(str(self._limits.cpu_s), str(self._limits.memory_mib), *self._arguments),
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if not is_secret(name)},
            )
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            on_failure.pop_all()
        self._output = output
        self._channel: Channel[Reply] = Channel(reader, writer, Reply)
        self._state = "starting"

    async def ready(self) -> None:
        """Wait until the process can be asked, starting one where there is none."""
        for num_left in reversed(range(NUM_STARTS)):
            if self.pid is None or self._state == "none":
                await self.spawn()
            if self._state == "ready":
                return
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    await self._started()
            except (TimeoutError, ConnectionError) as error:
                if num_left > 0 and await self._was_struck():
                    await self.kill()
                    continue
                raise RewardError(f"a worker ({self._module}) did not start: {await self._end()}") from error
            self._state = "ready"

    async def _started(self) -> None:
        """Wait for its first word. Raises TimeoutError as soon as it is seen to be stopped."""
        async with running(self._watch_for_stop()):
            await self._channel.receive()

    async def _watch_for_stop(self) -> None:
        while self.pid is None or not _is_stopped(self.pid):  # noqa: ASYNC110 -- the kernel has no event for it
            await asyncio.sleep(_LOOK_S)
        raise TimeoutError

    async def _was_struck(self) -> bool:
        """Whether a signal ended it or stopped it."""
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if _is_stopped(self._process.pid) else _EXIT_TIMEOUT_S):
                await self._process.wait()
        code = self._process.returncode
        return code < 0 if code is not None else _is_stopped(self._process.pid)

    async def answer(self, question: Question) -> Reply | Exhausted:
        """Ask it; anything but a reply in time leaves it to be replaced."""
        self._state = "asked"
        try:
            async with awake_timeout(self._limits.wall_s):
                await self._channel.send(question)
                reply = await self._channel.receive()
        except TimeoutError as error:
            if self._process is not None and _is_stopped(self._process.pid):
                raise RewardError(f"a worker ({self._module}) was stopped by a signal while it judged") from error
            return Exhausted("exhausted_wall")
        except WireClosedError as error:
            end = await self._end()
            if self._process is not None and self._process.returncode == -signal.SIGXCPU:
                return Exhausted("exhausted_cpu")
            raise RewardError(f"a worker ({self._module}) died: {end}") from error
        if reply.reason == "exhausted_memory":
            return Exhausted(reply.reason)
        self._state = "ready"
        return reply

    async def mend(self) -> None:
        """Replace the process where it is gone or was left in the middle of a question."""
        if self.pid is None or self._state == "asked":
            await self.spawn()

    async def _end(self) -> str:
        """How a process that closed its socket ended, and the last of what it printed."""
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                await self._process.wait()
        self._output.seek(0)
        printed = self._output.read()[-2000:].decode(errors="replace").strip()
        return f"exit status {self._process.returncode}; it printed: {printed or 'nothing'}"

    async def kill(self) -> None:
        """Kill and reap the process, if there is one."""
        if self._process is None:
            return
        if self._process.returncode is None:
            signal_group(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):  # the kernel may hold a killed process; nobody waits for that
                async with asyncio.timeout(_REAP_TIMEOUT_S):
                    await self._process.wait()
        if self._state != "none":
            self._channel.close()
            self._output.close()
        self._process, self._state = None, "none"


def _is_stopped(pid: int) -> bool:
    """Whether a signal stopped this process (Linux; elsewhere nobody can tell)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
    except OSError:
        return False
