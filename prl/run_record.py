"""What a run writes while it goes on: a line a step, samples, evaluations, checkpoints, and how it ended.

Invariants:

- Each file gets a step's lines whole or not at all. The totals count what was written, and travel in the checkpoint.
- A checkpoint begins a segment of the journal before the trainer saves, so what is appended meanwhile is not behind it;
  only then are older checkpoints, and the segments that nobody needs any more, removed.
- A disk that takes nothing holds up its writer, and ends the run after ``run.disk_timeout_s``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
from prl.hidden import cleared, secrets_of
from prl.journal import Journal
from prl.log import get_logger
from prl.metrics import Mended
from prl.recovery import Start
from prl.run_folder import EVALUATIONS, VERSIONS, RunFolder, Summary, Totals
from prl.settings import to_toml_without_secrets
from prl.timeline import Timeline
from prl.trainer import checkpoint
from prl.trainer.base import Trainer
from prl.versions import versions
from prl.waits import waiting

log = get_logger(__name__)


class RunRecord:
    """See the module. Nothing is written before ``open``."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        self._config, self._run_dir = config, run_dir
        self._folder = RunFolder(run_dir)
        self.totals = Totals()
        secrets = secrets_of(msgspec.to_builtins(config))
        self.timeline = Timeline(is_kept=config.run.timeline, clear=lambda text: cleared(text, secrets))
        """What every part of the run tells what it does."""
        self.measured: Callable[[], dict[str, Any] | None] = lambda: None
        """How full it is at a moment; None before there is anything."""
        self._eval_after: float | None = None
        self.journal: Journal
        """From ``open`` on."""

    async def open(self, start: Start) -> None:
        """Make the folder, or go on in it behind what ``start`` says is done."""
        await asyncio.to_thread(self._folder.open, to_toml_without_secrets(self._config), start.ledger.step)
        self.totals = start.totals
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
        """Write a checkpoint of the controller's step; generation goes on."""
        checkpoints, step = self._run_dir / "checkpoints", controller.step_number
        folder = checkpoint.step_folder(checkpoints, step)
        state = {"controller": controller.state(), "totals": self.totals, **self.journal.ledger.facts()}
        await self.journal.begin_segment()
        with waiting("the trainer", "saves"):
            await trainer.save(folder, msgspec.to_builtins(state))
        log.info("checkpoint", step=step, folder=str(folder))
        oldest = await asyncio.to_thread(checkpoint.keep_newest, checkpoints, self._config.run.keep_checkpoints)
        await self.journal.forget_before(oldest)

    async def last_evaluation(self, evaluator: Evaluator, version: int) -> None:
        """Evaluate what a run that is done has made, and count that."""
        latest = await evaluator.last(version)
        self._eval_after = None if latest is None else latest.reward_mean
        self.totals.evals_incomplete += evaluator.take_incomplete()

    def summary(self, status: str, *, mended: Mended, num_engines: int, error: BaseException | None) -> Summary:
        """How the run ended; ``mended`` is what was made good after the last step's report."""
        self.totals.engine_restarts += mended.engine_restarts
        self.totals.trainer_restarts += mended.trainer_restarts
        return self.totals.summary(
            status,
            num_engines=num_engines,
            eval_after=self._eval_after,
            error=None if error is None else f"{type(error).__name__}: {error}",
        )

    def end(self, summary: Summary) -> None:
        """Write that. Blocking."""
        self._folder.write_summary(summary)
