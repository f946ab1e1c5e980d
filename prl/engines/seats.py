"""Who sits in the pool: engines that start, die, come back with the weights of the others, are added, and removed.

Invariants:

- An engine that died, or was given up, is *lost* at once. Another is started in its seat, after a pause that doubles
  with every attempt; it is *ready* when it is open, *joined* in a weight group, and *serving* once it has loaded.
- Attempts are counted until an engine has served for ``STEADY_S``: one that opens and dies in every update is an
  attempt like one that does not open. After ``engine.max_restarts`` of them the seat stays empty.
- An engine that is *added* goes the same way from its start on, and counts (``tally.py``, ``engine.min_engines``) from
  the moment it serves. One that is *removed* gets no new stream from then on; it leaves while no update is under way,
  out of the weight group and with all that it sampled in its streams, which go on elsewhere behind their tokens.
- The totals of what was generated, and of the time the engines were busy, never fall, whoever comes or goes.
- Only serving engines get streams. Pauses, loads and scores are for those that serve or have joined.
- Fewer than ``engine.min_engines`` that serve for ``engine.recovery_timeout_s`` end the run; without ``remake`` the
  first death does. No time passes while the trainer is started again (``deadlines``), without which nobody can join.
- Starts and closes are bounded in time, and a close reaches every engine, whatever state it is in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count

from prl.config import EngineConfig
from prl.deadlines import Deadlines
from prl.engines.base import Engine
from prl.engines.seat import Place, Seat
from prl.engines.tally import Tally
from prl.errors import EngineDeadError, EngineError, NotFoundError, PrlError, RefusedError
from prl.failure import FirstFailure, failures_to
from prl.log import get_logger
from prl.timeline import Timeline
from prl.waits import Wait, waiting

START_MARGIN_S = 10.0
"""An engine that keeps its own start deadline says more about why, so it is given the time to."""
CLOSE_TIMEOUT_S = 20.0
"""Longest wait for one engine to close."""
ANSWER_MARGIN_S = 5.0
"""After a failed update an engine may be stuck in the weight group until the group's timeout, though it is healthy; it
is given up when it has not answered for so much longer."""
FIRST_BACK_OFF_S, LAST_BACK_OFF_S = 1.0, 60.0
"""Pauses before the starts of an engine that died: each twice as long as the one before."""
STEADY_S = 600.0
"""An engine that served for so long before it died was no failed attempt."""

Remake = Callable[[int, Place], Engine]
log = get_logger(__name__)


class Seats:
    """See the module.

    Args:
        engines: at least one, not opened.
        config: deadlines, and how many must serve.
        remake: makes another engine, not opened, for a seat's index and its place; None: the first death ends the run,
            and none can be added.
        places: where each engine computes; absent: each on its share of this machine.
        timeline: shows what the engines do.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        config: EngineConfig,
        remake: Remake | None,
        places: Sequence[Place] | None = None,
        *,
        timeline: Timeline | None = None,
    ) -> None:
        self._timeline = timeline or Timeline()
        where = range(len(engines)) if places is None else places
        pairs = enumerate(zip(engines, where, strict=True))
        self.all = [Seat(index, engine, place=place, timeline=self._timeline) for index, (engine, place) in pairs]
        self.remake = remake
        self.tally = Tally(lambda: [seat.statistics() for seat in self.all if seat.counts])
        """What all engines did that ever counted."""
        self.transfers = asyncio.Lock()
        """Held while weights are pushed: the engines in the weight group stay who they are meanwhile."""
        self.apart = True
        """Whether the weight group is not that of the engines that are there."""
        self.num_restarts = 0
        """Engines that were started in place of one that was lost."""
        self.answer_timeout_s = ANSWER_MARGIN_S
        """After a failed update, how long an engine may take to answer before it is given up."""
        self.restarts: dict[int, Wait | None] = {}
        """Restarts under way, by seat."""
        self.changed = asyncio.Event()
        """Set, and replaced, when an engine is lost, is ready, has loaded, is added or removed."""
        self._indices = count(len(self.all))
        self.deadlines = Deadlines()
        """Of the waits for engines that come back: who is ready cannot join while the trainer is started again."""
        self._num_lost = self._num_lost_told = 0
        self._config = config

    def there(self) -> list[Seat]:
        """The engines that are alive, in the weight group or not."""
        return [seat for seat in self.all if seat.is_there and not seat.engine.statistics().dead]

    def members(self) -> list[Seat]:
        """The engines that pauses, loads and scores are for."""
        return [seat for seat in self.all if seat.state in {"serving", "joined"}]

    def serving(self) -> list[int]:
        """Where streams may be placed."""
        return [seat.index for seat in self.all if seat.serves]

    def known_to_serve(self) -> list[int]:
        """The same as far as was told: one may have died since. Every stream would pay for asking all engines."""
        return [seat.index for seat in self.all if seat.state == "serving" and not seat.is_leaving]

    def at(self, index: int) -> Seat:
        """The seat with this index."""
        return next(seat for seat in self.all if seat.index == index)

    def find(self, name: str) -> Seat:
        """The seat of the engine with this name, or this index as a text. Raises NotFoundError."""
        for seat in self.all:
            if name in {seat.engine.name, str(seat.index)}:
                return seat
        raise NotFoundError(f"there is no engine {name!r}: there are {', '.join(s.engine.name for s in self.all)}")

    def staying(self) -> list[Seat]:
        """All but those that were removed."""
        return [seat for seat in self.all if not seat.is_leaving]

    # ---- who comes and goes ------------------------------------------------------------------------------------------

    def add(self, server: str | None = None) -> Seat:
        """Start another engine, in the background, or open the ``server`` at an address.

        Raises:
            RefusedError: engines cannot be made, or the server is one already.
        """
        if self.remake is None:
            raise RefusedError("this pool was given its engines and cannot make another")
        taken = {seat.place: seat.engine.name for seat in self.all}
        if server in taken:
            raise RefusedError(f"{taken[server]} is the server at {server} already")
        index = next(self._indices)
        place = next(place for place in count() if place not in taken) if server is None else server
        seat = Seat(index, self.remake(index, place), place=place, is_new=True, timeline=self._timeline)
        seat.enter("starting")
        self.all.append(seat)
        log.info("an engine is added", engine=seat.engine.name)
        self._tell()
        return seat

    def remove(self, seat: Seat, *, force: bool) -> None:
        """Take an engine out, in the background.

        Raises:
            RefusedError: no other could serve, or, without ``force``, fewer than ``engine.min_engines`` would.
        """
        if seat.is_leaving:
            return
        name, others = seat.engine.name, [other for other in self.staying() if other is not seat]
        if all(other.stays_empty for other in others):
            raise RefusedError(f"{name} is the only engine, and without one the run cannot go on: add another first")
        num_left, fewest = sum(other.serves for other in others), self._config.min_engines
        if seat.serves and num_left < fewest and not force:
            raise RefusedError(
                f"without {name}, {num_left} engines would serve, fewer than engine.min_engines = {fewest}:"
                " add one and wait until it serves, or insist (force)"
            )
        seat.is_leaving = True
        log.info("an engine is removed", engine=name)
        self._tell()

    # ---- what happens to them ----------------------------------------------------------------------------------------

    def have_joined(self, seats: Sequence[Seat]) -> None:
        """These engines are in a new weight group."""
        for seat in seats:
            if seat.state == "ready":
                seat.enter("joined")
        self.apart = seats != self.there()

    def have_loaded(self, seats: Sequence[Seat], version: int) -> None:
        """These engines serve ``version``."""
        for seat in seats:
            if seat.state == "joined":
                seat.enter("serving")
                if seat.counts:
                    log.warning("an engine serves again", engine=seat.engine.name, version=version)
                else:
                    self._count(seat, counts=True)
                    log.info("an engine that was added serves", engine=seat.engine.name, version=version)
        self._num_lost_told = self._num_lost
        self._tell()

    def give_up(self, seat: Seat, why: str) -> None:
        """This engine is no use any more."""
        if seat.is_there:
            if seat.state == "serving" and _now() - seat.state_since >= STEADY_S:
                seat.num_attempts = 0
            seat.why, self.apart = why, True
            seat.enter("lost")
            self._num_lost += 1
            seat.given_up.set()
            self._tell()

    async def weed(self) -> bool:
        """Give up the engines that are dead or do not answer a pause; whether any was lost since the last load.

        Each is a reason once to try the update again, whoever noticed first that it was lost.
        """
        asked, limit_s = [seat for seat in self.all if seat.is_there], self.answer_timeout_s

        async def check(seat: Seat) -> None:
            try:
                async with asyncio.timeout(limit_s):
                    with waiting(seat.engine.name, "an answer after the failed update", limit_s=limit_s):
                        await seat.engine.pause()
            except TimeoutError:
                self.give_up(seat, f"{seat.engine.name} did not answer for {limit_s:g} s after a weight update failed")
            except EngineError as error:
                self.give_up(seat, str(error))

        async with asyncio.TaskGroup() as group:
            for seat in asked:
                group.create_task(check(seat))
        were_lost, self._num_lost_told = self._num_lost > self._num_lost_told, self._num_lost
        return self.remake is not None and were_lost

    async def failed(self) -> str:
        """Start what dies or is added, end what is removed; return why that is not enough any more.

        What is returned has the last log lines of what was lost.
        """
        failure, why, tasks = FirstFailure(), "", list[asyncio.Task[None]]()

        async def guarded(work: Callable[[], Awaitable[None]]) -> None:
            with failures_to(failure.set, "keeping the engines"):
                await work()

        with failure.interrupts():
            async with asyncio.TaskGroup() as group:

                def start(work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
                    tasks.append(group.create_task(guarded(work)))
                    return tasks[-1]

                start(partial(self._manage, start))
                why = await self._too_few()
                for task in tasks:
                    task.cancel()
        return why

    # ---- waiting for them --------------------------------------------------------------------------------------------

    async def newcomer(self) -> None:
        """Wait until an engine is there, alive, that is in no weight group."""
        await self._until(lambda: any(seat.state == "ready" for seat in self.there()))

    async def one_is_there(self) -> None:
        """Wait until an engine is alive. Raises EngineDeadError after ``engine.recovery_timeout_s``."""
        await self._in_time(lambda: bool(self.there()), "an engine to be started again")

    async def one_serves(self) -> None:
        """Wait until streams can be placed. Raises EngineDeadError after ``engine.recovery_timeout_s``."""
        if self.remake is None and not self.serving():
            raise EngineDeadError("every engine is dead")
        await self._in_time(lambda: bool(self.serving()), "an engine to serve again")

    # ---- life --------------------------------------------------------------------------------------------------------

    async def open(self, engine: Engine) -> None:
        """Start one engine. Raises EngineError, in time."""
        for seat in self.all:
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
            seat = next(seat for seat in self.all if seat.engine is engine)
            others = [seat.why for seat in self.all if seat.state == "lost"]
            left = len(self.all) - len(others) - 1
            if self.remake is not None and left >= min(self._config.min_engines, len(self.all)):
                self.give_up(seat, str(error))
            elif others:
                raise EngineError("; ".join([*others, str(error)])) from error
            else:
                raise

    async def close(self) -> None:
        """Close every engine, side by side, within ``CLOSE_TIMEOUT_S``. What does not close is logged, not raised."""
        async with asyncio.TaskGroup() as group:
            for seat in self.all:
                seat.lane.end()
                group.create_task(_close(seat.engine))

    async def _manage(self, start: Callable[[Callable[[], Awaitable[None]]], asyncio.Task[None]]) -> None:
        """Keep every engine, whoever comes, until it is removed."""
        lives: dict[int, asyncio.Task[None]] = {}
        leaving: set[int] = set()
        while True:
            for seat in self.all:
                if seat.index not in lives:
                    lives[seat.index] = start(partial(self._keep, seat))
                if seat.is_leaving and seat.index not in leaving:
                    leaving.add(seat.index)
                    start(partial(self._see_off, seat, lives[seat.index]))
            await self.changed.wait()

    async def _see_off(self, seat: Seat, life: asyncio.Task[None]) -> None:
        """End an engine that was removed. What it has sampled is with its streams before they hear of its end."""
        life.cancel()
        await asyncio.wait([life])
        self.restarts[seat.index] = None
        async with self.transfers:
            if seat.is_there:
                self.apart = True
                with suppress(TimeoutError, EngineError):
                    async with asyncio.timeout(ANSWER_MARGIN_S):
                        await seat.engine.pause()
            self._count(seat, counts=False)
            seat.enter("left")
        await _close(seat.engine)
        self.all.remove(seat)
        log.info("an engine has left", engine=seat.engine.name)
        self._tell()

    def _count(self, seat: Seat, *, counts: bool) -> None:
        with self.tally.kept():
            seat.counts = counts

    async def _keep(self, seat: Seat) -> None:
        """Give up the engine of a seat when it dies, and start another there."""
        if seat.state == "starting":
            if self.remake is None or not await self._start(seat, self.remake):
                return
            self._is_ready(seat)
        while True:
            self.give_up(seat, await _end_of(seat))
            if self.remake is None:
                return
            with waiting(seat.engine.name, "is started again") as self.restarts[seat.index]:
                is_open = await self._start_again(seat, self.remake, seat.why)
            self.restarts[seat.index] = None
            if not is_open:
                return
            self.num_restarts += 1
            seat.num_restarts += 1
            self._is_ready(seat)

    def _is_ready(self, seat: Seat) -> None:
        seat.enter("ready")
        self.apart = True
        self._tell()

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
        self._tell()

    async def _too_few(self) -> str:
        """Wait until fewer than ``engine.min_engines`` have served for ``engine.recovery_timeout_s``; why."""
        if self.remake is None:
            await self._until(lambda: any(seat.state == "lost" for seat in self.all))
            return self._losses()
        limit_s, enough = self._config.recovery_timeout_s, self._enough
        while True:
            await self._until(lambda: sum(seat.is_there for seat in self.staying()) < enough())
            with suppress(TimeoutError):
                async with self.deadlines.timeout(limit_s):
                    await self._until(lambda: len(self.serving()) >= enough() or self._num_left() < enough())
                if self._num_left() >= enough():
                    continue
                tried = f"engine.max_restarts = {self._config.max_restarts}"
                return f"fewer than {enough()} engines (engine.min_engines) are left after {tried}: {self._losses()}"
            limit = f"engine.recovery_timeout_s = {limit_s:g} s"
            return f"fewer than {enough()} engines (engine.min_engines) served for {limit}: {self._losses()}"

    def _enough(self) -> int:
        """How many must serve: not more than there were, without those that were removed on purpose."""
        return min(self._config.min_engines, sum(seat.counts for seat in self.staying()))

    def _num_left(self) -> int:
        return sum(not seat.stays_empty for seat in self.staying())

    def _losses(self) -> str:
        return "; ".join(f"{seat.engine.name} is dead: {seat.why}" for seat in self.all if seat.why)

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.changed.wait()

    async def _in_time(self, condition: Callable[[], bool], what: str) -> None:
        limit_s = self._config.recovery_timeout_s
        try:
            async with self.deadlines.timeout(limit_s):
                with waiting("the engines", f"wait for {what}", limit_s=limit_s, on=self.restarts.values):
                    await self._until(condition)
        except TimeoutError:
            limit = f"engine.recovery_timeout_s = {limit_s:g} s"
            raise EngineDeadError(f"waited {limit} for {what}: {self._losses()}") from None


def _now() -> float:
    return asyncio.get_running_loop().time()


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
