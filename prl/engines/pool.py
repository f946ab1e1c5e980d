"""Many engines as one: placement, deadlines, and every promise of the engine protocol checked where it is relied on.

Invariants:

- A stream of the pool ends in exactly one way: one chunk with a finish, last; or one EngineError that names the engine;
  or its consumer closed it. Whichever it is, the engine's stream is closed and uncounted before the pool's ends.
- Where all engines take up new weights at once no stream is admitted meanwhile; where they take turns it is placed on
  one that goes on, if one is left. How they come to them is told in ``updated.py``.
- The versions of a stream never decrease, also where it goes on behind tokens that another engine sampled while engines
  take turns: it is placed where the weights are as new (``at_least``).
- The wait for a token has a deadline, which does not run while engines take up new weights. Those of a stream for the
  pool and of a whole rollout (``deadlines``) run then too, since a pause is short; but not from an update that failed
  (``weed``) until the engines go on: a trainer that is started again takes minutes, and no prompt is at fault.
- An engine that died is out at once, and the others go on; how it comes back, and how engines are added and removed, is
  told in ``seats.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from prl.chain import Waiting, leaves
from prl.config import EngineConfig
from prl.engines.base import Decoding, Engine
from prl.engines.guarded_stream import NO_TOKEN, GuardedStream
from prl.engines.lives import Lives
from prl.engines.placement import Placement
from prl.engines.seat import EngineStatus, Seat
from prl.engines.updated import UpdatedEngines
from prl.errors import EngineError, EngineLeftError
from prl.types import TokenChunk
from prl.waits import waiting


class PoolStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of all engines; counters grow from the pool's start, whichever engines die, come or go."""

    versions: dict[str, int]
    running: dict[str, int]
    """Streams open now, by engine."""
    waiting: int
    """Streams that wait for the pool to resume."""
    tokens_generated: int
    busy_s: float
    """Mean over the engines of the seconds with at least one open stream and not paused (``tally.py``)."""
    stream_s: float
    """Seconds of all streams added up, of all engines."""
    busy_fraction: float
    """``busy_s`` over the seconds since the pool was opened."""
    paused: bool
    dead: list[str]
    """Those that do not serve: dead, not started yet, or about to leave."""


class EnginePool(UpdatedEngines):
    """See the module; ``more`` is what ``UpdatedEngines`` takes besides."""

    def __init__(self, engines: Sequence[Engine], config: EngineConfig, **more: Any) -> None:
        super().__init__(engines, config, **more)
        self._lives = Lives(self.seats, self.quorum, config)
        self._placement = Placement(config.placement)
        self._opened_at = 0.0

    async def open(self) -> None:
        """Start all engines side by side.

        One that does not start is lost like one that dies later, as long as ``engine.min_engines`` are left. Where they
        are not, all are closed and the error says why: what keeps every engine from starting is not mended.
        """
        try:
            await self._all("open", self._lives.open_first)
        except BaseException:
            await self.close()
            raise
        self._opened_at = asyncio.get_running_loop().time()
        for seat in self.seats.all:
            seat.enter(seat.state)  # that far, since now
        self._gate.open()

    @property
    def num_engines(self) -> int:
        """Engines that serve, or did and are to serve again."""
        return sum(seat.counts for seat in self.seats.staying())

    @property
    def engines(self) -> list[Engine]:
        """Whoever sits in the pool now."""
        return [seat.engine for seat in self.seats.all]

    async def generate(
        self, token_ids: list[int], decoding: Decoding, *, group: int, at_least: int = 0
    ) -> AsyncGenerator[TokenChunk, None]:
        """Continue ``token_ids`` on the engine that ``engine.placement`` says. Iterate under ``contextlib.aclosing``.

        Args:
            token_ids: the prompt.
            decoding: how to sample.
            group: an id that the members of one group share.
            at_least: the version of the newest token that the stream goes on behind.

        Raises:
            EngineError: the engine refused, broke the protocol, or gave no token for ``engine.token_timeout_s``.
            EngineDeadError: the engine died.
            EngineLeftError: the engine was removed.
        """
        seat = await self._place(group, at_least)
        index, engine = seat.index, seat.engine
        try:
            chunks = engine.generate(token_ids, decoding)
            deadlines, max_tokens = self._token_deadlines, decoding.max_tokens
            stream = GuardedStream(engine.name, chunks, max_tokens=max_tokens, deadlines=deadlines)
            try:
                while (chunk := await stream.next()) is not None:
                    yield chunk
            finally:
                await stream.close()
        except EngineError as error:
            if seat.state == "left":
                raise EngineLeftError(f"{engine.name} was removed") from error
            raise
        finally:
            self._placement.leave(group, index)
            seat.lane.streams(self._placement.running[index])

    def statistics(self) -> PoolStatistics:
        """What the engines hold and did so far."""
        snapshots = {seat.engine.name: seat.statistics() for seat in self.seats.all}
        tokens_generated, busy_s, stream_s = self.seats.tally.totals()
        open_s = asyncio.get_running_loop().time() - self._opened_at
        return PoolStatistics(
            versions={name: s.version for name, s in snapshots.items()},
            running={seat.engine.name: self._placement.running[seat.index] for seat in self.seats.all},
            waiting=self._gate.num_waiting,
            tokens_generated=tokens_generated,
            busy_s=busy_s,
            stream_s=stream_s,
            busy_fraction=busy_s / open_s if open_s > 0 else 0.0,
            paused=not self._gate.is_open,
            dead=[seat.engine.name for seat in self.seats.all if not seat.serves],
        )

    def status(self) -> list[EngineStatus]:
        """Each engine as people see it."""
        return [seat.status(self._placement.running[seat.index]) for seat in self.seats.all]

    def describe(self) -> str:
        """One line for people: what each engine holds and what it has not answered."""
        now = self.statistics()
        words = {seat.engine.name: "" if seat.serves else f", {_word(seat)}" for seat in self.seats.all}
        engines = [f"{name} ({count} streams{words[name]})" for name, count in now.running.items()]
        waits = [f"{name} has not answered {call}" for name, call in self.pending.items()]
        gate = [f"{now.waiting} streams wait for the engines to resume"] if now.waiting else []
        return "; ".join([", ".join(engines) + (" paused" if now.paused else ""), *gate, *waits])

    async def close(self) -> None:
        """Close every engine, side by side, within ``CLOSE_TIMEOUT_S``. What does not close is logged, not raised."""
        self._gate.shut()
        await self._lives.close()

    async def failed(self) -> str:
        """Keep the engines; return why the run cannot go on without those that were lost."""
        return await self._lives.failed()

    def give_up_silent(self, stalled: Waiting, why: str) -> list[str]:
        """Give up the engines that owe a token to what ``stalled`` waits for, where others can be started.

        Their streams go on elsewhere. Returns their names.
        """
        if self.seats.remake is None:
            return []
        owing = {leaf.who for leaf in leaves(stalled) if leaf.what == NO_TOKEN}
        silent = [seat for seat in self.seats.all if seat.serves and seat.engine.name in owing]
        for seat in silent:
            self.seats.give_up(seat, f"{seat.engine.name} {why}")
        return [seat.engine.name for seat in silent]

    async def _place(self, group: int, at_least: int) -> Seat:
        """Count a stream on an engine, as soon as one serves."""
        while True:
            await self._gate.passed()
            if known := self._best(self.seats.known_to_serve(), at_least):
                seat = self.seats.at(self._placement.place(group, known))
                if seat.serves:
                    seat.lane.streams(self._placement.running[seat.index])
                    return seat
                self._placement.leave(group, seat.index)
            serving = self.seats.serving()
            if usable := self._best(serving, at_least):
                seat = self.seats.at(self._placement.place(group, usable))
                seat.lane.streams(self._placement.running[seat.index])
                return seat
            if serving:
                with waiting("a stream", f"waits for an engine that serves version {at_least}"):
                    await self.seats.changed.wait()
            else:
                await self.quorum.one_serves()

    def _best(self, indices: list[int], at_least: int) -> list[int]:
        """Of these, without those that are behind, the ones that go on; or all, where all stand still."""
        if not (self._takes_turns or at_least):
            return indices
        seats = [seat for seat in map(self.seats.at, indices) if seat.engine.statistics().version >= at_least]
        return [seat.index for seat in seats if not seat.is_held] or [seat.index for seat in seats]


def _word(seat: Seat) -> str:
    """Why an engine does not serve, in a word."""
    return "leaving" if seat.is_leaving else "dead" if seat.state in {"lost", "serving"} else seat.state
