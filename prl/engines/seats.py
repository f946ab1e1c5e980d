"""Who sits in the pool: engines that start, die, are started again, and come back with the weights of the others.

Invariants:

- An engine that died, or was given up, is *lost* at once. Another is started in its seat, after a pause that doubles
  with every attempt; it is *ready* when it is open, *joined* in a weight group, and *serving* once it has loaded.
- Attempts are counted until an engine has served for ``STEADY_S``: one that opens and dies in every update is an
  attempt like one that does not open. After ``engine.max_restarts`` of them the seat stays empty.
- What a seat has generated, and how long it was busy, never falls: a lost engine's counts pass to the seat in the same
  breath as the engine leaves it.
- Only serving engines get streams. Pauses, loads and scores are for those that serve or have joined.
- Fewer than ``engine.min_engines`` that serve for ``engine.recovery_timeout_s`` end the run; without ``remake`` the
  first death does. No time passes while the trainer is started again (``deadlines``), without which nobody can join.
- Starts and closes are bounded in time, and a close reaches every engine, whatever state it is in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from prl.config import EngineConfig
from prl.deadlines import Deadlines
from prl.engines.base import Engine, EngineStatistics
from prl.errors import EngineDeadError, EngineError, PrlError
from prl.failure import FirstFailure, failures_to
from prl.log import get_logger
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

State = Literal["serving", "lost", "ready", "joined"]
log = get_logger(__name__)


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One engine as people see it."""

    name: str
    state: str
    """``serving``; ``lost``: it died and is started again; ``ready`` and ``joined``: it is open, and waits for the
    weights; ``failed``: it is not started again."""
    state_s: float
    """For how long."""
    version: int
    """Of the weights that it holds."""
    streams: int
    """Open now."""
    tokens_generated: int
    busy_s: float
    """Seconds with at least one open stream and not paused."""
    restarts: int
    why: str
    """Why it was lost last, if it ever was."""


class Seat:
    """The place of one engine in the pool: whoever sits there now, and how far it is."""

    def __init__(self, index: int, engine: Engine) -> None:
        self.index, self.engine = index, engine
        self.state: State = "serving"
        self.state_since = 0.0
        self.given_up = asyncio.Event()
        self.why = ""
        """Why the engine that was lost last was."""
        self.num_attempts = 0
        """Engines that were started here since one last served for ``STEADY_S``."""
        self.stays_empty = False
        """Whether nobody is started here any more."""
        self.num_restarts = 0
        self._num_tokens_before, self._busy_s_before = 0, 0.0

    @property
    def serves(self) -> bool:
        """Whether streams may be placed here."""
        return self.state == "serving" and not self.engine.statistics().dead

    def statistics(self) -> EngineStatistics:
        """Those of the engine that sits here; tokens and busy seconds of all that ever did."""
        now = self.engine.statistics()
        return msgspec.structs.replace(
            now,
            tokens_generated=self._num_tokens_before + now.tokens_generated,
            busy_s=self._busy_s_before + now.busy_s,
        )

    def enter(self, state: State) -> None:
        """It is this far."""
        self.state, self.state_since = state, _now()

    def status(self, num_streams: int) -> EngineStatus:
        """How it is, with so many streams placed here."""
        now = self.statistics()
        return EngineStatus(
            name=self.engine.name,
            state="failed" if self.stays_empty else self.state,
            state_s=_now() - self.state_since,
            version=now.version,
            streams=num_streams,
            tokens_generated=now.tokens_generated,
            busy_s=now.busy_s,
            restarts=self.num_restarts,
            why=self.why,
        )

    def replace(self, engine: Engine) -> None:
        """Another engine sits here from now on."""
        total = self.statistics()
        self._num_tokens_before, self._busy_s_before = total.tokens_generated, total.busy_s
        self.engine = engine
        self.given_up.clear()


class Seats:
    """See the module.

    Args:
        engines: at least one, not opened.
        config: deadlines, and how many must serve.
        remake: makes another engine for a seat, not opened; None: the first death ends the run.
    """

    def __init__(self, engines: Sequence[Engine], config: EngineConfig, remake: Callable[[int], Engine] | None) -> None:
        self.all = [Seat(index, engine) for index, engine in enumerate(engines)]
        self.remake = remake
        self.apart = True
        """Whether the weight group is not that of the engines that are there."""
        self.num_restarts = 0
        """Engines that were started in place of one that was lost."""
        self.answer_timeout_s = ANSWER_MARGIN_S
        """After a failed update, how long an engine may take to answer before it is given up."""
        self.restarts: dict[int, Wait | None] = {}
        """Restarts under way, by seat."""
        self.changed = asyncio.Event()
        """Set, and replaced, when an engine is lost, is ready, or has loaded."""
        self.deadlines = Deadlines()
        """Of the waits for engines that come back: who is ready cannot join while the trainer is started again."""
        self._num_lost = self._num_lost_told = 0
        self._config = config

    def there(self) -> list[Seat]:
        """The engines that are alive, in the weight group or not."""
        return [seat for seat in self.all if seat.state != "lost" and not seat.engine.statistics().dead]

    def members(self) -> list[Seat]:
        """The engines that pauses, loads and scores are for."""
        return [seat for seat in self.all if seat.state in {"serving", "joined"}]

    def serving(self) -> list[int]:
        """Where streams may be placed."""
        return [seat.index for seat in self.all if seat.serves]

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
                log.warning("an engine serves again", engine=seat.engine.name, version=version)
        self._num_lost_told = self._num_lost
        self._tell()

    def give_up(self, seat: Seat, why: str) -> None:
        """This engine is no use any more."""
        if seat.state != "lost":
            if seat.state == "serving" and _now() - seat.state_since >= STEADY_S:
                seat.num_attempts = 0
            seat.enter("lost")
            seat.why, self.apart = why, True
            self._num_lost += 1
            seat.given_up.set()
            self._tell()

    async def weed(self) -> bool:
        """Give up the engines that are dead or do not answer a pause; whether any was lost since the last load.

        Each is a reason once to try the update again, whoever noticed first that it was lost.
        """
        asked, limit_s = [seat for seat in self.all if seat.state != "lost"], self.answer_timeout_s

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
        """Start again what dies; return why that is not enough any more, with the last log lines of what was lost."""
        failure, why = FirstFailure(), ""

        async def keep(seat: Seat) -> None:
            with failures_to(failure.set, f"keeping {seat.engine.name}"):
                await self._keep(seat)

        with failure.interrupts():
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(keep(seat)) for seat in self.all]
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
                group.create_task(_close(seat.engine))

    async def _keep(self, seat: Seat) -> None:
        """Give up the engine of a seat when it dies, and start another there."""
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
            seat.enter("ready")
            self.apart = True
            self._tell()

    async def _start_again(self, seat: Seat, remake: Callable[[int], Engine], why: str) -> bool:
        """Until one is open; False where that was tried too often."""
        while True:
            name, attempt = seat.engine.name, seat.num_attempts + 1
            if attempt > self._config.max_restarts:
                self._leave_empty(seat, why)
                await _close(seat.engine)
                return False
            pause_s = min(FIRST_BACK_OFF_S * 2**seat.num_attempts, LAST_BACK_OFF_S)
            log.warning("an engine is lost: it is started again", engine=name, attempt=attempt, in_s=pause_s, why=why)
            await _close(seat.engine)
            with waiting(name, f"pauses before attempt {attempt}", limit_s=pause_s):
                await asyncio.sleep(pause_s)
            seat.num_attempts = attempt
            seat.replace(remake(seat.index))
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
        enough, limit_s = min(self._config.min_engines, len(self.all)), self._config.recovery_timeout_s
        while True:
            await self._until(lambda: sum(seat.state != "lost" for seat in self.all) < enough)
            with suppress(TimeoutError):
                async with self.deadlines.timeout(limit_s):
                    await self._until(lambda: len(self.serving()) >= enough or self._num_left() < enough)
                if self._num_left() >= enough:
                    continue
                tried = f"engine.max_restarts = {self._config.max_restarts}"
                return f"fewer than {enough} engines (engine.min_engines) are left after {tried}: {self._losses()}"
            limit = f"engine.recovery_timeout_s = {limit_s:g} s"
            return f"fewer than {enough} engines (engine.min_engines) served for {limit}: {self._losses()}"

    def _num_left(self) -> int:
        return sum(not seat.stays_empty for seat in self.all)

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
