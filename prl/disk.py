"""Writing to a disk that may be full, read-only or slow: nothing is left half written, and the run waits for it.

Invariants:

- ``append`` leaves a file as it was when it fails, so a line or a record is there whole or not at all.
- A fault that people can mend (no space, no quota, read-only, an input/output error) is said once and tried again until
  ``timeout_s`` has passed, whoever writes, a thread here or the trainer's ranks; meanwhile ``Disk.blocked`` says what
  is wrong, and ``ready`` holds up whoever would make more to write. Any other fault is raised at once.
- Who is cancelled while they wait holds up nobody any more.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from prl.errors import DiskError
from prl.log import get_logger
from prl.waits import waiting

RETRY_S = 1.0
CANCEL_GRACE_S = 10.0
"""How long a cancellation waits for a write under way: what half of it became is unknown otherwise."""
MENDABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""Faults of a disk that people can mend under a run."""
T = TypeVar("T")
log = get_logger(__name__)


def append(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Append ``data`` to a file, whole or not at all; with ``sync``, it is on the disk on return. Blocking."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if sync:
                os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


async def _in_thread(work: Callable[[], T]) -> T:
    """Do ``work`` in a thread; a cancellation is raised only after it ended, unless it takes very long to."""
    under_way = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(under_way)
    except asyncio.CancelledError:
        await asyncio.wait([under_way], timeout=CANCEL_GRACE_S)
        raise


class Disk:
    """The disk of one run folder, as its writers see it."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self._folder, self._timeout_s = folder, timeout_s
        self._blocks: dict[str, str] = {}
        """What is wrong, by what waits to be written."""
        self._free = asyncio.Event()
        self._free.set()
        self.refuses = False
        """Whether it did not take what it was given last."""

    @property
    def blocked(self) -> str | None:
        """What is wrong, while a write waits for it to be mended."""
        return next(iter(self._blocks.values()), None)

    async def ready(self) -> None:
        """Wait until no write waits."""
        with waiting("the disk", lambda: self.blocked or "", limit_s=self._timeout_s):
            await self._free.wait()

    async def write(self, what: str, work: Callable[[], T]) -> T:
        """Do ``work`` in a thread, again and again while the disk does not take it.

        Raises:
            DiskError: the disk did not take it for ``run.disk_timeout_s``.
            OSError: the fault is none that waiting can mend.
        """
        with waiting("the disk", lambda: self.blocked or f"takes {what}", limit_s=self._timeout_s + RETRY_S):
            return await self._taken(what, partial(_in_thread, work), partial(asyncio.sleep, RETRY_S))

    async def until_taken(self, what: str, attempt: Callable[[], Awaitable[T]], *, retry_s: float = RETRY_S) -> T:
        """As ``write``, for what is written by others: ``attempt`` has them do it, with waits and deadlines of its own.

        Args:
            what: is written, in words.
            attempt: leaves nothing half written where it raises OSError.
            retry_s: seconds until the next attempt; longer for what fills a disk before it fails.
        """

        async def pause() -> None:
            with waiting("the disk", self._blocks[what], limit_s=retry_s):
                await asyncio.sleep(retry_s)

        return await self._taken(what, attempt, pause)

    async def _taken(self, what: str, attempt: Callable[[], Awaitable[T]], pause: Callable[[], Awaitable[object]]) -> T:
        try:
            return await self._tried(what, attempt, pause)
        except asyncio.CancelledError:
            self._unblock(what)
            raise

    async def _tried(self, what: str, attempt: Callable[[], Awaitable[T]], pause: Callable[[], Awaitable[object]]) -> T:
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            try:
                result = await attempt()
            except OSError as error:
                if error.errno not in MENDABLE:
                    raise
                self._block(what, error)
                if clock() - began >= self._timeout_s:
                    limit = f"run.disk_timeout_s = {self._timeout_s:g} s"
                    raise DiskError(
                        f"{self._blocks[what]}; it was not mended within {limit}. "
                        "Make room and continue with --resume: no prompt is lost"
                    ) from error
                await pause()
                continue
            self.refuses = False
            if self._unblock(what):
                log.warning("the disk takes writes again: generation goes on", seconds=round(clock() - began, 1))
            return result

    def _block(self, what: str, error: OSError) -> None:
        self.refuses, is_first = True, not self._blocks
        self._blocks[what] = f"{what} cannot be written to {self._folder}: {error.strerror}"
        if is_first:
            self._free.clear()
            log.warning("the disk takes no writes: generation is paused until it does", why=self.blocked)

    def _unblock(self, what: str) -> bool:
        """Nobody waits to write this any more; whether that was the last."""
        was_last = self._blocks.pop(what, None) is not None and not self._blocks
        if was_last:
            self._free.set()
        return was_last
