"""The run folder: what a run leaves behind, and how a resumed run finds its place in it.

    config.toml      the resolved configuration          samples.jsonl     trained completions, token by token
    metrics.jsonl    one object a step                   events.jsonl      what happened (log.py)
    checkpoints/     step-000010/ ...                    export/           Hugging Face safetensors and tokenizer
    logs/            what each child process printed     summary.json      how it ended
    evaluations.jsonl   one object an evaluation         journal/          what became of every prompt (journal.py)
    timeline.jsonl   what each part did, and when        gauges.jsonl      how full it was, each second (chronicle.py)
    versions.json    software and devices                lock              who writes here (claim.py)
    view.json        where its page is, meanwhile        index/            of the samples, for the page (view/)

Lines of steps that a resumed run repeats are cut from the files first, so a step never stands there twice. JSON numbers
are finite; what is not is written as null.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from prl.disk import append
from prl.metrics import StepReport
from prl.sample_lines import sample_lines
from prl.types import Batch, Group

EVALUATIONS, VERSIONS = "evaluations.jsonl", "versions.json"


class Summary(msgspec.Struct, kw_only=True):
    """``summary.json``: the run in one object. Absent numbers were never measured."""

    status: str
    """``done``, ``stopped`` (by a signal or by the caller, resumable) or ``failed``."""
    steps: int = 0
    samples: int = 0
    tokens_generated: int = 0
    tokens_trained: int = 0
    goodput: float = 0.0
    """Tokens trained / tokens generated."""
    reward_first: float | None = None
    reward_last: float | None = None
    eval_before: float | None = None
    eval_after: float | None = None
    eval_is_accuracy: bool = False
    """Whether both are shares of right answers: every reward of these evaluations was 0 or 1."""
    evals_incomplete: int = 0
    """Evaluations that ran out of time."""
    engine_restarts: int = 0
    """Engines that were started in place of lost ones."""
    trainer_restarts: int = 0
    """Times that the trainer was started again."""
    checkpoints: int = 0
    """Checkpoints that were written, the one at the end included."""
    checkpoint_s: float = 0.0
    """Seconds that training stood still for them; generation went on."""
    lag_max: int = 0
    lag_mean: float = 0.0
    ess_mean: float | None = None
    num_engines: int = 0
    num_versions_max_in_sample: int = 0
    wall_s: float = 0.0
    error: str | None = None


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """What the totals need of a line of ``metrics.jsonl``; the names are those of ``StepReport``."""

    step: int
    time_s: float
    reward_mean: float
    samples: int
    tokens_generated: int
    tokens_trained: int
    lag_max: int
    lag_mean: float
    versions_max: int
    ess: float | None
    evals_incomplete: int = 0
    engine_restarts: int = 0
    trainer_restarts: int = 0
    checkpoint_s: float = 0.0


class Totals(msgspec.Struct, kw_only=True):
    """What a run has done so far, over all its parts; travels in the checkpoint."""

    steps: int = 0
    samples: int = 0
    tokens_generated: int = 0
    tokens_trained: int = 0
    reward_first: float | None = None
    reward_last: float | None = None
    eval_before: float | None = None
    eval_is_accuracy: bool = False
    """Of the evaluations before and, at the end, after."""
    evals_incomplete: int = 0
    engine_restarts: int = 0
    trainer_restarts: int = 0
    checkpoints: int = 0
    checkpoint_s: float = 0.0
    lag_max: int = 0
    lag_sum: float = 0.0
    ess_sum: float = 0.0
    ess_steps: int = 0
    """Steps with an effective sample size: one that was skipped for a non-finite loss may have none."""
    num_versions_max: int = 0
    wall_s: float = 0.0

    def add(self, report: StepReport | StepLine) -> None:
        """Count one step."""
        self.steps += 1
        self.samples += report.samples
        self.tokens_generated += report.tokens_generated
        self.tokens_trained += report.tokens_trained
        self.reward_first = report.reward_mean if self.reward_first is None else self.reward_first
        self.reward_last = report.reward_mean
        self.evals_incomplete += report.evals_incomplete
        self.engine_restarts += report.engine_restarts
        self.trainer_restarts += report.trainer_restarts
        self.checkpoint_s += report.checkpoint_s
        self.lag_max = max(self.lag_max, report.lag_max)
        self.lag_sum += report.lag_mean
        if report.ess is not None and math.isfinite(report.ess):
            self.ess_sum += report.ess
            self.ess_steps += 1
        self.num_versions_max = max(self.num_versions_max, report.versions_max)
        self.wall_s += report.time_s

    def summary(self, status: str, *, num_engines: int, eval_after: float | None, error: str | None) -> Summary:
        """The run in one object."""
        return Summary(
            status=status,
            steps=self.steps,
            samples=self.samples,
            tokens_generated=self.tokens_generated,
            tokens_trained=self.tokens_trained,
            goodput=self.tokens_trained / max(1, self.tokens_generated),
            reward_first=self.reward_first,
            reward_last=self.reward_last,
            eval_before=self.eval_before,
            eval_after=eval_after,
            eval_is_accuracy=self.eval_is_accuracy,
            evals_incomplete=self.evals_incomplete,
            engine_restarts=self.engine_restarts,
            trainer_restarts=self.trainer_restarts,
            checkpoints=self.checkpoints,
            checkpoint_s=round(self.checkpoint_s, 3),
            lag_max=self.lag_max,
            lag_mean=self.lag_sum / max(1, self.steps),
            ess_mean=self.ess_sum / self.ess_steps if self.ess_steps else None,
            num_engines=num_engines,
            num_versions_max_in_sample=self.num_versions_max,
            wall_s=round(self.wall_s, 3),
            error=error,
        )


class RunFolder:
    """Writes the files of one run. Blocking; the pipeline calls it in a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, config_toml: str, first_step: int) -> None:
        """Make the folder, write the configuration, and cut the lines of steps after ``first_step``."""
        self.path.mkdir(parents=True, exist_ok=True)
        draft = self.path / "config.toml.part"
        draft.write_text(config_toml, encoding="utf-8")
        draft.replace(self.path / "config.toml")
        (self.path / "summary.json").unlink(missing_ok=True)  # of an earlier part: this one has not ended
        for name in ("metrics.jsonl", "samples.jsonl", EVALUATIONS):
            _keep_steps(self.path / name, first_step)

    def write_metrics(self, report: StepReport) -> None:
        """Append one step."""
        self._append("metrics.jsonl", [report.line()])

    def write_samples(
        self, step: int, groups: Sequence[Group], batch: Batch | None = None, logprobs: Sequence[bytes] = ()
    ) -> None:
        """Append the completions trained in one step; see ``sample_lines.py``."""
        self._append("samples.jsonl", sample_lines(step, groups, batch, logprobs))

    def write_evaluation(self, line: dict[str, Any]) -> None:
        """Append one evaluation, complete or not."""
        self._append(EVALUATIONS, [line])

    def is_evaluated(self, step: int) -> bool:
        """Whether the evaluation of the weights after ``step`` has its line."""
        path = self.path / EVALUATIONS
        return path.exists() and any(_STEP.decode(line).step == step for line in path.read_bytes().splitlines())

    def write_summary(self, summary: Summary) -> None:
        """Write how the run ended."""
        self.write_json("summary.json", summary)

    def write_json(self, name: str, value: Any) -> None:
        """Write a file of one object, atomically."""
        draft = self.path / f"{name}.part"
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
        draft.replace(self.path / name)

    def _append(self, name: str, lines: Iterable[Any]) -> None:
        append(self.path / name, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def read_steps(path: Path, first: int, last: int) -> list[StepLine]:
    """The lines of ``metrics.jsonl`` from step ``first`` to ``last`` that are there and whole."""
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(StepLine)
    found: list[StepLine] = []
    with path.open("rb") as lines:
        for line in lines:
            with suppress(msgspec.DecodeError):
                step = decoder.decode(line)
                if first <= step.step <= last:
                    found.append(step)
    return found


class _Line(msgspec.Struct):
    step: int


_STEP = msgspec.json.Decoder(_Line)


def _keep_steps(path: Path, last_step: int) -> None:
    """Rewrite a JSONL file without the lines of later steps, and without a half-written last line."""
    if not path.exists():
        return
    draft = path.with_suffix(".part")
    with path.open("rb") as old, draft.open("wb") as new:
        for line in old:
            try:
                keep = line.endswith(b"\n") and _STEP.decode(line).step <= last_step
            except msgspec.DecodeError:
                keep = False
            if keep:
                new.write(line)
        new.flush()
        os.fsync(new.fileno())
    draft.replace(path)
