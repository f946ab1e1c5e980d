"""One stream of an engine, held to the engine protocol: its promises are checked and its waits have an end.

Invariants:

- It ends in exactly one way: a chunk with a finish, last, or an EngineError that names the engine.
- The finish is passed on only after the engine's stream has shown that it was the last chunk.
- Versions never decrease and there are never more than ``max_tokens`` tokens.
- The wait for a chunk has a deadline, which does not run while engines take up new weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, NoReturn

from prl.deadlines import SLEPT_S
from prl.errors import EngineError, EngineStalledError
from prl.types import TokenChunk
from prl.waits import Lasting, waiting

CLOSE_TIMEOUT_S = 20.0
"""Longest wait for an engine to free a stream."""
NO_TOKEN, PAUSED = "no token", "paused, as engines take up new weights"
"""What a stream waits for."""


class Wait:
    """A stream's wait for its next chunk."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.is_first = True
        self.since = 0.0
        self.task: asyncio.Task[Any] | None = None
        self.num_cancellations = 0
        self.is_late = False


class TokenDeadlines:
    """The deadlines of every wait for a token. One timer serves them all, set for the earliest that may be due.

    A stream waits for its first token while its engine serves others; so the first is late only when the whole engine
    has given no token for the limit, and the next ones are late by themselves.

    This does what ``asyncio.timeout`` does, for a tenth of its price: every token of every stream passes here.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._waits: set[Wait] = set()
        self._moved_at: dict[str, float] = {}
        self._started_at = 0.0
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """Asked for once: the system is asked for this process's number each time."""

    def owed(self) -> str:
        """What a stream waits for now."""
        return PAUSED if self._stopped else NO_TOKEN

    def stop(self) -> None:
        """The engines pause: no wait ends."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def start(self) -> None:
        """The engines go on, and every wait has the whole limit again."""
        self._stopped = False
        self._started_at = asyncio.get_running_loop().time()
        if self._waits:  # of all of them the time runs from now, so there is no earliest to look for
            self._timer = asyncio.get_running_loop().call_at(self._started_at + self.limit_s, self._expire)

    def begin(self, wait: Wait) -> None:
        """The running task is about to wait; if it is late it will be cancelled."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(self._loop)
        if task is None:
            msg = "a stream is iterated by a task"
            raise RuntimeError(msg)
        wait.task, wait.num_cancellations = task, task.cancelling()
        wait.since = self._loop.time()
        self._waits.add(wait)
        if self._timer is None and not self._stopped:
            self._set_timer()

    def end(self, wait: Wait, *, moved: bool) -> bool:
        """The wait is over, with a chunk or not; true when that is because it was late, and for nothing else."""
        self._waits.discard(wait)
        if moved and self._loop is not None:
            self._moved_at[wait.engine] = self._loop.time()
        return wait.is_late and wait.task is not None and wait.task.uncancel() <= wait.num_cancellations

    def _due(self, wait: Wait) -> float:
        moved_at = self._moved_at.get(wait.engine, 0.0) if wait.is_first else 0.0
        return max(wait.since, moved_at, self._started_at) + self.limit_s

    def _set_timer(self) -> None:
        """Waits that begin later are due later, so the timer is never late for one."""
        if self._waits:
            earliest = min(self._due(wait) for wait in self._waits)
            self._timer = asyncio.get_running_loop().call_at(earliest, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        if self._waits and now - min(self._due(wait) for wait in self._waits) > SLEPT_S:
            self._started_at = now  # this process slept: what came meanwhile is not read yet
        for wait in [wait for wait in self._waits if self._due(wait) <= now]:
            self._waits.remove(wait)
            if wait.task is not None:
                wait.is_late = True
                wait.task.cancel()
        self._set_timer()


class GuardedStream:
    """See the module. ``close`` it, whatever happened."""

    def __init__(
        self, engine: str, chunks: AsyncGenerator[TokenChunk, None], *, max_tokens: int, deadlines: TokenDeadlines
    ) -> None:
        self._engine, self._chunks, self._deadlines = engine, chunks, deadlines
        self._wait, self._stated = Wait(engine), Lasting(engine, deadlines.owed)
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._version: int | None = None
        self._finished = self._exhausted = False

    async def next(self) -> TokenChunk | None:
        """The next chunk, or None after the one with the finish.

        Raises:
            EngineError: the engine failed the stream, broke the protocol, or gave no token in time.
        """
        if self._finished:
            return None
        chunk = await self._fetch()
        if chunk is None:
            self._refuse("ended without a finish")
        self._check(chunk)
        if chunk.finish is not None:
            if await self._fetch() is not None:
                self._refuse("went on after its finish")
            self._finished = True
        return chunk

    async def _fetch(self) -> TokenChunk | None:
        """What the engine gives next, or None at the end of its stream."""
        chunk, cancelled = None, None
        self._deadlines.begin(self._wait)
        self._stated.moved(self._wait.since)
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self._exhausted = True
        except asyncio.CancelledError as error:
            cancelled = error
        finally:
            late = self._deadlines.end(self._wait, moved=chunk is not None)
        if late:
            limit = f"{self._deadlines.limit_s:g} s (engine.token_timeout_s)"
            raise EngineStalledError(f"{self._engine} gave an open stream no token for {limit}")
        if cancelled is not None:
            raise cancelled
        return chunk

    async def close(self) -> None:
        """Make the engine free the stream; one that cannot be freed does not hold up its consumer for ever."""
        self._stated.end()
        if self._exhausted:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S) as wait:
                with waiting(self._engine, "a stream to be freed", limit_s=CLOSE_TIMEOUT_S):
                    await self._chunks.aclose()
        except TimeoutError:
            if not wait.expired():
                raise
            raise EngineError(f"{self._engine} did not free a stream within {CLOSE_TIMEOUT_S:g} s") from None

    def _check(self, chunk: TokenChunk) -> None:
        self._num_tokens += len(chunk.token_ids)
        self._wait.is_first = False
        if self._num_tokens > self._max_tokens:
            self._refuse(f"gave more than the {self._max_tokens} tokens that were allowed")
        if self._version is not None and chunk.version < self._version:
            self._refuse(f"stamped version {chunk.version} after version {self._version}")
        self._version = chunk.version

    def _refuse(self, what: str) -> NoReturn:
        raise EngineError(f"{self._engine} broke the protocol: a stream {what} (at token {self._num_tokens})")
