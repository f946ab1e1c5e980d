"""Deadlines that stand still together while what they wait for is being mended, or while this process is stopped.

Invariants:

- While anybody holds them none of them passes; afterwards each has as much time left as when the hold began.
- Nobody's wait becomes endless by that: whoever holds them waits under deadlines of its own, and where the mend fails
  the run ends, and these waits with it.
- A wait that is part of a call and no lateness of it (for a limit of rate) is ``uncounted``.
- Time in which this process did not run (it was stopped, or starved) is nobody's lateness: what was waited for may be
  there, unread. A deadline that passed meanwhile begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from types import TracebackType

SLEPT_S = 1.0
"""A timer that fires so much later than it was due was slept over."""


class _Limit:
    """A limit of a wait, and what is left of it. A class and no generator: every stream passes here."""

    def __init__(self, deadlines: Deadlines, limit_s: float) -> None:
        self._deadlines, self._limit_s = deadlines, limit_s
        self._wait = asyncio.timeout(None)
        self._left_s = limit_s
        self.due: float | None = None
        """When it passes; None while no time does, and once it has passed."""

    async def __aenter__(self) -> asyncio.Timeout:
        await self._wait.__aenter__()
        self._deadlines.begin(self)
        return self._wait

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deadlines.end(self)
        await self._wait.__aexit__(kind, error, trace)

    def run(self, now: float) -> None:
        """Time passes."""
        if self.due is None and self._wait.when() is None:
            self.due = now + self._left_s

    def stand(self, now: float) -> None:
        """No time passes."""
        if self.due is not None:
            self._left_s, self.due = self.due - now, None

    def expire(self, now: float) -> None:
        """It passes, unless this process slept over it."""
        if self.due is None or self.due > now:
            return
        if now - self.due > SLEPT_S:
            self.due = now + self._limit_s
        else:
            self._wait.reschedule(self.due)
            self.due = None


@asynccontextmanager
async def awake_timeout(limit_s: float) -> AsyncIterator[asyncio.Timeout]:
    """Bound the body as ``asyncio.timeout`` does; a limit that this process slept over begins anew."""
    deadlines = Deadlines()
    token = _nearest.set(deadlines)
    try:
        async with deadlines.timeout(limit_s) as wait:
            yield wait
    finally:
        _nearest.reset(token)


@contextmanager
def uncounted() -> Iterator[None]:
    """The nearest ``awake_timeout`` around the body stands still meanwhile; the body ends by itself."""
    deadlines, holder = _nearest.get(), object()
    if deadlines is not None:
        deadlines.hold(holder)
    try:
        yield
    finally:
        if deadlines is not None:
            deadlines.go_on(holder)


class Deadlines:
    """The deadlines of many waits, of one event loop. One timer serves them all, set for one that may be the next."""

    def __init__(self) -> None:
        self._limits: dict[_Limit, None] = {}
        self._holders: set[object] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        """When it fires. Uvloop's handle of what is due at once cannot be asked."""

    def timeout(self, limit_s: float) -> AbstractAsyncContextManager[asyncio.Timeout]:
        """Bound the body as ``asyncio.timeout`` does, holds and sleep not counted."""
        return _Limit(self, limit_s)

    def begin(self, limit: _Limit) -> None:
        """A wait begins under it."""
        self._limits[limit] = None
        if not self._holders:
            loop = asyncio.get_running_loop()
            limit.run(loop.time())
            if limit.due is not None and (self._timer is None or limit.due < self._timer_due):
                self._set_timer(loop, limit.due)

    def end(self, limit: _Limit) -> None:
        """The wait is over."""
        del self._limits[limit]
        if not self._limits:
            self._set_timer(asyncio.get_running_loop(), None)

    def hold(self, holder: object) -> None:
        """From now on no time passes, until everybody who holds them has let them go on."""
        self._holders.add(holder)
        loop = asyncio.get_running_loop()
        for limit in self._limits:
            limit.stand(loop.time())
        self._set_timer(loop, None)

    def go_on(self, holder: object) -> None:
        """This one holds them no more."""
        if holder not in self._holders:
            return
        self._holders.remove(holder)
        if not self._holders:
            loop = asyncio.get_running_loop()
            for limit in self._limits:
                limit.run(loop.time())
            self._set_next_timer(loop)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        for limit in self._limits:
            limit.expire(loop.time())
        self._set_next_timer(loop)

    def _set_next_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._set_timer(loop, min((limit.due for limit in self._limits if limit.due is not None), default=None))

    def _set_timer(self, loop: asyncio.AbstractEventLoop, due: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if due is not None:
            self._timer, self._timer_due = loop.call_at(due, self._expire), due


_nearest: ContextVar[Deadlines | None] = ContextVar("the nearest awake_timeout", default=None)
