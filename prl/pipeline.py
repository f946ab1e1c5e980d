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
import gc
import math
import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from prl import journal, parts
from prl.chain import Waiting
from prl.check import cross_check
from prl.claim import claim
from prl.config import Config
from prl.control.routes import routes_of
from prl.control.server import ControlServer
from prl.controller import Controller, Step
from prl.disk import Disk
from prl.engines.seat import EngineStatus
from prl.errors import PrlError, RefusedError
from prl.evaluate import Evaluation
from prl.evaluator import Evaluator
from prl.failure import FirstFailure, running
from prl.fleet import Fleet, closed
from prl.gateway.playing import playing
from prl.journal import Journal
from prl.ledger import group_of
from prl.log import Console, configure, get_logger
from prl.metrics import StepReport
from prl.models import resolve_model
from prl.prompts import PromptSource, changes, open_source
from prl.recovery import Start, find_start
from prl.resumed_config import check_changes
from prl.rollout import Play
from prl.run_folder import EVALUATIONS, RunFolder, Summary, Totals
from prl.settings import to_toml_without_secrets
from prl.status import Stage, Status, TrainerStatus
from prl.tokenizer import Tokenizer
from prl.trainer import checkpoint
from prl.trainer.base import Trainer, TrainerReady
from prl.waits import Waits, waiting
from prl.watchdog import Watchdog, Why

PROBE_TOKENS = 64

log = get_logger(__name__)


class Wired(NamedTuple):
    """What a run consists of once its parts are put together."""

    controller: Controller
    evaluator: Evaluator
    fleet: Fleet


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
        console: Console | None = None,
    ) -> None:
        """Check the configuration and take the run folder; start nothing.

        Args:
            config: the whole configuration.
            run_dir: where the run goes; absent, the next free folder ``runs/NAME``.
            resume: continue the run in that folder from its newest complete checkpoint.
            accept_changes: resume also where the configuration describes another run than the one in that folder.
            on_stage: told, in a few words, what is being waited for while the pipeline starts and ends.
            console: where warnings are shown; absent, they go to the standard library's logger ``prl``.

        Raises:
            ConfigError: the configuration is not usable, or the run folder is not, or another process has it.
        """
        cross_check(config)
        self.config = config
        self._model = resolve_model(config.model)
        self._scorer = parts.make_scorer(config)
        self._environment = parts.environment_of(config)
        self._claim = claim(config.run.name, None if run_dir is None else Path(run_dir), resume=resume)
        self.run_dir = self._claim.path
        self.summary: Summary | None = None
        """How the run ended; set on leaving."""
        self._accept_changes = accept_changes
        self._resume, self._on_stage, self._console = resume, Stage(on_stage), console
        self._folder = RunFolder(self.run_dir)
        self._failure = FirstFailure()
        self._totals = Totals()
        self._stack = AsyncExitStack()
        self._loops = AsyncExitStack()
        self._waits = Waits()
        self._control = ControlServer(config.control, self.run_dir, routes_of(self))
        self._fleet: Fleet | None = None
        self._wired: Wired | None = None
        self._eval_after: float | None = None
        self._run_is_open = self._trains = False

    # ---- who waits for whom ------------------------------------------------------------------------------------------

    def why(self) -> Why:
        """Who waits for whom now, at any moment from entering to having left."""
        return Why.of(self._waits, asyncio.get_running_loop().time())

    async def dump_stacks(self) -> str:
        """Write that, and the stacks of every process of the run, to a file in ``stalls/``; says where."""
        return await asyncio.to_thread(self._watch.dump, "asked for", asyncio.get_running_loop().time())

    def _watchdog(self) -> Watchdog:
        """What watches the run from its first moment to its last."""
        self._watch = Watchdog(
            self._waits,
            self.run_dir,
            stall_timeout_s=self.config.run.stall_timeout_s,
            progress=lambda: None if self._wired is None else self._wired.controller.progress(),
            on_lag=self._note_lag,
            act=self._act,
        )
        return self._watch

    def _note_lag(self, lag_s: float) -> None:
        if self._wired is not None:
            meter = self._wired.controller.meter
            meter.loop_lag_s = max(meter.loop_lag_s, lag_s)

    def _act(self, stalled: Waiting) -> str | None:
        """Engines that owe tokens are given up: others go on behind theirs."""
        why = f"gave no token for run.stall_timeout_s = {self.config.run.stall_timeout_s:g} s"
        silent = [] if self._fleet is None else self._fleet.engines.give_up_silent(stalled, why)
        return f"gave up {', '.join(silent)}" if silent else None

    def _stage(self, what: str) -> None:
        """The run begins something that takes a while."""
        self._waits.says(what)
        self._on_stage(what)

    # ---- entering ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start everything, or raise what went wrong with nothing left running."""
        with self._waits.doing("the start"):
            try:
                await self._stack.enter_async_context(running(self._failure.guard("watchdog", self._watchdog().run())))
                with self._failure.interrupts():
                    await self._start()
            except BaseException as error:
                await self._leave(error)
                raise
        return self

    async def _start(self) -> None:
        config, run_dir = self.config, self.run_dir
        changed: list[str] = []
        if self._resume:
            changed = await asyncio.to_thread(check_changes, run_dir, config, accept=self._accept_changes)
        self._stage("reading tokenizer and data")
        self._control.bind()
        self._stack.push_async_callback(self._control.close)
        with waiting("tokenizer and data", limit_s=math.inf):
            self._tokenizer = await asyncio.to_thread(Tokenizer.load, self._model)
            fields, check = self._scorer.required_fields, self._scorer.check_row
            self._source: PromptSource = await asyncio.to_thread(open_source, config, self._tokenizer, fields, check)
            self._held_out = await asyncio.to_thread(self._source.held_out, config.eval.num_samples)
        with waiting("checkpoint and journal", limit_s=math.inf):
            start = await asyncio.to_thread(find_start, run_dir, config) if self._resume else Start()
            changed += changes(self._source, start.ledger, accept=self._accept_changes)
            await asyncio.to_thread(self._folder.open, to_toml_without_secrets(config), start.ledger.step)
        self._totals = start.totals
        self._stack.enter_context(configure(self.run_dir, self._console))
        self._run_is_open = True
        await self._control.open()
        for warning in (*self._source.statistics().warnings, *changed, *start.warnings):
            log.warning(warning)
        if start.num_issued_again:
            log.warning(
                "prompts are issued again: what was sampled of them is of a version that does not come back, or would "
                "be older than pipeline.max_lag allows",
                num_prompts=start.num_issued_again,
            )
        self._disk = Disk(self.run_dir, config.run.disk_timeout_s)
        self._journal = Journal(self.run_dir / "journal", self._disk, start.ledger)
        await self._journal.begin_segment()
        await self._scorer.__aenter__()
        self._stack.push_async_callback(closed, self._scorer.__aexit__, None, None, None)
        playing_episodes = playing(config, self._environment, self._tokenizer)
        self._play: Play | None = await self._stack.enter_async_context(playing_episodes)
        fleet, ready = await self._start_processes(start.checkpoint)
        controller, evaluator, _ = self._wired = self._wire(fleet, ready)
        await self._loops.enter_async_context(running(controller.keep()))
        await self._restore(controller, start)
        await self._sync.push(controller.step_number)
        await self._stack.enter_async_context(evaluator.open())
        if controller.step_number == 0 and self._held_out:
            self._totals.eval_before = (await self.evaluate()).reward_mean
        self._stack.enter_context(frozen_heap())
        await self._loops.enter_async_context(running(self._journal.run(self._failure)))
        await self._loops.enter_async_context(running(controller.run()))
        controller.meter.restart()
        step = controller.step_number
        begun = step - controller.steps_into_round  # weights from within a round are evaluated at its end, as ever
        is_recorded = begun < step or await asyncio.to_thread(self._folder.is_evaluated, step)
        evaluator.resumed(begun, is_recorded=is_recorded)
        self._on_stage.quietly("training")
        self._trains = True
        log.info("started", step=step, run_dir=str(self.run_dir))

    async def _restore(self, controller: Controller, start: Start) -> None:
        """Do again the steps that the trainer's checkpoint lacks, and go on with the prompts that were under way."""
        controller.restore(start.ledger.cursor, list(start.ledger.open.values()))
        for batch in start.batches:
            self._stage(f"training step {controller.step_number + 1} again, from the journal")
            step = await controller.train_again(batch)
            if self._totals.steps < step.report.step:  # it was done and not recorded any more
                await self._record(step)

    async def _start_processes(self, resume: Path | None) -> tuple[Fleet, TrainerReady]:
        """Open engines and trainer side by side; the first push joins them for weight transfers."""
        transport = await asyncio.to_thread(parts.transport_of, self.config)
        fleet = self._fleet = Fleet(
            self.config, self._model, self.run_dir, transport=transport, resume=resume, replay=self._replay
        )
        self._stack.push_async_callback(fleet.close)
        self._scorer.hold_while_paused(fleet.engines.deadlines)
        self._stage(f"starting {parts.describe(self.config)}")
        return fleet, await fleet.open()

    async def _join(self) -> None:
        """Bring engines and trainer together before a push; at the first one this is seen to take its time."""
        is_first, fleet = self._sync.version < 0, self._entered.fleet
        if is_first:
            self._stage("joining engines and trainer")
        await fleet.join()
        if is_first:
            self._on_stage("sending the first weights")

    async def _replay(self, trainer: Trainer, first: int) -> None:
        """Do the steps from ``first`` on again that this process has done, on the journal's groups.

        After a resume the journal knows more steps than that: they are still to be done, by ``_restore``.
        """
        if self._wired is None:
            return
        await self._journal.flush()
        ledger, _ = await asyncio.to_thread(journal.read, self.run_dir / "journal", resume_from=first)
        make_batch = parts.batch_maker(self.config)
        for step in range(first, self.step_number):
            groups = [group_of(entry, self._tokenizer.decode) for entry in ledger.batches[step]]
            await trainer.train(await make_batch(step, groups))

    def _wire(self, fleet: Fleet, ready: TrainerReady) -> Wired:
        """Put the parts together."""
        config, scorer, tokenizer = self.config, self._scorer, self._tokenizer
        rollout = parts.make_rollout(
            config, fleet.engines, scorer, tokenizer, self._failure, record=self._journal.append, play=self._play
        )
        evaluator = Evaluator(
            parts.make_evaluate(config, self._held_out, rollout, scorer, tokenizer.stop_token_ids),
            config=config.eval,
            record=lambda line: self._disk.write(EVALUATIONS, lambda: self._folder.write_evaluation(line)),
            failure=self._failure,
            deadlines=fleet.engines.deadlines,
        )
        self._sync = parts.make_sync(
            config,
            fleet.trainer,
            fleet.engines,
            transport=fleet.transport,
            manifest=fleet.manifest,
            probe=self._probe(),
            join=self._join,
            mend=fleet.mend,
        )
        controller = Controller(
            source=self._source,
            engines=fleet.engines,
            trainer=fleet.trainer,
            rollout=rollout,
            buffer=parts.make_buffer(config),
            make_batch=parts.batch_maker(config),
            sync=self._sync,
            pacing=parts.make_pacing(config),
            failure=self._failure,
            records=self._journal,
            first_step=ready.step,
            judges=scorer,
            refill=parts.make_refill(config),
            before_push=evaluator.before_push,
            measure=self._source.measure,
        )
        return Wired(controller, evaluator, fleet)

    def _probe(self) -> list[int]:
        """The fixed tokens on which engines and trainer are compared: a prompt of the data."""
        cursor = self._source.cursor
        prompt = self._source.next()
        self._source.seek(cursor)
        return prompt.token_ids[:PROBE_TOKENS]

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
        controller, evaluator, fleet = self._entered
        with self._waits.doing(f"step {controller.step_number + 1}", aside=True):
            step = await controller.step()
            evaluator.pushed(self._sync.version)
            if not parts.has_bound(self.config):
                controller.resize(parts.num_streams(self.config, fleet.engines.num_engines))
            with self._failure.interrupts():
                await self._record(step)
                every = self.config.run.checkpoint_every
                if every and self.step_number % every == 0:
                    await self.save()
        return step.report

    async def _record(self, step: Step) -> None:
        """Count a step and write its lines, each of the two files whole or not at all."""
        self._totals.add(step.report)
        await self._disk.write("metrics.jsonl", lambda: self._folder.write_metrics(step.report))
        every = self.config.run.samples_every
        if every and step.report.step % every == 0:
            await self._disk.write("samples.jsonl", lambda: self._folder.write_samples(step.report.step, step.groups))

    @property
    def evaluation(self) -> Evaluation | None:
        """The latest complete evaluation."""
        return None if self._wired is None else self._wired.evaluator.latest

    async def evaluate(self) -> Evaluation:
        """Answer the held-out prompts with the weights that the engines serve. No step may run meanwhile.

        Raises:
            PrlError: it took longer than ``eval.timeout_s``, or nothing could be judged.
        """
        evaluator = self._entered.evaluator
        stage = self._on_stage.text
        self._on_stage(f"evaluating {len(self._held_out)} held-out prompts")
        try:
            with self._waits.doing(self._on_stage.text):
                return await evaluator.evaluate(self._sync.version)
        finally:
            self._on_stage.quietly(stage)

    def status(self) -> Status:
        """How the run is at this moment, also while it starts and ends."""
        controller = None if self._wired is None else self._wired.controller
        trainer = None if self._fleet is None else self._fleet.trainer
        state = "starts"
        if controller is not None and self._sync.version >= 0:
            state = "waits for a batch" if controller.waits_for_batch else "works"
        return Status(
            run_dir=str(self.run_dir.absolute()),
            pid=os.getpid(),
            stage=self._on_stage.text,
            stage_s=self._on_stage.seconds,
            step=None if controller is None else controller.step_number,
            num_steps=self.config.run.num_steps,
            version=None if controller is None or self._sync.version < 0 else self._sync.version,
            engines=self.engines(),
            trainer=None if trainer is None else TrainerStatus(state=state, restarts=trainer.num_restarts),
            slots=None if controller is None else controller.slots(),
            why=self.why().chain,
        )

    def engines(self) -> list[EngineStatus]:
        """Each engine: how far it is, what it serves, what it did; none before they are started."""
        return [] if self._fleet is None else self._fleet.engines.status()

    async def add_engine(self) -> str:
        """Start another engine beside those that serve; its name, such as ``engine-2``.

        It starts in the background, receives the current weights, and serves then: ``engines()`` says how far it is.
        It is tried again like one that died. What it costs the others is the start's share of the machine, and a new
        weight group at the next push.

        Raises:
            RefusedError: the machine has no room for it, or the run does not train (yet, or any more).
        """
        return await self._steered().add()

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
            raise RefusedError(f"the run does not train now, and its engines stay who they are: {self._on_stage.text}")
        return self._wired.fleet

    async def save(self) -> None:
        """Write a checkpoint of this step; generation goes on."""
        checkpoints = self.run_dir / "checkpoints"
        folder = checkpoint.step_folder(checkpoints, self.step_number)
        state = {"controller": self._entered.controller.state(), "totals": self._totals, **self._journal.ledger.facts()}
        with self._waits.doing(f"checkpoint of step {self.step_number}"):
            await self._journal.begin_segment()
            with waiting("the trainer", "saves"):
                await self._entered.fleet.trainer.save(folder, msgspec.to_builtins(state))
        log.info("checkpoint", step=self.step_number, folder=str(folder))
        oldest = await asyncio.to_thread(checkpoint.keep_newest, checkpoints, self.config.run.keep_checkpoints)
        await self._journal.forget_before(oldest)

    # ---- leaving -----------------------------------------------------------------------------------------------------

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish (unless there was an error), end every process, and write the summary."""
        self._trains = False
        with self._waits.doing("the end"):
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
        evaluator, is_complete = self._entered.evaluator, self._sync.version == self.step_number
        with self._failure.interrupts():
            await self._loops.aclose()
            if not is_complete or not self._done():
                self._totals.evals_incomplete += await evaluator.before_push()
        with self._failure.interrupts():
            await self._finish_off(evaluator, is_complete=is_complete)

    async def _finish_off(self, evaluator: Evaluator, *, is_complete: bool) -> None:
        if not is_complete:  # a conventional round that was left midway
            await self._sync.push(self.step_number)
        self._stage("saving")
        for warning in self._source.statistics().warnings:
            log.info("data left out", what=warning)
        for name, statistics in self._scorer.statistics().items():
            log.info("reward", name=name, **msgspec.to_builtins(statistics))
        await self.save()
        with waiting("the trainer", "exports"):
            await self._entered.fleet.trainer.export(self.run_dir / "export")
        if self._done() and self._held_out:
            self._stage(f"evaluating {len(self._held_out)} held-out prompts")
            latest = await evaluator.last(self._sync.version)
            self._eval_after = None if latest is None else latest.reward_mean
            self._totals.evals_incomplete += evaluator.take_incomplete()

    async def _leave(self, error: BaseException | None) -> None:
        """End the loops and every process, whatever happened, and say how the run ended."""
        self._stage("ending the processes")
        if error is not None and self._run_is_open:
            log.info("failed", exc_info=error)  # for the file; whoever called shows the exception
        try:
            await self._loops.aclose()
        finally:
            try:
                await self._stack.aclose()
            finally:
                self._summarise(error)
                self._claim.release()

    def _summarise(self, error: BaseException | None) -> None:
        if self._wired is not None:
            mended = self._wired.controller.mended_since_last_report()
            self._totals.engine_restarts += mended.engine_restarts
            self._totals.trainer_restarts += mended.trainer_restarts
        status = "failed" if error is not None else "done" if self._done() else "stopped"
        self.summary = self._totals.summary(
            status,
            num_engines=self.config.engine.count if self._fleet is None else self._fleet.engines.num_engines,
            eval_after=self._eval_after,
            error=None if error is None else f"{type(error).__name__}: {error}",
        )
        if self._run_is_open:
            self._folder.write_summary(self.summary)

    def _done(self) -> bool:
        return self._wired is not None and self.step_number >= self.config.run.num_steps


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Leave what start-up made out of garbage collection: a full pass over what was imported stops the loop."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
