"""One run in virtual time: the controller, buffer, pool, rollouts and weight updates are the real ones.

Invariants:

- What is simulated is the outside alone: engines and trainer that only take their time, prompts that are numbers,
  rewards that are coins. Whatever waits for whom is decided by the code that decides it in a run.
- The same configuration has the same course, number by number.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial

import msgspec

from prl import parts, virtual_time
from prl.advantage import ADVANTAGES
from prl.batch import make_batch
from prl.buffer import Buffer, BufferStatistics
from prl.config import Config
from prl.controller import Controller
from prl.engines.base import Decoding
from prl.engines.paced import PacedEngine
from prl.engines.pool import EnginePool
from prl.failure import FirstFailure, running, together_as_it_was
from prl.metrics import StepReport
from prl.rollout import Rollout
from prl.sampler import Sampler
from prl.simulate.costs import Costs
from prl.simulate.machine import Machine
from prl.simulate.parts import Deaths, NoRecords, Numbers, TrainingTime, lags_of, make_score
from prl.simulation import fraction
from prl.sync import WeightSync
from prl.trainer.paced import PacedTrainer
from prl.types import Batch, Group

NEVER_S = 1e12
"""A deadline that no simulated wait meets: a paced engine gives a stream's tokens when it ends."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """One step, as it was measured."""

    report: StepReport
    lags: Counter[int]
    """Trained tokens by lag, in simulated tokens."""
    slots: BufferStatistics
    at_s: float
    """When it ended, in seconds of virtual time from the moment that the first weights served."""
    held_tokens: int
    """Simulated tokens in groups that were finished or being trained, when the step was taken."""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """All steps of a simulated run."""

    steps: list[Taken]
    most_held: float
    """Most tokens that the running sequences of one engine had sampled at once, in simulated tokens."""
    trainer_lost_s: float
    trainer_restarts: int


def simulate(config: Config, costs: Costs, *, make_buffer: Callable[[Config], Buffer] = parts.make_buffer) -> Course:
    """Run ``config`` in virtual time on a machine of these costs, without any process or file."""
    with _seldom_collected():
        return virtual_time.run(_Run(config, costs, make_buffer).take_steps())


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let garbage collection look at ten thousand sequences in flight hardly ever: what ends leaves no cycles."""
    before = gc.get_threshold()
    gc.set_threshold(5_000_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Run:
    """The parts of one simulated run, put together as ``assembly.py`` does it."""

    def __init__(self, config: Config, costs: Costs, make_buffer: Callable[[Config], Buffer]) -> None:
        self._config, self._costs, self._seed = config, costs, config.seed
        engine = config.engine
        self._machine = Machine(
            num_accelerators=config.simulate.num_accelerators,
            per_engine=engine.tensor_parallel_size,
            num_ranks=config.trainer.num_ranks,
            sharing=costs.sharing,
        )
        self._deaths = Deaths(config.simulate.faults.engine_deaths_per_hour, self._seed)
        self._made: list[PacedEngine] = []
        self._pool = EnginePool(
            [self._make_engine(index, index) for index in range(engine.num_engines)],
            msgspec.structs.replace(engine, token_timeout_s=NEVER_S),
            gate_timeout_s=config.weights.timeout_s,
            rolling=config.weights.rolling,
            staged=False,
            remake=lambda index, _: self._make_engine(index, index),
        )
        self._work = TrainingTime(
            costs.train_s, config.simulate.faults, config.run.checkpoint_every, seed=self._seed + 1
        )
        self._last_lags: Counter[int] = Counter()
        self._trainer = PacedTrainer(
            work=lambda samples, tokens: self._machine.train(self._work.next_s(samples, tokens)),
            update_s=costs.update_s,
            lags=self._count_lags,
            drift=config.simulate.drift,
        )
        self._buffer, self._governor = make_buffer(config), parts.make_governor(config)
        self._failure = FirstFailure()
        self._held_tokens = 0

    async def take_steps(self) -> Course:
        """Take ``run.num_steps`` steps."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._pool.close)
            await together_as_it_was("start", trainer=self._trainer.open, engines=self._pool.open)
            sync = self._make_sync()
            controller = self._make_controller(sync)
            await stack.enter_async_context(running(controller.keep()))
            await sync.push(0)
            begun = asyncio.get_running_loop().time()
            if self._governor is not None:
                controller.resize(self._governor.slots)
            await stack.enter_async_context(running(controller.run()))
            controller.reporter.meter.restart()
            steps = [await self._step(controller, begun) for _ in range(self._config.run.num_steps)]
        return Course(
            steps=steps,
            most_held=max(engine.most_held for engine in self._made),
            trainer_lost_s=self._work.lost_s,
            trainer_restarts=self._work.num_restarts,
        )

    async def _step(self, controller: Controller, begun: float) -> Taken:
        step = await controller.step()
        slots = parts.slots_after(self._config, self._governor, step.report, self._pool.num_engines)
        if slots is not None:
            controller.resize(slots)
        return Taken(
            report=step.report,
            lags=self._last_lags,
            slots=controller.slots(),
            at_s=asyncio.get_running_loop().time() - begun,
            held_tokens=self._held_tokens,
        )

    def _make_engine(self, index: int, _place: int) -> PacedEngine:
        faults, again = self._config.simulate.faults, any(engine.name == f"engine-{index}" for engine in self._made)
        share = faults.failed_streams
        engine = PacedEngine(
            index=index,
            max_num_seqs=self._config.engine.max_num_seqs,
            step_s=self._costs.step_s,
            length_of=self._costs.length_of,
            share=self._machine,
            open_s=faults.engine_start_s if again else 0.0,
            dies_after_s=self._deaths.next_s(index),
            fails=lambda seed: share > 0 and fraction(self._seed, seed, 2) <= share,
        )
        self._made.append(engine)
        return engine

    def _make_sync(self) -> WeightSync:
        return WeightSync(
            self._trainer,
            self._pool,
            transport="gloo",
            manifest=[],
            probe=[0, 1],
            tolerance=parts.tolerance_of(self._config),
            timeout_s=self._config.weights.timeout_s,
            verify_every=0,
            staged=False,
            lock=self._pool.seats.transfers,
            join=self._join,
            mend=lambda _: self._pool.weed(),
        )

    async def _join(self) -> None:
        """A new weight group where an engine was started again, as ``fleet.py`` makes it."""
        await self._pool.quorum.one_is_there()
        if not self._pool.seats.apart:
            return
        part, num_parts = 0, 1
        while part < num_parts:
            address, port = await self._trainer.meeting([])
            group = self._pool.weight_group(
                transport="gloo", address=address, port=port, timeout_s=self._config.weights.timeout_s / 2, part=part
            )
            await together_as_it_was(
                "join", trainer=partial(self._trainer.connect, group), engines=partial(self._pool.connect, group)
            )
            part, num_parts = part + 1, group.num_parts

    def _make_controller(self, sync: WeightSync) -> Controller:
        config = self._config
        rollout = Rollout(
            Sampler(self._pool, lambda _: ""),
            make_score(config.simulate.score_s, asyncio.sleep),
            decoding=Decoding(
                temperature=config.sampling.temperature, max_tokens=self._costs.longest, stop_token_ids=[0]
            ),
            group_size=config.pipeline.group_size,
            timeout_s=config.pipeline.rollout_timeout_s,
            failure=self._failure,
            seed=self._seed,
            deadlines=self._pool.deadlines,
        )
        return Controller(
            source=Numbers(),
            engines=self._pool,
            trainer=self._trainer,
            rollout=rollout,
            buffer=self._buffer,
            make_batch=self._make_batch,
            sync=sync,
            pacing=parts.make_pacing(config),
            failure=self._failure,
            records=NoRecords(),
            first_step=0,
            before_push=self._transfer,
        )

    async def _transfer(self) -> int:
        """What an update takes while the engines still go on; a round of steps has one."""
        await self._machine.train(self._costs.transfer_s)
        return 0

    async def _make_batch(self, step: int, groups: list[Group]) -> Batch:
        """On the event loop: virtual time stands still for it, and goes on for what passes between two steps."""
        await self._machine.train(self._costs.between_s)
        return make_batch(
            step,
            groups,
            advantage=ADVANTAGES[self._config.advantage.name],
            num_ranks=1,
            max_tokens_per_microbatch=self._costs.longest,
        )

    def _count_lags(self, batch: Batch) -> Counter[int]:
        self._last_lags = lags_of(batch)
        self._held_tokens = self._last_lags.total()
        return self._last_lags
