"""The life of each engine in the pool: its start, the restarts after its deaths, and its end.

Invariants:

- Each seat has one life, from the run's start or from its engine's addition until it is removed or stays empty.
- After a death another engine is started in the seat, after a pause that doubles with every attempt; after
  ``engine.max_restarts`` attempts the seat stays empty.
- An engine that was removed leaves while no update is under way, and with all that it sampled in its streams.
- Starts and closes are bounded in time, and a close reaches every engine, whatever state it is in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from prl.config import EngineConfig
from prl.engines.base import Engine
from prl.engines.quorum import Quorum
from prl.engines.seat import Seat
from prl.engines.seats import ANSWER_MARGIN_S, STEADY_S, Remake, Seats
from prl.errors import EngineError, PrlError
from prl.failure import FirstFailure, failures_to
from prl.log import get_logger
from prl.waits import waiting

START_MARGIN_S = 10.0
"""An engine that keeps its own start deadline says more about why, so it is given the time to."""
CLOSE_TIMEOUT_S = 20.0
"""Longest wait for one engine to close."""
FIRST_BACK_OFF_S, LAST_BACK_OFF_S = 1.0, 60.0
"""Pauses before the starts of an engine that died: each twice as long as the one before."""

Work = Callable[[], Awaitable[None]]
log = get_logger(__name__)


class Lives:
    """See the module.

    Args:
        seats: who sits in the pool.
        quorum: whether they are enough.
        config: deadlines, and how often a death is mended.
    """

    def __init__(self, seats: Seats, quorum: Quorum, config: EngineConfig) -> None:
        self._seats, self._quorum, self._config = seats, quorum, config

    async def open(self, engine: Engine) -> None:
        """Start one engine. Raises EngineError, in time."""
        for seat in self._seats.all:
            if seat.engine is engine:
                seat.lane.hold("starts")
        try:
            limit_s = self._config.start_timeout_s + START_MARGIN_S
            async with asyncio.timeout(limit_s) as deadline:
                with waiting(engine.name, "starts", limit_s=limit_s):
                    await engine.open()
        except TimeoutError:
            if not deadline.expired():
                raise
            limit = f"{self._config.start_timeout_s:g} s (engine.start_timeout_s)"
            raise EngineError(f"{engine.name} was not ready within {limit}") from None

    async def open_first(self, engine: Engine) -> None:
        """Start one engine with the run. Raises EngineError where the run cannot do without it."""
        try:
            await self.open(engine)
        except PrlError as error:
            seats = self._seats
            seat = next(seat for seat in seats.all if seat.engine is engine)
            others = [seat.why for seat in seats.all if seat.state == "lost"]
            left = len(seats.all) - len(others) - 1
            if seats.remake is not None and left >= min(self._config.min_engines, len(seats.all)):
                seats.give_up(seat, str(error))
            elif others:
                raise EngineError("; ".join([*others, str(error)])) from error
            else:
                raise

    async def close(self) -> None:
        """Close every engine, side by side, within ``CLOSE_TIMEOUT_S``. What does not close is logged, not raised."""
        async with asyncio.TaskGroup() as group:
            for seat in self._seats.all:
                seat.lane.end()
                group.create_task(_close(seat.engine))

    async def failed(self) -> str:
        """Start what dies or is added, end what is removed; return why that is not enough any more.

        What is returned has the last log lines of what was lost.
        """
        failure, why, tasks = FirstFailure(), "", list[asyncio.Task[None]]()

        async def guarded(work: Work) -> None:
            with failures_to(failure.set, "keeping the engines"):
                await work()

        with failure.interrupts():
            async with asyncio.TaskGroup() as group:

                def start(work: Work) -> asyncio.Task[None]:
                    tasks.append(group.create_task(guarded(work)))
                    return tasks[-1]

                start(partial(self._manage, start))
                why = await self._quorum.too_few()
                for task in tasks:
                    task.cancel()
        return why

    async def _manage(self, start: Callable[[Work], asyncio.Task[None]]) -> None:
        """Keep every engine, whoever comes, until it is removed."""
        seats = self._seats
        lives: dict[int, asyncio.Task[None]] = {}
        leaving: set[int] = set()
        while True:
            for seat in seats.all:
                if seat.index not in lives:
                    lives[seat.index] = start(partial(self._keep, seat))
                if seat.is_leaving and seat.index not in leaving:
                    leaving.add(seat.index)
                    start(partial(self._see_off, seat, lives[seat.index]))
            await seats.changed.wait()

    async def _keep(self, seat: Seat) -> None:
        """Give up the engine of a seat when it dies, and start another there."""
        seats = self._seats
        if seat.state == "starting":
            if seats.remake is None or not await self._start(seat, seats.remake):
                return
            seats.is_ready(seat)
        while True:
            seats.give_up(seat, await _end_of(seat))
            if seats.remake is None:
                return
            with waiting(seat.engine.name, "is started again") as seats.restarts[seat.index]:
                is_open = await self._start_again(seat, seats.remake, seat.why)
            seats.restarts[seat.index] = None
            if not is_open:
                return
            seats.num_restarts += 1
            seat.num_restarts += 1
            seats.is_ready(seat)

    async def _start(self, seat: Seat, remake: Remake) -> bool:
        """Until one is open that was added; False where that was tried too often."""
        try:
            await self.open(seat.engine)
        except PrlError as error:
            seat.why = str(error)
            return await self._start_again(seat, remake, seat.why)
        return True

    async def _start_again(self, seat: Seat, remake: Remake, why: str) -> bool:
        """Until one is open; False where that was tried too often."""
        while True:
            name, attempt = seat.engine.name, seat.num_attempts + 1
            if attempt > self._config.max_restarts:
                self._leave_empty(seat, why)
                await _close(seat.engine)
                return False
            pause_s = min(FIRST_BACK_OFF_S * 2**seat.num_attempts, LAST_BACK_OFF_S)
            what = "an engine is lost: it is started again"
            if seat.state == "starting":
                what = "an engine that was added did not start: it is started again"
            log.warning(what, engine=name, attempt=attempt, in_s=pause_s, why=why)
            await _close(seat.engine)
            with waiting(name, f"pauses before attempt {attempt}", limit_s=pause_s):
                await asyncio.sleep(pause_s)
            seat.num_attempts = attempt
            seat.replace(remake(seat.index, seat.place))
            try:
                await self.open(seat.engine)
            except PrlError as error:
                why = str(error)
                continue
            return True

    def _leave_empty(self, seat: Seat, why: str) -> None:
        """Nobody is started here any more; the others go on while they are enough."""
        seat.stays_empty = True
        log.warning(
            "an engine is not started again: none of its last restarts served for long (engine.max_restarts)",
            steady_s=STEADY_S,
            engine=seat.engine.name,
            max_restarts=self._config.max_restarts,
            why=why,
        )
        self._seats.tell()

    async def _see_off(self, seat: Seat, life: asyncio.Task[None]) -> None:
        """End an engine that was removed. What it has sampled is with its streams before they hear of its end."""
        life.cancel()
        await asyncio.wait([life])
        self._seats.restarts[seat.index] = None
        async with self._seats.transfers:
            if seat.is_there:
                self._seats.apart = True
                with suppress(TimeoutError, EngineError):
                    async with asyncio.timeout(ANSWER_MARGIN_S):
                        await seat.engine.pause()
            self._seats.leaves(seat)
        await _close(seat.engine)
        self._seats.has_left(seat)


async def _close(engine: Engine) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            with waiting(engine.name, "closes", limit_s=CLOSE_TIMEOUT_S):
                await engine.close()
    except Exception as error:  # noqa: BLE001 - raised, it would stand in for the error that ends the run
        log.warning("an engine did not close", engine=engine.name, error=repr(error))


async def _end_of(seat: Seat) -> str:
    """Wait until the engine of a seat is dead, or given up; why."""
    async with asyncio.TaskGroup() as group:
        died, given_up = group.create_task(seat.engine.failed()), group.create_task(seat.given_up.wait())
        await asyncio.wait([died, given_up], return_when=asyncio.FIRST_COMPLETED)
        why = died.result() if died.done() else seat.why
        died.cancel()
        given_up.cancel()
    return why
