"""What a monitoring system wants of the steps of a run: counters that only grow, and the latest step's report.

Counters begin at 0 with the process, as such systems expect: a resumed run counts what it does itself.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from copy import copy
from typing import NamedTuple

import msgspec

from prl.evaluate import Evaluation
from prl.metrics import StepReport
from prl.status import Status
from prl.trackers.state import State

STEP_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)
_PHASES = ("wait_batch_s", "pause_s", "publish_s", "eval_block_s", "checkpoint_s")
_EVENTS = (
    "samples",
    "tokens_trained",
    "evals_incomplete",
    "streams_moved",
    "streams_handed_over",
    "reward_retries",
)
_FAILED = re.compile(r"(?P<reward>.+)_failed_(?P<kind>.+)")


class Figures(msgspec.Struct):
    """Of the steps since this process began."""

    num_steps: int = 0
    step_s: float = 0.0
    trainer_busy_s: float = 0.0
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(STEP_BUCKETS_S) + 1))
    """Steps by their time: up to each of ``STEP_BUCKETS_S``, and longer ones."""
    phase_s: dict[str, float] = msgspec.field(default_factory=lambda: dict.fromkeys(_PHASES, 0.0))
    """Seconds of the steps, by the field of the report; they overlap with generation."""
    events: Counter[str] = msgspec.field(default_factory=Counter)
    """Counts by the field of the report."""
    dropped: Counter[str] = msgspec.field(default_factory=Counter)
    """Completions that came to nothing, by reason."""
    reward_failures: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Calls by reward and kind of failure."""
    latest: StepReport | None = None

    def add(self, report: StepReport) -> None:
        """Count a step."""
        self.num_steps += 1
        self.step_s += report.time_s
        self.trainer_busy_s += report.trainer_busy * report.time_s
        self.buckets[bisect_left(STEP_BUCKETS_S, report.time_s)] += 1
        for phase in _PHASES:
            self.phase_s[phase] += getattr(report, phase)
        for event in _EVENTS:
            self.events[event] += getattr(report, event)
        self.dropped.update(report.dropped)
        for key, value in report.rewards.items():
            if (found := _FAILED.fullmatch(key)) is not None:
                self.reward_failures[found["reward"], found["kind"]] += int(value)
        self.latest = report

    def copied(self) -> Figures:
        """These, as they are now."""
        return Figures(**{name: copy(getattr(self, name)) for name in self.__struct_fields__})


class Snapshot(NamedTuple):
    """A run at one moment, for a monitoring system."""

    run: str
    model: str
    status: Status
    figures: Figures
    evaluation: Evaluation | None
    """The latest complete one."""
    trackers: dict[str, State]
