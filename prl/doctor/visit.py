"""One call of ``prl doctor``: from a configuration to a table, a sentence, a file and an exit code.

Nothing is left of it but the file that was asked for: the processes' logs are in a temporary folder, and what a side
that failed had to say is in its error.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from prl import log, parts, preflight
from prl.config import Config
from prl.doctor.diagnosis import Diagnosis, diagnose
from prl.doctor.evidence import Evidence
from prl.doctor.examine import Examination
from prl.doctor.finding import Finding
from prl.doctor.inputs import sampling_defaults
from prl.doctor.sides import live_sides
from prl.errors import ConfigError, MissingExtraError
from prl.models import resolve_model
from prl.panel import make_console, say, show
from prl.progress import duration
from prl.prompts import open_source
from prl.settings import to_toml_without_secrets
from prl.shell import FAILED, INTERRUPTED, OK, failure_message, first_signal, run_to_exit
from prl.tokenizer import Tokenizer

_COLOURS = {"ok": "green", "note": "yellow", "fault": "bold red"}


class Visit:
    """Looks at the machine when it is made; ``run`` does the rest.

    Args:
        config: what a run would be started with.
        num_samples: completions to compare.
        report: where every number is written as JSON; None: nowhere.

    Raises:
        ConfigError: the configuration cannot run here, or the report cannot be written; nothing is started.
        MissingExtraError: the same, for want of a package.
    """

    def __init__(self, config: Config, *, num_samples: int, report: Path | None) -> None:
        preflight.before_start(config)
        if report is not None and not report.absolute().parent.is_dir():
            raise ConfigError(f"--json {report}: {report.absolute().parent} is no folder; make it first")
        self._config, self._num_samples, self._report = config, num_samples, report
        self._console = make_console()
        self._started_at = time.monotonic()

    def run(self) -> int:
        """Examine, show and write; the exit code."""
        return run_to_exit(self._main())

    async def _main(self) -> int:
        task = asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            self._stage("interrupted: ending what was started")
            task.cancel()

        with (
            tempfile.TemporaryDirectory(prefix="prl-doctor-") as folder,
            log.captured(),
            log.configure(Path(folder), self._console),
            first_signal(interrupt),
        ):
            try:
                evidence = await self._examine(Path(folder))
            except asyncio.CancelledError:
                sys.stderr.write("prl: interrupted; everything that was started has ended\n")
                return INTERRUPTED
            except (ConfigError, MissingExtraError):
                raise
            except Exception as error:  # noqa: BLE001 - the process's last word on any failure
                sys.stdout.flush()
                sys.stderr.write(failure_message("the examination", error))
                return FAILED
        return self._tell(evidence, diagnose(evidence))

    async def _examine(self, folder: Path) -> Evidence:
        config, model = self._config, resolve_model(self._config.model)
        self._stage("reading tokenizer and data")
        tokenizer = await asyncio.to_thread(Tokenizer.load, model)
        source = await asyncio.to_thread(open_source, config, tokenizer, reads_all_fields=True)
        prompts = [await asyncio.to_thread(source.next) for _ in range(self._num_samples)]
        defaults = await asyncio.to_thread(sampling_defaults, model)
        async with live_sides(config, model, tokenizer, folder, self._stage) as sides:
            examination = Examination(
                sides,
                config,
                tokenizer,
                tolerance=parts.tolerance_of(config),
                sampling_defaults=defaults,
                on_stage=self._stage,
            )
            return await examination.run(prompts, num_too_long=source.statistics().num_too_long)

    def _stage(self, text: str) -> None:
        say(self._console, f"[{duration(time.monotonic() - self._started_at)}] {text}")

    def _tell(self, evidence: Evidence, diagnosis: Diagnosis) -> int:
        show(self._console, render(diagnosis))
        if self._report is not None:
            content = {
                "verdict": diagnosis.verdict,
                "diagnosis": diagnosis.sentence,
                "findings": diagnosis.findings,
                "evidence": evidence,
                "config": to_toml_without_secrets(self._config),
            }
            self._report.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
        return OK if diagnosis.verdict == "clean" else FAILED


def render(diagnosis: Diagnosis) -> Group:
    """The table and the sentence."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for name, justify in (("cause", "left"), ("number", "right"), ("verdict", "left"), ("what was measured", "left")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]  # a literal of rich's
    for finding in diagnosis.findings:
        verdict = Text(finding.verdict, _COLOURS[finding.verdict])
        table.add_row(finding.cause, _number(finding), verdict, Text(finding.measured))
    colour = "bold" if diagnosis.verdict == "clean" else "bold red"
    return Group("", table, "", Text(diagnosis.sentence, colour))


def _number(finding: Finding) -> str:
    return f"{finding.number:.0f}" if finding.number.is_integer() else f"{finding.number:.2g}"
