"""The map: how a prompt becomes a new version of the weights while the engines go on sampling.

            source           engines (pool)          scorer              buffer                trainer
    admit ---prompt---> rollout ---chunks---> fold ---score---> finish | drop
      ^                                                           |
      |                                              step: take --+--> batch --> train --> v+1
      |                                                                                     |
      +------------------- release <--- engines serve v+1 <--- push (``update_ways.py``) ---+

    loop      consumes               waits for                 is unblocked by             produces
    admit     prompts, free slots    a free slot               release, drop               rollout tasks
    rollout   one prompt             its streams and scores    the engines, the rewards    a group, or a drop
    step      finished groups        the next batch's groups   finish                      version v+1, a report
    watch     engines, trainer       the end of any of them    a death                     another, or the run's failure
    rejoin    restarted engines      one that is ready         its start                   its weights, and it serves
    prove     a version that serves  its push                  the engines' answers        its proof, or a failure

Every loop is a task of one group; what fails first is raised from ``step()`` as it was (``failure.py``). How far the
lag can go is proven in ``buffer.py``. A push waits, within a bound, for the evaluation of the version before it
(``before_push``, ``evaluator.py``). Who waits for whom is stated as it happens (``waits.py``), and watched from outside
(``watchdog.py``). This file knows neither torch nor vLLM.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import msgspec

from prl.buffer import Buffer, BufferStatistics, Ticket
from prl.engines.pool import EnginePool
from prl.errors import EngineDeadError, PrlError, TrainerError
from prl.failure import FirstFailure, failures_to
from prl.lag import lag_of
from prl.ledger import Records
from prl.log import get_logger
from prl.metrics import StepReport
from prl.open_prompts import OpenPrompts, Source
from prl.records import Entry, Measured, group_of
from prl.refill import Refill
from prl.reporter import Judges, Reporter
from prl.rollout import Done, Outcome, Rollout
from prl.sync import WeightSync
from prl.timeline import State, Timeline
from prl.trainer.base import Trainer, TrainReport
from prl.trainer.kept import TRAINER_LANES
from prl.types import Batch, Group, by_turn
from prl.update_ways import PushReport
from prl.waits import Wait, loop, waiting

log = get_logger(__name__)


class Pacing(msgspec.Struct, frozen=True, kw_only=True):
    """How generation and training take turns."""

    groups_per_step: int
    steps_per_round: int = 1
    """Batches taken at once and optimiser steps between two pushes: 1, or G of the conventional mode."""
    max_consecutive_drops: int = 100


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What one step trained, and its numbers."""

    report: StepReport
    groups: list[Group]
    batch: Batch
    """What was made of the groups."""
    logprobs: list[bytes]
    """As ``TrainReport.logprobs``."""


class Controller:
    """Runs the loops and takes the steps. ``run()`` is a task of the caller's group; ``step()`` is the clock."""

    def __init__(
        self,
        *,
        source: Source,
        engines: EnginePool,
        trainer: Trainer,
        rollout: Rollout,
        buffer: Buffer,
        make_batch: Callable[[int, list[Group]], Awaitable[Batch]],
        sync: WeightSync,
        pacing: Pacing,
        failure: FirstFailure,
        records: Records,
        first_step: int,
        judges: Judges | None = None,
        refill: Refill | None = None,
        before_push: Callable[[], Awaitable[int]] | None = None,
        measure: Callable[[Group], Measured | None] = lambda _: None,
        timeline: Timeline | None = None,
    ) -> None:
        self._timeline = timeline or Timeline()
        self._engines, self._trainer = engines, trainer
        self._rollout, self._buffer, self._make_batch, self._sync = rollout, buffer, make_batch, sync
        self._pacing, self._failure, self._refill = pacing, failure, refill
        self._before_push = before_push
        self._prompts = OpenPrompts(source, records, measure)
        self.step_number = first_step
        """Completed optimiser steps."""
        self._round: deque[tuple[Ticket, Group]] = deque()
        self._consecutive_drops = 0
        self.waits_for_batch = False
        """Whether the trainer has nothing to train on."""
        self._weights = asyncio.Lock()
        self._states: dict[str, Wait | None] = {}
        """What the loops wait for that others may wait for in turn."""
        self._clock = asyncio.get_running_loop().time
        self.reporter = Reporter(
            self._clock,
            engines=engines,
            trainer=trainer,
            rollout=rollout,
            judges=judges,
            verified_gap=lambda: sync.gap_mean,
        )

    # ---- the loops ---------------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Start again what dies and bring it up to date, until cancelled; from when engines and trainer are open."""
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._failure.guard("engine watch", self._watch_engines()))
            loops.create_task(self._failure.guard("trainer watch", self._watch_trainer()))
            loops.create_task(self._failure.guard("rejoin", self._rejoin()))
            loops.create_task(self._failure.guard("prove", self._prove()))

    async def run(self) -> None:
        """Admit until cancelled, once the first weights serve.

        A run that goes on in the middle of a round trains the rest of it on the round's own data: until its push no
        prompt takes the slots of the round's steps that are done, so rounds begin where they do in a run of one part.
        """
        self._buffer.hold(self._pacing.groups_per_step * self.steps_into_round)
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._failure.guard("admit", self._admit()))

    async def _admit(self) -> None:
        async with asyncio.TaskGroup() as rollouts:
            with failures_to(self._failure.set, "the admit loop"), loop("admit") as self._states["admit"]:
                while True:
                    await self._prompts.ready()
                    with waiting("admit", "a free slot"):
                        ticket = await self._buffer.admit()
                    entry = self._prompts.admit(ticket)
                    if entry.scored is None:
                        rollouts.create_task(self._roll_out(ticket, entry))
                    else:
                        self._buffer.finish(ticket, group_of(entry, self._rollout.sampler.decode))
                    await asyncio.sleep(0)  # a whole batch of requests at once would hold up the event loop

    async def _roll_out(self, ticket: Ticket, entry: Entry) -> None:
        """One prompt to its outcome; whatever else happens is the run's failure."""
        prompt = entry.prompt
        with failures_to(self._failure.set, f"the rollout of prompt {prompt.id}"):
            ended = partial(self._buffer.stream_ended, ticket)
            self._settle(ticket, await self._rollout(prompt, entry.members, ended))

    def _settle(self, ticket: Ticket, outcome: Outcome) -> None:
        """The group waits in the buffer, or its slot is refilled; too many drops in a row end the run."""
        if isinstance(outcome, Done):
            self._consecutive_drops = 0
            self._prompts.measure(outcome.group)
            if self._refill is None or not self._refill.wants_another(outcome.group):
                self._prompts.scored(ticket, outcome)
                self._buffer.finish(ticket, outcome.group)
            else:
                self._rollout.members_dropped["zero_variance"] += len(outcome.group.completions)
                self._drop(ticket, "zero_variance")
            return
        log.warning("rollout dropped", prompt=self._prompts[ticket].id, reason=outcome.reason, message=outcome.message)
        self._consecutive_drops += 1
        self._drop(ticket, outcome.reason)
        if self._consecutive_drops >= self._pacing.max_consecutive_drops:
            message = f"{self._consecutive_drops} rollouts in a row came to nothing; the last: {outcome.message}"
            self._failure.set(PrlError(message))

    def _drop(self, ticket: Ticket, reason: str) -> None:
        """The prompt is done with and its slot is free."""
        self._prompts.left(ticket, reason)
        self._buffer.drop(ticket)

    async def _watch_engines(self) -> None:
        with loop("engine watch", "a death"):
            raise EngineDeadError(await self._engines.failed())

    async def _watch_trainer(self) -> None:
        with loop("trainer watch", "a death"):
            raise TrainerError(await self._trainer.failed())

    async def _rejoin(self) -> None:
        """Bring engines that were started again up to date, also while no step can end for want of them."""
        seats = self._engines.seats
        with loop("rejoin", "an engine that was started again") as self._states["rejoin"]:
            while True:
                await seats.newcomer()
                async with self._weights:
                    if self._sync.version == self.step_number and seats.apart:
                        await self._sync.push(self._sync.version)
                        continue
                    changed = seats.changed
                await changed.wait()  # a conventional round goes on: its end pushes, and they load; or others change

    async def _prove(self) -> None:
        """Prove each version while the engines sample with it and the trainer learns from earlier ones."""
        with loop("prove", "a push"):
            while True:
                await self._sync.unproven()
                await self._sync.prove()

    # ---- the step ----------------------------------------------------------------------------------------------------

    async def step(self) -> Step:
        """Take a batch, train on it, push the new version, release its slots, report.

        A step that does not complete ends the run: its groups are taken, and who holds which weights is unknown.
        """
        try:
            with self._failure.interrupts():
                return await self._step()
        except BaseException as error:
            interrupted = PrlError(f"step {self.step_number} was cancelled midway, so the run cannot go on; resume it")
            self._failure.set(error if isinstance(error, Exception) else interrupted)
            raise

    async def _step(self) -> Step:
        taken = await self._take()
        groups = [group for _, group in taken]
        async with self._holding_weights():
            with self._doing("waiting", "the proof of the weights that sampled the batch"):
                await self._proof_of(groups)
            trained, batch = await self._train(groups)
            self._prompts.trained(trained.step, [ticket for ticket, _ in taken])
            pushed = await self._push_at_end_of_round()
        report = self.reporter.of_step(groups, lag_of(batch), trained, pushed)
        return Step(report=report, groups=groups, batch=batch, logprobs=trained.logprobs)

    async def _take(self) -> list[tuple[Ticket, Group]]:
        """The groups of one step; a round of batches is taken as one."""
        size = self._pacing.groups_per_step
        if not self._round:
            waits_since, count = self._clock(), self._num_left_in_round()
            self.waits_for_batch = True
            number = self.step_number + 1
            try:
                with (
                    waiting(f"trainer waits for batch {number}", on=lambda: self._missing(count)),
                    self._doing("waiting", "the next batch", step=number),
                ):
                    self._round.extend(await self._buffer.take(count))
            finally:
                self.waits_for_batch = False
            self.reporter.meter.wait_batch_s = self._clock() - waits_since
            if self._refill is not None:
                self._refill.start_round()
        return [self._round.popleft() for _ in range(size)]

    def _missing(self, count: int) -> list[Wait | None]:
        """What keeps the next ``count`` groups from being there: rollouts, or who must bring their engines back."""
        late = self._buffer.waiting_for(count)
        rollouts = [self._rollout.under_way.get(self._prompts[ticket].id) for ticket in late]
        rejoin = [self._states.get("rejoin")] if self._weights.locked() else []
        admit = [] if late else [self._states.get("admit")]
        return rejoin or [*rollouts, *admit]

    @asynccontextmanager
    async def _holding_weights(self) -> AsyncIterator[None]:
        """Nobody else trains or pushes meanwhile."""
        with waiting("another weight update", on=lambda: [self._states.get("rejoin")]):
            await self._weights.acquire()
        try:
            yield
        finally:
            self._weights.release()

    async def _proof_of(self, groups: list[Group]) -> None:
        """Nothing is trained on tokens of weights that are not proven; most batches were complete before the push."""
        completions = [completion for group in groups for completion in group.completions]
        newest = max(turn[-1] for each in completions for turn in by_turn(each.turns, each.versions))
        if newest == self._sync.version and not self._sync.is_proven:
            await self._sync.prove()

    async def _train(self, groups: list[Group]) -> tuple[TrainReport, Batch]:
        number = self.step_number + 1
        with waiting("the batch", "is packed"), self._doing("waiting", "the batch is packed", step=number):
            batch = await self._make_batch(self.step_number, groups)
        with waiting("the trainer", f"step {number}"), self._doing("training", step=number):
            trained = await self._trainer.train(batch)
        if trained.skipped:
            log.warning("step skipped: its loss or gradient is not finite", step=self.step_number)
        self.step_number += 1
        return trained, batch

    async def _push_at_end_of_round(self) -> PushReport | None:
        """Push, then release: a slot is free only when the weights trained on it serve."""
        if self._round:
            return None
        if self._before_push is not None:
            waits_since = self._clock()
            with self._doing("waiting", "the evaluation of the version before"):
                self.reporter.meter.evals_incomplete = await self._before_push()
            self.reporter.meter.eval_block_s = self._clock() - waits_since
        with self._doing("publishing", "the engines take the new weights", version=self.step_number):
            pushed = await self._sync.push(self.step_number)
        log.info("pushed", version=pushed.version, pause_s=pushed.pause_s, verify_gap_before=self._sync.verify_gap)
        self._buffer.release(self._pacing.groups_per_step * self._pacing.steps_per_round)
        return pushed

    @contextmanager
    def _doing(
        self, state: State, why: str | None = None, *, step: int | None = None, version: int | None = None
    ) -> Iterator[None]:
        """The step is this far; ``why`` is also what the trainer waits for, while it does nothing itself."""
        with (
            self._timeline.because(TRAINER_LANES, why),
            self._timeline.during("controller", state, why, step=step, version=version),
        ):
            yield

    @property
    def steps_into_round(self) -> int:
        """Steps done of the round under way, which began at a multiple of G; 0 in pipeline mode."""
        return self.step_number % self._pacing.steps_per_round

    def _num_left_in_round(self) -> int:
        """Groups that the steps of the round need which are not done."""
        return self._pacing.groups_per_step * (self._pacing.steps_per_round - self.steps_into_round)

    # ---- state, and going on from one --------------------------------------------------------------------------------

    async def train_again(self, entries: list[Entry]) -> Step:
        """Do a step of the journal again, on the groups it was done on; no engine is asked. Before ``run`` only."""
        groups = [group_of(entry, self._rollout.sampler.decode) for entry in entries]
        with self._timeline.because(TRAINER_LANES, "again, from the journal"):
            trained, batch = await self._train(groups)
        report = self.reporter.of_step_again(groups, lag_of(batch), trained)
        return Step(report=report, groups=groups, batch=batch, logprobs=trained.logprobs)

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs to go on; see ``OpenPrompts.state``."""
        return self._prompts.state()

    def restore(self, cursor: int, entries: Iterable[Entry]) -> None:
        """Go on from there: prompts that were open are admitted first, in this order. Before ``run`` only."""
        self._prompts.restore(cursor, entries)

    @property
    def version(self) -> int:
        """The version of the weights that the engines serve; -1 before the first push."""
        return self._sync.version

    def slots(self) -> BufferStatistics:
        """How the slots are used."""
        return self._buffer.statistics()

    def resize(self, num_slots: int) -> None:
        """Have so many slots from now on; see ``Buffer.resize``."""
        self._buffer.resize(num_slots)
