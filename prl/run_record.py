"""What a run writes while it goes on: a line a step, samples, evaluations, checkpoints, and how it ended.

Invariants:

- Each file gets a step's lines whole or not at all. The totals count what was written, and travel in the checkpoint.
- A checkpoint begins a segment of the journal before the trainer saves, so what is appended meanwhile is not behind it;
  only then are older checkpoints, and the segments that nobody needs any more, removed.
- A disk that takes nothing holds up its writer, the trainer's ranks included, and ends the run after
  ``run.disk_timeout_s``.
- Training stands still while a checkpoint is written, and for how long is stated: in the event, in the next step's
  line, in the summary. Generation goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from prl.chronicle import Chronicle
from prl.config import Config
from prl.controller import Controller, Step
from prl.disk import Disk
from prl.evaluator import Evaluator
from prl.failure import FirstFailure
from prl.hidden import clearer_of
from prl.journal import Journal
from prl.log import get_logger
from prl.recovery import Start
from prl.reporter import Reporter
from prl.run_folder import EVALUATIONS, VERSIONS, RunFolder, Summary, Totals
from prl.settings import to_toml_without_secrets
from prl.timeline import Timeline
from prl.trainer import checkpoint
from prl.trainer.base import Trainer
from prl.versions import versions
from prl.waits import waiting

LARGE_RETRY_S = 15.0
"""Seconds between two attempts at what may fill a disk to the last byte before it fails: others write meanwhile."""
log = get_logger(__name__)


class RunRecord:
    """See the module. Nothing is written before ``open``."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        self._config, self._run_dir = config, run_dir
        self._folder = RunFolder(run_dir)
        self.totals = Totals()
        self.clear = clearer_of(msgspec.to_builtins(config))
        """Takes the secrets of the configuration out of a text."""
        self.timeline = Timeline(is_kept=config.run.timeline, clear=self.clear)
        """What every part of the run tells what it does."""
        self.measured: Callable[[], dict[str, Any] | None] = lambda: None
        """How full it is at a moment; None before there is anything."""
        self._eval_after: float | None = None
        self._damaged: set[Path] = set()
        """Checkpoints that are not what was written, and do not count among those that are kept."""
        self.journal: Journal
        """From ``open`` on."""

    async def open(self, start: Start) -> None:
        """Make the folder, or go on in it behind what ``start`` says is done."""
        await asyncio.to_thread(self._folder.open, to_toml_without_secrets(self._config), start.ledger.step)
        self.totals, self._damaged = start.totals, set(start.skipped)
        self._clock = asyncio.get_running_loop().time
        self._disk = Disk(self._run_dir, self._config.run.disk_timeout_s)
        self.journal = Journal(self._run_dir / "journal", self._disk, start.ledger)
        await self._disk.write(VERSIONS, lambda: self._folder.write_json(VERSIONS, versions()))

    async def watch(self, failure: FirstFailure) -> None:
        """Write the timeline and the gauges until cancelled, if the configuration asks for them."""
        if self._config.run.timeline:
            await Chronicle(self._run_dir, self._disk, self.timeline, self.gauges).run(failure)

    def gauges(self) -> dict[str, Any] | None:
        """What is measured at this moment."""
        return self.measured()

    async def step(self, step: Step) -> None:
        """Count a step and write its lines."""
        number = step.report.step
        self.totals.add(step.report)
        await self._disk.write("metrics.jsonl", lambda: self._folder.write_metrics(step.report))
        if step.batch.with_logprobs:  # as run.samples_every says
            await self._disk.write(
                "samples.jsonl", partial(self._folder.write_samples, number, step.groups, step.batch, step.logprobs)
            )

    async def evaluation(self, line: dict[str, Any]) -> None:
        """Write the line of an evaluation, complete or not."""
        await self._disk.write(EVALUATIONS, lambda: self._folder.write_evaluation(line))

    async def is_evaluated(self, step: int) -> bool:
        """Whether the evaluation of the weights after ``step`` has its line."""
        return await asyncio.to_thread(self._folder.is_evaluated, step)

    def is_due(self, step: int) -> bool:
        """Whether ``run.checkpoint_every`` asks for a checkpoint of ``step``."""
        every = self._config.run.checkpoint_every
        return every > 0 and step % every == 0

    async def checkpoint(self, controller: Controller, trainer: Trainer) -> None:
        """Write a checkpoint of the controller's step; generation goes on.

        Raises:
            DiskError: the disk did not take it for ``run.disk_timeout_s``. Those before are as they were.
        """
        began = self._clock()
        checkpoints, step = self._run_dir / "checkpoints", controller.step_number
        folder = checkpoint.step_folder(checkpoints, step)
        totals = msgspec.structs.replace(self.totals, checkpoints=self.totals.checkpoints + 1)  # it counts itself
        facts = {"controller": controller.state(), "totals": totals, **self.journal.ledger.facts()}
        state: dict[str, Any] = msgspec.to_builtins(facts)
        await self.journal.begin_segment()
        await self._by_trainer(f"the checkpoint of step {step}", "saves", partial(trainer.save, folder, state))
        self.totals.checkpoints += 1
        self._damaged.discard(folder)
        oldest = await asyncio.to_thread(
            partial(checkpoint.keep_newest, checkpoints, self._config.run.keep_checkpoints, damaged=self._damaged)
        )
        await self.journal.forget_before(oldest)
        seconds = self._clock() - began
        controller.reporter.meter.checkpoint_s += seconds
        log.info("checkpoint", step=step, folder=str(folder), training_stood_still_s=round(seconds, 3))

    async def export(self, trainer: Trainer) -> None:
        """Have the weights written for others, to ``export/``. Raises DiskError as ``checkpoint`` does."""
        await self._by_trainer("the export", "exports", partial(trainer.export, self._run_dir / "export"))

    async def _by_trainer(self, what: str, doing: str, write: Callable[[], Awaitable[None]]) -> None:
        """Have the trainer write, again and again while the disk does not take it."""

        async def attempt() -> None:
            with waiting("the trainer", doing):
                await write()

        await self._disk.until_taken(what, attempt, retry_s=LARGE_RETRY_S)

    async def last_evaluation(self, evaluator: Evaluator, version: int) -> None:
        """Evaluate what a run that is done has made, and count that."""
        latest = await evaluator.last(version)
        if latest is not None:
            self._eval_after = latest.reward_mean
            self.totals.eval_is_accuracy &= latest.is_accuracy
        self.totals.evals_incomplete += evaluator.take_incomplete()

    def count_rest(self, reporter: Reporter) -> None:
        """Count what came after the last step's report."""
        mended = reporter.mended()
        self.totals.checkpoint_s += reporter.meter.checkpoint_s
        self.totals.engine_restarts += mended.engine_restarts
        self.totals.trainer_restarts += mended.trainer_restarts

    def summary(self, status: str, *, num_engines: int, error: BaseException | None) -> Summary:
        """How the run ended."""
        return self.totals.summary(
            status,
            num_engines=num_engines,
            eval_after=self._eval_after,
            error=None if error is None else self.clear(f"{type(error).__name__}: {error}"),
        )

    def end(self, summary: Summary) -> None:
        """Write that. Blocking. A disk that takes nothing is raised as OSError, unless the run failed already."""
        try:
            self._folder.write_summary(summary)
        except OSError as failed:
            if summary.error is None:
                raise
            log.warning("how the run ended could not be written", why=str(failed))
