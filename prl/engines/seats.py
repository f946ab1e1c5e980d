"""Who sits in the pool: engines that die, come back with the weights of the others, are added, and removed.

Invariants:

- An engine that died, or was given up, is *lost* at once. Another is started in its seat (``lives.py``); it is *ready*
  when it is open, *joined* in a weight group, and *serving* once it has loaded.
- Attempts are counted until an engine has served for ``STEADY_S``: one that opens and dies in every update is an
  attempt like one that does not open.
- An engine that is *added* goes the same way from its start on, and counts (``tally.py``, ``engine.min_engines``) from
  the moment it serves. One that is *removed* gets no new stream from then on; it leaves while no update is under way,
  out of the weight group and with all that it sampled in its streams, which go on elsewhere behind their tokens.
- The totals of what was generated, and of the time the engines were busy, never fall, whoever comes or goes.
- Only serving engines get streams. Pauses, loads and scores are for those that serve or have joined.
- Whatever changes about who is there is told (``changed``); how long a run waits for those it needs is ``quorum.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from prl.config import EngineConfig
from prl.engines.base import Engine
from prl.engines.seat import Place, Seat
from prl.engines.tally import Tally
from prl.errors import EngineError, NotFoundError, RefusedError
from prl.log import get_logger
from prl.timeline import Timeline
from prl.waits import Wait, waiting

ANSWER_MARGIN_S = 5.0
"""After a failed update an engine may be stuck in the weight group until the group's timeout, though it is healthy; it
is given up when it has not answered for so much longer."""
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
        self.tell()
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
        self.tell()

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
        self.tell()

    def give_up(self, seat: Seat, why: str) -> None:
        """This engine is no use any more."""
        if seat.is_there:
            if seat.state == "serving" and _now() - seat.state_since >= STEADY_S:
                seat.num_attempts = 0
            seat.why, self.apart = why, True
            seat.enter("lost")
            self._num_lost += 1
            seat.given_up.set()
            self.tell()

    def is_ready(self, seat: Seat) -> None:
        """An engine is open here, in no weight group yet."""
        seat.enter("ready")
        self.apart = True
        self.tell()

    def leaves(self, seat: Seat) -> None:
        """The engine that was removed is with nobody any more: its numbers are kept, its streams hear of its end."""
        self._count(seat, counts=False)
        seat.enter("left")

    def has_left(self, seat: Seat) -> None:
        """Nobody sits here any more."""
        self.all.remove(seat)
        log.info("an engine has left", engine=seat.engine.name)
        self.tell()

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

    async def newcomer(self) -> None:
        """Wait until an engine is there, alive, that is in no weight group."""
        await self.until(lambda: any(seat.state == "ready" for seat in self.there()))

    def _count(self, seat: Seat, *, counts: bool) -> None:
        with self.tally.kept():
            seat.counts = counts

    def tell(self) -> None:
        """Something about who is there has changed."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something about who is there makes this true."""
        while not condition():
            await self.changed.wait()


def _now() -> float:
    return asyncio.get_running_loop().time()
