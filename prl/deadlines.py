"""Deadlines that stand still together while what they wait for is being mended, or while this process is stopped.

Invariants:

- While anybody holds them none of them passes; afterwards each has as much time left as when the hold began.
- Nobody's wait becomes endless by that: whoever holds them waits under deadlines of its own, and where the mend fails
  the run ends, and these waits with it.
- Time in which this process did not run (it was stopped, or starved) is nobody's lateness: what was waited for may be
  there, unread. A deadline that passed meanwhile begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SLEPT_S = 1.0
"""A timer that fires so much later than it was due was slept over."""


@asynccontextmanager
async def awake_timeout(limit_s: float) -> AsyncIterator[asyncio.Timeout]:
    """Bound the body as ``asyncio.timeout`` does; a limit that this process slept over begins anew."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as wait:
        timers: list[asyncio.TimerHandle] = []

        def set_timer() -> None:
            due = loop.time() + limit_s
            timers[:] = [loop.call_at(due, pass_by, due)]

        def pass_by(due: float) -> None:
            if loop.time() - due > SLEPT_S:
                set_timer()
            else:
                wait.reschedule(due)

        set_timer()
        try:
            yield wait
        finally:
            timers[0].cancel()


class Deadlines:
    """The deadlines of many waits, of one event loop."""

    def __init__(self) -> None:
        self._left_s: dict[asyncio.Timeout, float] = {}
        """Seconds left to each wait: since the hold began or, while there is none, when it began last."""
        self._holders: set[object] = set()

    @asynccontextmanager
    async def timeout(self, limit_s: float) -> AsyncIterator[asyncio.Timeout]:
        """Bound the body as ``asyncio.timeout`` does, holds not counted."""
        async with asyncio.timeout(None if self._holders else limit_s) as wait:
            self._left_s[wait] = limit_s
            try:
                yield wait
            finally:
                del self._left_s[wait]

    def hold(self, holder: object) -> None:
        """From now on no time passes, until everybody who holds them has let them go on."""
        if self._holders:
            self._holders.add(holder)
            return
        self._holders.add(holder)
        now = asyncio.get_running_loop().time()
        for wait in self._left_s:
            until = wait.when()
            if until is not None and not wait.expired():
                self._left_s[wait] = until - now
                wait.reschedule(None)

    def go_on(self, holder: object) -> None:
        """This one holds them no more."""
        if holder not in self._holders:
            return
        self._holders.remove(holder)
        if self._holders:
            return
        now = asyncio.get_running_loop().time()
        for wait, left_s in self._left_s.items():
            if not wait.expired():
                wait.reschedule(now + left_s)
