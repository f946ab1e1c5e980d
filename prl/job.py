"""One run from the command line: signals, panel, exit code. What it runs is ``Pipeline``; nothing is decided here.

    start-up   first signal: cancel, end what was started, 130
    steps      first signal: finish the step, save, 0       second signal, any time: kill every child, 130
    the end    the report of what was learned, 0            a failure: its cause in one message, 1

How signals are taken is in ``shell.py``.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from prl import log, preflight, summary
from prl.claim import choose
from prl.config import Config
from prl.errors import ConfigError, MissingExtraError
from prl.evaluate import Evaluation
from prl.hidden import clearer_of
from prl.panel import Panel, make_console, make_panel, say, show
from prl.pipeline import Pipeline
from prl.resumed_config import nothing_left
from prl.shell import FAILED, INTERRUPTED, OK, failure_message, first_signal, run_to_exit


class Job:
    """``prl run``."""

    def __init__(
        self,
        config: Config,
        command: str,
        *,
        run_dir: str | None,
        resume: bool,
        accept_changes: bool = False,
        plain: bool,
    ) -> None:
        """Look at the machine; ``command`` is what to say again to resume the run, but for its folder.

        Raises:
            ConfigError: the configuration cannot run here; nothing is started.
            MissingExtraError: the same, for want of a package.
        """
        preflight.before_start(config)
        self._command = command
        self._config, self._run_dir, self._resume = config, run_dir, resume
        self._accept_changes = accept_changes
        self._console = make_console()
        self._plain = plain
        self._stop = asyncio.Event()
        self._starting: asyncio.Task[int] | None = None
        self._shown: Evaluation | None = None
        self._pipeline: Pipeline | None = None

    def run(self) -> int:
        """Run to an exit code. Raises ConfigError or MissingExtraError, with nothing left running."""
        if self._resume and (message := self._nothing_left()):
            say(self._console, message)
            return OK
        return run_to_exit(self._main())

    async def _main(self) -> int:
        self._starting = asyncio.current_task()
        title, num_steps = self._config.run.name, self._config.run.num_steps
        with (
            log.captured(),
            closing(self._panel(title, num_steps)) as panel,
            first_signal(partial(self._interrupt, panel)),
        ):
            code, message = await self._outcome(panel)
        if message:
            sys.stdout.flush()
            sys.stderr.write(message)
            sys.stderr.flush()
        if code == OK:
            self._report()
        return code

    def _nothing_left(self) -> str | None:
        """What to say of a run that is at its end already."""
        folder = choose(self._config.run.name, Path(self._run_dir) if self._run_dir else None, resume=True)
        return nothing_left(folder, self._config.run.num_steps)

    def _panel(self, title: str, num_steps: int) -> Panel:
        return make_panel(self._console, title=title, num_steps=num_steps, plain=self._plain)

    async def _outcome(self, panel: Panel) -> tuple[int, str]:
        """Run, and turn how it ended into an exit code and a message for stderr."""
        try:
            await self._train(panel)
        except asyncio.CancelledError:
            return INTERRUPTED, "prl: interrupted at start-up; everything that was started has ended\n"
        except (ConfigError, MissingExtraError):
            raise
        except Exception as error:  # noqa: BLE001 - the process's last word on any failure
            return FAILED, self._failure(error)
        return OK, ""

    async def _train(self, panel: Panel) -> None:
        """The loop that a run is."""
        pipeline = self._pipeline = Pipeline(
            self._config,
            run_dir=self._run_dir,
            resume=self._resume,
            accept_changes=self._accept_changes,
            on_stage=panel.stage,
            on_page=panel.page,
            console=self._console,
        )
        async with pipeline:
            self._starting = None
            self._show_evaluation(panel, pipeline)
            while pipeline.step_number < self._config.run.num_steps and not self._stop.is_set():
                panel.update(await pipeline.step())
                self._show_evaluation(panel, pipeline)
        self._show_evaluation(panel, pipeline)

    def _show_evaluation(self, panel: Panel, pipeline: Pipeline) -> None:
        if pipeline.evaluation is not None and pipeline.evaluation is not self._shown:
            self._shown = pipeline.evaluation
            panel.evaluated(self._shown)

    def _failure(self, error: Exception) -> str:
        """One message; above it the traceback where the error is a bug."""
        folder = self._pipeline.run_dir if self._pipeline is not None else None
        where = f"prl: events and logs are in {folder}\n" if folder is not None and folder.exists() else ""
        return clearer_of(msgspec.to_builtins(self._config))(failure_message("the run", error)) + where

    def _report(self) -> None:
        pipeline = self._pipeline
        if pipeline is None or pipeline.summary is None:
            return
        show(self._console, summary.render(pipeline.summary, pipeline.run_dir, latest=pipeline.evaluation))
        if pipeline.summary.status == "stopped":
            again = f"{self._command} --resume --run-dir {shlex.quote(str(pipeline.run_dir))}"
            say(self._console, f"\nGo on with: {again}")

    def _interrupt(self, panel: Panel) -> None:
        """The first signal: end what is being started, or finish the step."""
        if self._starting is not None:
            panel.stage("interrupted: ending what was started")
            self._starting.cancel()
        else:
            panel.stage("stopping after this step, then saving; once more to end at once")
            self._stop.set()
