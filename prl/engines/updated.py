"""Engines that take up new weights together: in one weight group or several, all at once or one part after another.

Invariants:

- Pause, load, swap, resume, connect and score are done by all engines that they are for, or fail (``side_by_side.py``).
  After a load or a swap that failed nothing resumes until one has succeeded.
- Where all are updated at once, a gate shuts for new streams before any engine is asked, and opens when all have gone
  on. Where parts take turns it stays open: new streams are placed on engines that do not stand still. As long as two
  engines serve, one of them goes on at any time.
- Parts are those of the weight group's last meeting. What is staged reaches all of them in one weight group; what is
  not, each in a group of its own, since a collective has all of its members or none.
- No deadline of a token runs from the first pause of an update until the last engine has gone on.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from prl.config import EngineConfig
from prl.deadlines import Deadlines
from prl.engines.base import Engine, Standstill
from prl.engines.gate import Gate
from prl.engines.guarded_stream import TokenDeadlines
from prl.engines.quorum import Quorum
from prl.engines.seat import Place, Seat
from prl.engines.seats import ANSWER_MARGIN_S, Remake, Seats
from prl.engines.side_by_side import SideBySide
from prl.errors import EngineError, PrlError
from prl.log import get_logger
from prl.timeline import Timeline
from prl.types import BUCKET_BYTES, WeightGroup, WeightUpdate

T = TypeVar("T")
log = get_logger(__name__)


class UpdatedEngines:
    """See the module.

    Args:
        engines: at least one, in the order of their weight-transfer ranks.
        config: placement and deadlines.
        gate_timeout_s: longest wait of a new stream for a paused pool to resume; give it ``weights.timeout_s``. It
            begins anew with every update that is tried again, and does not run out while no engine is there.
        rolling: engines that stand still at once; 0: all.
        staged: whether an update reaches all of them beside generation.
        remake: makes another engine, not opened, for a seat's index and its place; None: the first death ends the run.
        places: where each engine computes; absent: each on its share of this machine.
        timeline: shows what the engines do.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        config: EngineConfig,
        *,
        gate_timeout_s: float,
        rolling: int = 0,
        staged: bool = True,
        remake: Remake | None = None,
        places: Sequence[Place] | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.deadlines = Deadlines()
        """Of all that wait for streams to go on."""
        self.seats = Seats(engines, config, remake, places, timeline=timeline)
        self.quorum = Quorum(self.seats, config)
        self._side_by_side = SideBySide()
        self._gate = Gate(gate_timeout_s, self.deadlines, lambda: remake is not None and not self.seats.there())
        self._token_deadlines = TokenDeadlines(config.token_timeout_s)
        self.rolling, self.staged = rolling, staged
        """Both are read when engines and trainer meet."""
        self._to_join: list[Seat] = []
        self._parts: list[list[Seat]] = []
        self._failed_load: str | None = None
        self._takes_turns = False
        """Whether engines may serve different versions, since the first turn of an update began."""

    @property
    def pending(self) -> dict[str, str]:
        """What each engine has not answered yet, by engine name. What a cancelled call was waiting for stays."""
        return self._side_by_side.pending

    # ---- meeting the trainer -----------------------------------------------------------------------------------------

    def weight_group(
        self,
        *,
        transport: str,
        address: str,
        port: int,
        timeout_s: float,
        part: int = 0,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> WeightGroup:
        """A group in which the trainer is rank 0 and the workers of engines come after it.

        Part 0 is asked for first: it counts the engines that are there, and says how many parts there are.
        """
        if part == 0:
            self._to_join = self.seats.there()
            self._parts = in_parts(self._to_join, self.rolling)
        joining = self._joining(part)
        return WeightGroup(
            transport=transport,
            address=address,
            port=port,
            world_size=1 + sum(seat.engine.num_workers for seat in joining),
            timeout_s=timeout_s,
            bucket_bytes=bucket_bytes,
            part=part,
            num_parts=1 if self.staged else len(self._parts),
        )

    async def connect(self, group: WeightGroup) -> None:
        """Join ``group`` with the engines that ``weight_group`` counted. They meet the trainer there, side by side.

        One that died since fails it: without it the group would never be complete.
        """
        offsets, rank, seats = dict[str, int](), 1, self._joining(group.part)
        for seat in seats:
            offsets[seat.engine.name] = rank
            rank += seat.engine.num_workers
        self._gate.note_progress()
        self.seats.answer_timeout_s = group.timeout_s + ANSWER_MARGIN_S
        await self._all("connect", lambda engine: engine.connect(group, offsets[engine.name]), seats)
        if group.part == group.num_parts - 1:
            self.seats.have_joined(self._to_join)

    def _joining(self, part: int) -> list[Seat]:
        return self._to_join if self.staged else self._parts[part]

    # ---- an update ---------------------------------------------------------------------------------------------------

    def turns(self, *, is_staged: bool) -> Sequence[int | None]:
        """The parts that take up an update one after another; None: all at once.

        Parts that have no weight group of their own cannot take turns in receiving what was not staged.
        """
        can_take_turns = len(self._parts) > 1 and (is_staged or not self.staged)
        return range(len(self._parts)) if can_take_turns else [None]

    async def stage(self, update: WeightUpdate) -> bool:
        """Begin to receive ``update`` beside generation. False: these engines receive it in ``load``."""
        staged = await self._all(f"staging of version {update.version}", lambda engine: engine.stage(update))
        return all(staged.values())

    async def swap(self, update: WeightUpdate, part: int | None = None) -> Standstill:
        """Serve what was staged, each engine standing still for no longer than its own swap."""
        seats = self._stop(part)
        self._failed_load = f"the swap to version {update.version} did not complete on every engine"
        for seat in seats:
            seat.lane.hold("loading", version=update.version)
        stood = await self._all(f"swap to version {update.version}", lambda engine: engine.swap(update), seats)
        self._failed_load = None
        self.seats.have_loaded(seats, update.version)
        self._go_on(part, seats)
        return max(stood.values(), key=lambda each: each.drain_s + each.still_s, default=NO_TIME)

    async def pause(self, part: int | None = None) -> None:
        """Stop every engine between two of its decode steps, and, where it is all, admit no stream any more."""
        seats = self._stop(part)
        await self._all("pause", lambda engine: engine.pause(), seats)

    async def load(self, update: WeightUpdate, part: int | None = None) -> None:
        """Receive ``update`` on every engine. The caller owns the deadline."""
        self._failed_load = f"the load of version {update.version} did not complete on every engine"
        members = self._members(part)
        lanes = {seat.engine.name: seat.lane for seat in members}

        async def load(engine: Engine) -> None:
            lanes[engine.name].hold("loading", version=update.version)
            await engine.load(update)
            lanes[engine.name].hold("paused", "the other engines load")

        await self._all(f"load of version {update.version}", load, members)
        self._failed_load = None
        self.seats.have_loaded(members, update.version)

    async def resume(self, part: int | None = None) -> None:
        """Go on with every engine, then admit streams again."""
        if self._failed_load is not None:
            raise EngineError(f"the engines cannot resume: {self._failed_load}")
        seats = self._members(part)
        await self._all("resume", lambda engine: engine.resume(), seats)
        self._go_on(part, seats)

    async def score(self, token_ids: list[int]) -> dict[str, list[float]]:
        """Log-probability of each token after the first under the current weights, by engine name.

        Of an engine of several data-parallel ranks, by rank.
        """
        found = await self._all("score", lambda engine: engine.score(token_ids))
        return {who: told for name, scores in found.items() for who, told in _by_rank(name, scores, len(token_ids) - 1)}

    async def weed(self) -> bool:
        """After an update that failed: give up the engines that are dead or do not answer; whether there were any."""
        self._gate.shut()
        self._token_deadlines.stop()
        self.deadlines.hold(self)
        self._gate.note_progress()
        weeded = await self.seats.weed()
        self._gate.note_progress()
        return weeded

    async def go_on_without(self, version: int) -> None:
        """After an update to ``version`` that failed: go on with the version before it, where that is what is served.

        Not where a load was begun, which leaves engines that may serve anything; nor where one serves ``version``,
        which was not proven. There the streams wait, and their deadlines with them.
        """
        serving = [self.seats.at(index).engine for index in self.seats.serving()]
        if self._failed_load is not None or any(engine.statistics().version == version for engine in serving):
            return
        try:
            await self.resume()
        except PrlError as error:
            log.warning("the engines stand still until the update was done", why=str(error))

    def _members(self, part: int | None) -> list[Seat]:
        """The engines that an update is for, of this part."""
        members = self.seats.members()
        return members if part is None else [seat for seat in self._parts[part] if seat in members]

    def _stop(self, part: int | None) -> list[Seat]:
        """These are about to stand still."""
        if part is None:
            self._gate.shut()
        else:
            self._takes_turns = True
        self._token_deadlines.stop()
        self._gate.note_progress()
        seats = self._members(part)
        for seat in seats:
            seat.is_held = True
            seat.lane.hold("paused", "new weights")
        return seats

    def _go_on(self, part: int | None, seats: list[Seat]) -> None:
        """These have gone on."""
        for seat in seats:
            seat.is_held = False
            if seat.state == "serving":
                seat.lane.release()
        if part is None or part == len(self._parts) - 1:
            self._takes_turns = False
            self._token_deadlines.start()
            self.deadlines.go_on(self)
            self._gate.open()

    async def _all(
        self, call: str, work: Callable[[Engine], Awaitable[T]], seats: Sequence[Seat] | None = None
    ) -> dict[str, T]:
        """Do ``work`` with every member side by side."""
        members = self.seats.members() if seats is None else seats
        return await self._side_by_side(call, work, [seat.engine for seat in members])


def _by_rank(name: str, scores: list[float], length: int) -> Iterator[tuple[str, list[float]]]:
    """The scores of an engine, in parts of ``length`` where they are of several ranks."""
    if len(scores) <= length or len(scores) % length:
        yield name, scores
        return
    for rank in range(len(scores) // length):
        yield f"{name}, data-parallel rank {rank},", scores[rank * length : (rank + 1) * length]


NO_TIME = Standstill(drain_s=0.0, still_s=0.0)
"""Of no engine."""


def in_parts(seats: list[Seat], rolling: int) -> list[list[Seat]]:
    """``seats`` in parts of ``rolling`` at most, and two at least where there are two of them; 0: all in one."""
    step = max(1, min(rolling, math.ceil(len(seats) / 2)) if rolling else len(seats))
    return [seats[first : first + step] for first in range(0, len(seats), step)] or [[]]
