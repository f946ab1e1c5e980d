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
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

SLEPT_S = 1.0
"""A timer that fires so much later than it was due was slept over."""


class _Limit:
    """A limit of a wait: what is left of it, and the timer that ends it."""

    def __init__(self, wait: asyncio.Timeout, limit_s: float) -> None:
        self.wait, self._limit_s = wait, limit_s
        self._left_s = limit_s
        self._timer: asyncio.TimerHandle | None = None

    def run(self) -> None:
        """Time passes."""
        if self._timer is None and not self._has_passed:
            loop = asyncio.get_running_loop()
            due = loop.time() + self._left_s
            self._timer = loop.call_at(due, self._pass, due)

    def stand(self) -> None:
        """No time passes."""
        if self._timer is not None:
            self._left_s = self._timer.when() - asyncio.get_running_loop().time()
            self._timer.cancel()
            self._timer = None

    @property
    def _has_passed(self) -> bool:
        return self.wait.when() is not None

    def _pass(self, due: float) -> None:
        self._timer = None
        if asyncio.get_running_loop().time() - due > SLEPT_S:
            self._left_s = self._limit_s
            self.run()
        else:
            self.wait.reschedule(due)


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
    """The deadlines of many waits, of one event loop."""

    def __init__(self) -> None:
        self._limits: set[_Limit] = set()
        self._holders: set[object] = set()

    @asynccontextmanager
    async def timeout(self, limit_s: float) -> AsyncIterator[asyncio.Timeout]:
        """Bound the body as ``asyncio.timeout`` does, holds and sleep not counted."""
        async with asyncio.timeout(None) as wait:
            limit = _Limit(wait, limit_s)
            self._limits.add(limit)
            if not self._holders:
                limit.run()
            try:
                yield wait
            finally:
                self._limits.remove(limit)
                limit.stand()

    def hold(self, holder: object) -> None:
        """From now on no time passes, until everybody who holds them has let them go on."""
        self._holders.add(holder)
        for limit in self._limits:
            limit.stand()

    def go_on(self, holder: object) -> None:
        """This one holds them no more."""
        if holder not in self._holders:
            return
        self._holders.remove(holder)
        if not self._holders:
            for limit in self._limits:
                limit.run()


_nearest: ContextVar[Deadlines | None] = ContextVar("the nearest awake_timeout", default=None)
