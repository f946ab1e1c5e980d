"""The parts of a run, each made from the configuration and the parts before it, and given nothing else.

Invariants:

- The order is: what is read, the run's place on the disk, the processes, and what joins them. Nothing trains before all
  of it is there.
- What a part needs of one that is made after it is asked for when it is needed: a trainer that is started again wants
  the steps that were done by then, a push wants all processes in one weight group.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from prl import journal, machinery, parts
from prl.config import Config
from prl.controller import Controller
from prl.environments.base import Environment
from prl.evaluate import Evaluation
from prl.evaluator import Evaluate, Evaluator
from prl.failure import FirstFailure
from prl.fleet import Fleet, closed
from prl.gateway.playing import playing
from prl.gauges import Gauges
from prl.overview import Overview
from prl.prompts import PromptSource, changes, open_source
from prl.records import group_of
from prl.recovery import Start, find_start
from prl.rewards.scorer import Scorer
from prl.rollout import Play
from prl.run_record import RunRecord
from prl.sync import WeightSync
from prl.tokenizer import Tokenizer
from prl.trainer.base import Trainer, TrainerReady
from prl.types import Prompt
from prl.waits import waiting

PROBE_TOKENS = 64


class Wired(NamedTuple):
    """What a run consists of once its parts are put together."""

    fleet: Fleet
    sync: WeightSync
    evaluator: Evaluator
    controller: Controller


class Assembly:
    """See the module: ``read``, then ``open``, then ``restore``.

    Args:
        config: the whole configuration.
        model: a folder, or a hub name.
        run_dir: where the run writes.
        scorer: the rewards, not opened.
        environment: what a rollout plays, not opened; None for a single turn.
        record: what the run writes, not opened.
        overview: told of what is there, and of what is begun.
        failure: of the run.
    """

    def __init__(
        self,
        config: Config,
        model: str,
        run_dir: Path,
        *,
        scorer: Scorer,
        environment: Environment | None,
        record: RunRecord,
        overview: Overview,
        failure: FirstFailure,
    ) -> None:
        self._config, self._model, self._run_dir = config, model, run_dir
        self._scorer, self._environment = scorer, environment
        self._record, self._overview, self._failure = record, overview, failure
        self._tokenizer: Tokenizer
        self.source: PromptSource
        """From ``read`` on."""
        self.held_out: list[Prompt]
        """Prompts for evaluations, from then on."""
        self._controller: Controller | None = None

    # ---- what is read ------------------------------------------------------------------------------------------------

    async def read(self, *, resume: bool, accept_changes: bool) -> Start:
        """Read tokenizer and data, and open the run folder where the run begins or goes on.

        Raises:
            DataError: the data is not that of the run that is resumed, and ``accept_changes`` does not say it may be.
        """
        with waiting("tokenizer and data", limit_s=math.inf):
            await asyncio.to_thread(self._read_inputs)
        with waiting("checkpoint and journal", limit_s=math.inf):
            start = await asyncio.to_thread(find_start, self._run_dir, self._config) if resume else Start()
            changed = changes(self.source, start.ledger, accept=accept_changes)
            start.warnings = [*changed, *start.warnings]
            await self._record.open(start)
        return start

    def _read_inputs(self) -> None:
        self._tokenizer = Tokenizer.load(self._model)
        scorer = self._scorer
        self.source = open_source(
            self._config,
            self._tokenizer,
            scorer.required_fields,
            scorer.check_row,
            reads_all_fields=scorer.reads_all_fields,
        )
        self.held_out = self.source.held_out(self._config.eval.num_samples)

    # ---- what is started ---------------------------------------------------------------------------------------------

    async def open(self, stack: AsyncExitStack, resume: Path | None) -> Wired:
        """Open rewards, engines and trainer, the latter two side by side, and put everything together.

        Args:
            stack: closes them.
            resume: the checkpoint that the trainer loads.
        """
        await self._scorer.__aenter__()
        stack.push_async_callback(closed, self._scorer.__aexit__, None, None, None)
        play = await stack.enter_async_context(playing(self._config, self._environment, self._tokenizer))
        transport = await asyncio.to_thread(machinery.transport_of, self._config)
        fleet = self._overview.fleet = Fleet(
            self._config,
            self._model,
            self._run_dir,
            transport=transport,
            resume=resume,
            replay=self._replay,
            timeline=self._record.timeline,
        )
        stack.push_async_callback(fleet.close)
        self._scorer.hold_while_paused(fleet.engines.deadlines)
        self._overview.begins(f"starting {machinery.describe(self._config)}")
        wired = self._wire(fleet, await fleet.open(), play)
        self._controller = self._overview.controller = wired.controller
        return wired

    # ---- what joins them ---------------------------------------------------------------------------------------------

    def _wire(self, fleet: Fleet, ready: TrainerReady, play: Play | None) -> Wired:
        config, scorer, engines, records = self._config, self._scorer, fleet.engines, self._record.journal
        rollout = parts.make_rollout(
            config, engines, scorer, self._tokenizer, self._failure, record=records.append, play=play
        )
        evaluator = Evaluator(
            self._shown(parts.make_evaluate(config, self.held_out, rollout, scorer, self._tokenizer.stop_token_ids)),
            config=config.eval,
            record=self._record.evaluation,
            failure=self._failure,
            deadlines=engines.deadlines,
        )
        sync = self._make_sync(fleet)
        controller = Controller(
            source=self.source,
            engines=engines,
            trainer=fleet.trainer,
            rollout=rollout,
            buffer=parts.make_buffer(config),
            make_batch=parts.batch_maker(config),
            sync=sync,
            pacing=parts.make_pacing(config),
            failure=self._failure,
            records=records,
            first_step=ready.step,
            judges=scorer,
            refill=parts.make_refill(config),
            before_push=evaluator.before_push,
            measure=self.source.measure,
            timeline=self._record.timeline,
        )
        self._record.measured = Gauges(controller, engines, rollout)
        return Wired(fleet, sync, evaluator, controller)

    def _shown(self, evaluate: Evaluate) -> Evaluate:
        """The same, on the timeline."""
        timeline = self._record.timeline

        async def shown(version: int, on_answer: Callable[[], None]) -> Evaluation:
            timeline.enter("evaluation", "evaluating", version=version)
            try:
                return await evaluate(version, on_answer)
            finally:
                timeline.leave("evaluation")

        return shown

    def _make_sync(self, fleet: Fleet) -> WeightSync:
        async def join() -> None:
            """Bring engines and trainer together before a push; at the first one this is seen to take its time."""
            is_first = sync.version < 0
            if is_first:
                self._overview.begins("joining engines and trainer")
            await fleet.join()
            if is_first:
                self._overview.stage("sending the first weights")

        sync = parts.make_sync(
            self._config,
            fleet.trainer,
            fleet.engines,
            transport=fleet.transport,
            manifest=fleet.manifest,
            probe=self._probe(),
            join=join,
            mend=fleet.mend,
            record=self._record.journal.append,
        )
        return sync

    def _probe(self) -> list[int]:
        """The fixed tokens on which engines and trainer are compared: a prompt of the data."""
        cursor = self.source.cursor
        prompt = self.source.next()
        self.source.seek(cursor)
        return prompt.token_ids[:PROBE_TOKENS]

    # ---- steps that are done again -----------------------------------------------------------------------------------

    async def restore(self, controller: Controller, start: Start) -> None:
        """Do again the steps that the trainer's checkpoint lacks, and go on with the prompts that were under way."""
        controller.restore(start.ledger.cursor, list(start.ledger.open.values()))
        for batch in start.batches:
            self._overview.begins(f"training step {controller.step_number + 1} again, from the journal")
            step = await controller.train_again(batch)
            if self._record.totals.steps < step.report.step:  # it was done and not recorded any more
                await self._record.step(step)

    async def _replay(self, trainer: Trainer, first: int) -> None:
        """Do the steps from ``first`` on again that this process has done, on the journal's groups.

        After a resume the journal knows more steps than that: they are still to be done.
        """
        if self._controller is None:
            return
        await self._record.journal.flush()
        history = await asyncio.to_thread(journal.read, self._run_dir / "journal", resume_from=first)
        make_batch = parts.batch_maker(self._config)
        for step in range(first, self._controller.step_number):
            groups = [group_of(entry, self._tokenizer.decode) for entry in history.batches[step]]
            await trainer.train(await make_batch(step, groups))
