"""The composition root and the embedding API.

    async with prl.Pipeline(prl.load_config("configs/math.toml")) as pipeline:
        for _ in range(100):
            report = await pipeline.step()

Entering starts engines and trainer side by side, pushes the first weights and proves them, evaluates, and starts the
loops. Leaving without an exception writes a checkpoint and an export and evaluates again; leaving at all ends every
process and writes ``summary.json``. The same path serves a fresh run and a resumed one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from prl import parts
from prl.assembly import Assembly, Wired
from prl.blocked import frozen_heap
from prl.check import cross_check
from prl.claim import claim
from prl.config import Config
from prl.control.routes import routes_of
from prl.engines.seat import EngineStatus
from prl.errors import PrlError, RefusedError
from prl.evaluate import Evaluation
from prl.failure import FirstFailure, running
from prl.figures import Snapshot
from prl.fleet import Fleet
from prl.log import Console, configure, get_logger
from prl.metrics import StepReport
from prl.models import resolve_model
from prl.onlookers import Onlookers
from prl.overview import Overview
from prl.recovery import Start
from prl.resumed_config import check_changes
from prl.run_folder import Summary
from prl.run_record import RunRecord
from prl.status import Status
from prl.trackers.base import check_trackers
from prl.watchdog import Why

log = get_logger(__name__)


class Pipeline:
    """One run. Enter it, ``await step()`` as often as you like, leave it."""

    def __init__(
        self,
        config: Config,
        *,
        run_dir: Path | str | None = None,
        resume: bool = False,
        accept_changes: bool = False,
        on_stage: Callable[[str], None] = lambda _: None,
        on_page: Callable[[str], None] | None = None,
        console: Console | None = None,
    ) -> None:
        """Check the configuration and take the run folder; start nothing.

        Args:
            config: the whole configuration.
            run_dir: where the run goes; absent, the next free folder ``runs/NAME``.
            resume: continue the run in that folder from its newest complete checkpoint.
            accept_changes: resume also where the configuration describes another run than the one in that folder.
            on_stage: told, in a few words, what is being waited for while the pipeline starts and ends.
            on_page: told where the page of the run is, such as ``http://127.0.0.1:40213/``, once that can be opened;
                absent, no page is served, whatever ``[view]`` says.
            console: where warnings are shown; absent, they go to the standard library's logger ``prl``.

        Raises:
            ConfigError: the configuration is not usable, or the run folder is not, or another process has it.
        """
        cross_check(config)
        self.config = config
        model = resolve_model(config.model)
        self._scorer = parts.make_scorer(config)
        environment = parts.environment_of(config)
        check_trackers(config.trackers)
        self._claim = claim(config.run.name, None if run_dir is None else Path(run_dir), resume=resume)
        self.run_dir = self._claim.path
        self.summary: Summary | None = None
        """How the run ended; set on leaving."""
        self._accept_changes = accept_changes
        self._resume, self._console = resume, console
        self._overview = Overview(config, self.run_dir, on_stage)
        self._record = RunRecord(config, self.run_dir)
        self._governor = parts.make_governor(config)
        self._onlookers = Onlookers(config, self.run_dir, on_page)
        self._failure = FirstFailure()
        self._assembly = Assembly(
            config,
            model,
            self.run_dir,
            scorer=self._scorer,
            environment=environment,
            record=self._record,
            overview=self._overview,
            failure=self._failure,
        )
        self._stack = AsyncExitStack()
        self._loops = AsyncExitStack()
        self._wired: Wired | None = None
        self._run_is_open = self._trains = False

    # ---- entering ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start everything, or raise what went wrong with nothing left running."""
        with self._overview.doing("the start"):
            try:
                watchdog = self._failure.guard("watchdog", self._overview.watch())
                await self._stack.enter_async_context(running(watchdog))
                with self._failure.interrupts():
                    await self._start()
            except BaseException as error:
                await self._leave(error)
                raise
        return self

    async def _start(self) -> None:
        start = await self._open_folder()
        await self._stack.enter_async_context(running(self._record.watch(self._failure)))
        self._wired = await self._assembly.open(self._stack, start.checkpoint)
        _, sync, evaluator, controller = self._wired
        await self._loops.enter_async_context(running(controller.keep()))
        await self._assembly.restore(controller, start)
        await sync.push(controller.step_number)
        await self._stack.enter_async_context(evaluator.open())
        if controller.step_number == 0 and self._assembly.held_out:
            before, totals = await self.evaluate(), self._record.totals
            totals.eval_before, totals.eval_is_accuracy = before.reward_mean, before.is_accuracy
        self._stack.enter_context(frozen_heap())
        await self._loops.enter_async_context(running(self._record.journal.run(self._failure)))
        if self._governor is not None:
            controller.resize(self._governor.slots)
        await self._loops.enter_async_context(running(controller.run()))
        controller.reporter.meter.restart()
        step = controller.step_number
        begun = step - controller.steps_into_round  # weights from within a round are evaluated at its end, as ever
        evaluator.resumed(begun, is_recorded=begun < step or await self._record.is_evaluated(step))
        self._overview.stage.quietly("training")
        self._trains = True
        log.info("started", step=step, run_dir=str(self.run_dir))

    async def _open_folder(self) -> Start:
        """Read what there is to read; from here on the run can be asked, and what it says is kept."""
        changed: list[str] = []
        if self._resume:
            changed = await asyncio.to_thread(check_changes, self.run_dir, self.config, accept=self._accept_changes)
        self._overview.begins("reading tokenizer and data")
        self._onlookers.bind(self._stack, routes_of(self), self.snapshot)
        start = await self._assembly.read(resume=self._resume, accept_changes=self._accept_changes)
        self._stack.enter_context(configure(self.run_dir, self._console, self._record.clear))
        self._run_is_open = True
        await self._onlookers.open(self._stack, start.ledger.step)
        for warning in (*self._assembly.source.statistics().warnings, *changed):
            log.warning(warning)
        start.warn()
        await self._record.journal.begin_segment()
        return start

    # ---- running -----------------------------------------------------------------------------------------------------

    @property
    def step_number(self) -> int:
        """Completed optimiser steps, those before a resume included."""
        return self._entered.controller.step_number

    @property
    def trainer_restarts(self) -> int:
        """Times that the trainer died and was started again since the pipeline was entered."""
        return self._entered.fleet.trainer.num_restarts

    @property
    def _entered(self) -> Wired:
        if self._wired is None:
            raise PrlError("the pipeline is not entered: use it as `async with Pipeline(config) as pipeline:`")
        return self._wired

    async def step(self) -> StepReport:
        """Take a batch, train on it, push the new weights, and report.

        Raises:
            Exception: the first failure of any part of the run, as it was.
        """
        fleet, sync, evaluator, controller = self._entered
        with self._overview.doing(f"step {controller.step_number + 1}", aside=True):
            step = await controller.step()
            evaluator.pushed(sync.version)
            slots = parts.slots_after(self.config, self._governor, step.report, fleet.engines.num_engines)
            if slots is not None:
                controller.resize(slots)
            with self._failure.interrupts():
                self._onlookers.add(step.report)
                await self._record.step(step)
                if self._record.is_due(self.step_number):
                    await self.save()
        return step.report

    @property
    def evaluation(self) -> Evaluation | None:
        """The latest complete evaluation."""
        return None if self._wired is None else self._wired.evaluator.latest

    async def evaluate(self) -> Evaluation:
        """Answer the held-out prompts with the weights that the engines serve. No step may run meanwhile.

        Raises:
            PrlError: it took longer than ``eval.timeout_s``, or nothing could be judged.
        """
        wired = self._entered
        await wired.sync.prove()
        with self._overview.while_doing(f"evaluating {len(self._assembly.held_out)} held-out prompts"):
            return await wired.evaluator.evaluate(wired.sync.version)

    async def save(self) -> None:
        """Write a checkpoint of this step; generation goes on."""
        fleet, _, _, controller = self._entered
        with self._overview.doing(f"checkpoint of step {self.step_number}"):
            await self._record.checkpoint(controller, fleet.trainer)

    # ---- asked and steered, at any moment ----------------------------------------------------------------------------

    def why(self) -> Why:
        """Who waits for whom now, at any moment from entering to having left."""
        return self._overview.why()

    async def dump_stacks(self) -> str:
        """Write that, and the stacks of every process of the run, to a file in ``stalls/``; says where."""
        return await self._overview.dump_stacks()

    def status(self) -> Status:
        """How the run is at this moment, also while it starts and ends."""
        return self._overview.status()

    def snapshot(self) -> Snapshot:
        """What a monitoring system is told at this moment; see ``prl/control/prometheus.py``."""
        return self._onlookers.snapshot(self.status(), self.evaluation)

    def engines(self) -> list[EngineStatus]:
        """Each engine: how far it is, what it serves, what it did; none before they are started."""
        return self._overview.engines()

    async def add_engine(self, server: str | None = None) -> str:
        """Start another engine beside those that serve, or open the ``server`` at an address; its name: ``engine-2``.

        It starts in the background, receives the current weights, and serves then: ``engines()`` says how far it is.
        It is tried again like one that died. What it costs the others is the start's share of the machine, and a new
        weight group at the next push.

        Raises:
            RefusedError: the machine has no room for it, there is that server already, or the run does not train (yet,
                or any more).
        """
        return await self._steered().add(server)

    async def remove_engine(self, name: str, *, force: bool = False) -> str:
        """Take an engine out: ``engine-1``, or just ``1``. Returns its name.

        It gets no stream from now on, and leaves in the background as soon as no weight update is under way; its
        streams go on elsewhere, behind their tokens.

        Raises:
            NotFoundError: there is no such engine.
            RefusedError: no other engine could serve; or fewer than ``engine.min_engines`` would, and ``force`` does
                not insist; or the run does not train (yet, or any more).
        """
        return self._steered().remove(name, force=force)

    def _steered(self) -> Fleet:
        if self._wired is None or not self._trains:
            raise RefusedError(
                f"the run does not train now, and its engines stay who they are: {self._overview.stage.text}"
            )
        return self._wired.fleet

    # ---- leaving -----------------------------------------------------------------------------------------------------

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish (unless there was an error), end every process, and write the summary."""
        self._trains = False
        with self._overview.doing("the end"):
            try:
                if error is None:
                    await self._finish()
            except BaseException as failed:
                error = failed
                raise
            finally:
                await self._leave(error)

    async def _finish(self) -> None:
        """With the loops at rest: a checkpoint, an export, and the last evaluation (of a run that is done).

        Saved first: an evaluation that fails or is cut off must not cost what was trained.
        """
        _, sync, evaluator, _ = self._entered
        is_complete = sync.version == self.step_number
        with self._failure.interrupts():
            await self._loops.aclose()
            if not is_complete or not self._done():
                self._record.totals.evals_incomplete += await evaluator.before_push()
        with self._failure.interrupts():
            if not is_complete:  # a conventional round that was left midway
                await sync.push(self.step_number)
            await sync.prove()
            await self._keep()

    async def _keep(self) -> None:
        self._overview.begins("saving")
        for warning in self._assembly.source.statistics().warnings:
            log.info("data", what=warning)
        for name, statistics in self._scorer.statistics().items():
            log.info("reward", name=name, **msgspec.to_builtins(statistics))
        await self.save()
        fleet, sync, evaluator, _ = self._entered
        await self._record.export(fleet.trainer)
        if self._done() and self._assembly.held_out:
            self._overview.begins(f"evaluating {len(self._assembly.held_out)} held-out prompts")
            await self._record.last_evaluation(evaluator, sync.version)

    async def _leave(self, error: BaseException | None) -> None:
        """End the loops and every process, whatever happened, and say how the run ended."""
        if error is not None and self._run_is_open:
            log.info("failed", exc_info=error)  # for the file; whoever called shows the exception
        async with AsyncExitStack() as ending:  # each of these is done, also where one before it fails
            ending.callback(self._claim.release)
            ending.push_async_callback(self._close_trackers)
            ending.callback(self._summarise, error)
            ending.push_async_callback(self._stack.aclose)
            ending.push_async_callback(self._loops.aclose)
            self._overview.begins("ending the processes")

    def _summarise(self, error: BaseException | None) -> None:
        status = "failed" if error is not None else "done" if self._done() else "stopped"
        if self._wired is not None:
            self._record.count_rest(self._wired.controller.reporter)
        self.summary = self._record.summary(status, num_engines=self._overview.num_engines, error=error)
        if self._run_is_open:
            self._record.end(self.summary)

    async def _close_trackers(self) -> None:
        if self.config.trackers:
            self._overview.begins("sending the last points to the trackers")
        await self._onlookers.close(self._record.totals.steps)

    def _done(self) -> bool:
        return self._wired is not None and self.step_number >= self.config.run.num_steps
