"""Many engines as one: placement, deadlines, and every promise of the engine protocol checked where it is relied on.

Invariants:

- A stream of the pool ends in exactly one way: one chunk with a finish, last; or one EngineError that names the engine;
  or its consumer closed it. Whichever it is, the engine's stream is closed and uncounted before the pool's ends.
- A stream is admitted only while the pool is not paused. Pausing shuts this gate before it asks the engines, and only a
  resume of every engine opens it again, so no stream is ever admitted to engines that serve different versions.
- The wait for a token has a deadline, which does not run while the pool is paused. Those of a stream for the pool and
  of a whole rollout (``deadlines``) run then too, since a pause is short; but not from an update that failed
  (``weed``) until the engines go on: a trainer that is started again takes minutes, and no prompt is at fault.
- Pause, load, resume, connect and score are done by all engines or fail: the error names each engine that failed, and
  the others are hardly waited for. After a load that failed nothing resumes until one has succeeded.
- An engine that died is out at once, and the others go on; how it comes back, and how engines are added and removed, is
  told in ``seats.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from prl.chain import Waiting, leaves
from prl.config import EngineConfig
from prl.deadlines import Deadlines
from prl.engines.base import Decoding, Engine
from prl.engines.guarded_stream import NO_TOKEN, GuardedStream, TokenDeadlines
from prl.engines.lives import Lives
from prl.engines.placement import Placement
from prl.engines.seat import EngineStatus, Place, Seat
from prl.engines.seats import ANSWER_MARGIN_S, Remake, Seats
from prl.errors import EngineDeadError, EngineError, EngineLeftError, PrlError
from prl.log import get_logger
from prl.timeline import Timeline
from prl.types import TokenChunk, WeightGroup, WeightUpdate
from prl.waits import waiting

FAILURE_GRACE_S = 0.5
"""After one engine failed, how long the others have to fail too and be named, before they are cancelled."""
T = TypeVar("T")
log = get_logger(__name__)


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


class EnginePool:
    """See the module.

    Args:
        engines: at least one, in the order of their weight-transfer ranks.
        config: placement and deadlines.
        gate_timeout_s: longest wait of a new stream for a paused pool to resume; give it ``weights.timeout_s``. It
            begins anew with every update that is tried again, and does not run out while no engine is there.
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
        remake: Remake | None = None,
        places: Sequence[Place] | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.deadlines = Deadlines()
        """Of all that wait for streams to go on."""
        self.seats = Seats(engines, config, remake, places, timeline=timeline)
        self._lives = Lives(self.seats, config)
        self.pending: dict[str, str] = {}
        """What each engine has not answered yet, by engine name. What a cancelled call was waiting for stays."""
        self._config, self._gate_timeout_s = config, gate_timeout_s
        self._placement = Placement(config.placement)
        self._token_deadlines = TokenDeadlines(config.token_timeout_s)
        self._num_waiting = 0
        self._gate = asyncio.Event()
        self._to_join: list[Seat] = []
        self._progress_at = 0.0
        self._failed_load: str | None = None
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
        self._gate.set()

    @property
    def num_engines(self) -> int:
        """Engines that serve, or did and are to serve again."""
        return sum(seat.counts for seat in self.seats.staying())

    @property
    def engines(self) -> list[Engine]:
        """Whoever sits in the pool now."""
        return [seat.engine for seat in self.seats.all]

    def weight_group(self, *, transport: str, address: str, port: int, timeout_s: float) -> WeightGroup:
        """A group in which the trainer is rank 0 and the workers of the engines that are there come after it."""
        self._to_join = self.seats.there()
        world_size = 1 + sum(seat.engine.num_workers for seat in self._to_join)
        return WeightGroup(transport=transport, address=address, port=port, world_size=world_size, timeout_s=timeout_s)

    async def connect(self, group: WeightGroup) -> None:
        """Join ``group`` with the engines that ``weight_group`` counted. They meet the trainer there, side by side.

        One that died since fails it: without it the group would never be complete.
        """
        offsets, rank, seats = dict[str, int](), 1, self._to_join
        for seat in seats:
            offsets[seat.engine.name] = rank
            rank += seat.engine.num_workers
        self._note_progress()
        self.seats.answer_timeout_s = group.timeout_s + ANSWER_MARGIN_S
        await self._all("connect", lambda engine: engine.connect(group, offsets[engine.name]), seats)
        self.seats.have_joined(seats)

    async def generate(
        self, token_ids: list[int], decoding: Decoding, *, group: int
    ) -> AsyncGenerator[TokenChunk, None]:
        """Continue ``token_ids`` on the engine that ``engine.placement`` says. Iterate under ``contextlib.aclosing``.

        Args:
            token_ids: the prompt.
            decoding: how to sample.
            group: an id that the members of one group share.

        Raises:
            EngineError: the engine refused, broke the protocol, or gave no token for ``engine.token_timeout_s``.
            EngineDeadError: the engine died.
            EngineLeftError: the engine was removed.
        """
        seat = await self._place(group)
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

    async def stage(self, update: WeightUpdate) -> bool:
        """Begin to receive ``update`` beside generation. False: these engines receive it in ``load``."""
        staged = await self._all(f"staging of version {update.version}", lambda engine: engine.stage(update))
        return all(staged.values())

    async def pause(self) -> None:
        """Admit no stream any more and stop every engine between two of its decode steps."""
        self._gate.clear()
        self._token_deadlines.stop()
        self._note_progress()
        for seat in self.seats.members():
            seat.lane.hold("paused", "new weights")
        await self._all("pause", lambda engine: engine.pause())

    async def load(self, update: WeightUpdate) -> None:
        """Receive ``update`` on every engine. The caller owns the deadline."""
        self._failed_load = f"the load of version {update.version} did not complete on every engine"
        members = self.seats.members()
        lanes = {seat.engine.name: seat.lane for seat in members}

        async def load(engine: Engine) -> None:
            lanes[engine.name].hold("loading", version=update.version)
            await engine.load(update)
            lanes[engine.name].hold("paused", "the other engines load")

        await self._all(f"load of version {update.version}", load, members)
        self._failed_load = None
        self.seats.have_loaded(members, update.version)

    async def resume(self) -> None:
        """Go on with every engine, then admit streams again."""
        if self._failed_load is not None:
            raise EngineError(f"the engines cannot resume: {self._failed_load}")
        await self._all("resume", lambda engine: engine.resume())
        for seat in self.seats.members():
            if seat.state == "serving":
                seat.lane.release()
        self._token_deadlines.start()
        self.deadlines.go_on(self)
        self._gate.set()

    async def score(self, token_ids: list[int]) -> dict[str, list[float]]:
        """Log-probability of each token after the first under the current weights, by engine name."""
        return await self._all("score", lambda engine: engine.score(token_ids))

    def statistics(self) -> PoolStatistics:
        """What the engines hold and did so far."""
        snapshots = {seat.engine.name: seat.statistics() for seat in self.seats.all}
        tokens_generated, busy_s, stream_s = self.seats.tally.totals()
        open_s = asyncio.get_running_loop().time() - self._opened_at
        return PoolStatistics(
            versions={name: s.version for name, s in snapshots.items()},
            running={seat.engine.name: self._placement.running[seat.index] for seat in self.seats.all},
            waiting=self._num_waiting,
            tokens_generated=tokens_generated,
            busy_s=busy_s,
            stream_s=stream_s,
            busy_fraction=busy_s / open_s if open_s > 0 else 0.0,
            paused=not self._gate.is_set(),
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
        self._gate.clear()
        await self._lives.close()

    async def failed(self) -> str:
        """Keep the engines; return why the run cannot go on without those that were lost."""
        return await self._lives.failed()

    async def weed(self) -> bool:
        """After an update that failed: give up the engines that are dead or do not answer; whether there were any."""
        self._gate.clear()
        self._token_deadlines.stop()
        self.deadlines.hold(self)
        self._note_progress()
        weeded = await self.seats.weed()
        self._note_progress()
        return weeded

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

    def _note_progress(self) -> None:
        """Who waits for the engines to resume has reason to wait on."""
        self._progress_at = asyncio.get_running_loop().time()

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

    async def _place(self, group: int) -> Seat:
        """Count a stream on an engine, as soon as one serves."""
        while True:
            await self._pass_gate()
            if known := self.seats.known_to_serve():
                seat = self.seats.at(self._placement.place(group, known))
                if seat.serves:
                    seat.lane.streams(self._placement.running[seat.index])
                    return seat
                self._placement.leave(group, seat.index)
            if usable := self.seats.serving():
                seat = self.seats.at(self._placement.place(group, usable))
                seat.lane.streams(self._placement.running[seat.index])
                return seat
            await self.seats.one_serves()

    async def _all(
        self, call: str, work: Callable[[Engine], Awaitable[T]], seats: Sequence[Seat] | None = None
    ) -> dict[str, T]:
        """Do ``work`` with every member side by side; soon after the first failure the rest is cancelled.

        Failures are gathered as values, so that no task group closes on one (see ``failure.py``).
        """
        results: dict[str, T] = {}
        failures: dict[str, Exception] = {}
        tasks: dict[str, asyncio.Task[None]] = {}
        engines = [seat.engine for seat in (self.seats.members() if seats is None else seats)]
        self.pending = {engine.name: call for engine in engines}

        async def one(engine: Engine) -> None:
            try:
                with waiting(engine.name, call):
                    results[engine.name] = await work(engine)
            except Exception as error:  # noqa: BLE001 - raised below, together with the other engines' failures
                failures[engine.name] = error
                asyncio.get_running_loop().call_later(FAILURE_GRACE_S, cancel_all)
            del self.pending[engine.name]

        def cancel_all() -> None:
            for task in tasks.values():
                task.cancel()

        async with asyncio.TaskGroup() as group:
            for engine in engines:
                tasks[engine.name] = group.create_task(one(engine))
        if failures:
            self.pending = {}
            raise _as_one(call, failures, len(engines))
        return results

    async def _pass_gate(self) -> None:
        if self._gate.is_set():
            return
        self._num_waiting += 1
        try:
            while not self._gate.is_set():
                await self._wait_at_gate()
        finally:
            self._num_waiting -= 1

    async def _wait_at_gate(self) -> None:
        """Until it opens, or for ``gate_timeout_s`` if that was long enough to give up."""
        since = asyncio.get_running_loop().time()
        try:
            async with self.deadlines.timeout(self._gate_timeout_s):
                with waiting("the engines", "stand still for new weights", limit_s=self._gate_timeout_s):
                    await self._gate.wait()
        except TimeoutError:
            if self._progress_at > since or (self.seats.remake is not None and not self.seats.there()):
                return
            limit = f"{self._gate_timeout_s:g} s (weights.timeout_s)"
            raise EngineError(f"a stream waited {limit} for the engines to resume") from None


def _word(seat: Seat) -> str:
    """Why an engine does not serve, in a word."""
    return "leaving" if seat.is_leaving else "dead" if seat.state in {"lost", "serving"} else seat.state


def _as_one(call: str, failures: dict[str, Exception], num_engines: int) -> Exception:
    """One error for all: a bug as it is, else an EngineError that names each engine."""
    for error in failures.values():
        if not isinstance(error, PrlError):
            return error
    dead = any(isinstance(error, EngineDeadError) for error in failures.values())
    what = "; ".join(f"{name}: {error}" for name, error in failures.items())
    combined = (EngineDeadError if dead else EngineError)(
        f"{call} failed on {len(failures)} of {num_engines} engines: {what}"
    )
    combined.__cause__ = next(iter(failures.values()))
    return combined
