"""What people want to know about a run while it goes on, as numbers and short texts. Pure: no terminal, no clock.

Rates and shares are over the last few steps together, weighted by their time, so that one odd step does not flicker;
the reward's history is the whole run's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from copy import copy
from itertools import pairwise

import msgspec

from prl.evaluate import Evaluation
from prl.metrics import StepReport

RECENT_STEPS = 10
_BLOCKS = "▁▂▃▄▅▆▇█"
_MIDDLE = _BLOCKS[3]
_MINUTE, _HOUR = 60, 3600


class Progress:
    """Folds step reports and evaluations into what is shown."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.latest: StepReport | None = None
        self.rewards: list[float] = []
        self.evaluations: list[tuple[int, Evaluation]] = []
        """Each with the number of steps that were done."""
        self.num_dropped = 0
        self._recent: deque[StepReport] = deque(maxlen=RECENT_STEPS)

    def copied(self) -> Progress:
        """This, as it is now."""
        twin = copy(self)
        twin.__dict__ |= {name: copy(value) for name, value in vars(self).items() if isinstance(value, (list, deque))}
        return twin

    @property
    def step(self) -> int:
        """Completed steps."""
        return self.latest.step if self.latest else 0

    def add(self, report: StepReport) -> None:
        """Count one step."""
        self.latest = report
        self.rewards.append(report.reward_mean)
        self.num_dropped += sum(report.dropped.values())
        self._recent.append(report)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Count one evaluation, of the weights after as many steps as its version says; its answers are not kept."""
        self.evaluations.append((evaluation.version, msgspec.structs.replace(evaluation, answers=[])))

    @property
    def seconds_left(self) -> float | None:
        """At the pace of the last steps; None before the first."""
        if not self._recent:
            return None
        return (self.num_steps - self.step) * self._recent_s / len(self._recent)

    @property
    def _recent_s(self) -> float:
        return max(math.fsum(report.time_s for report in self._recent), 1e-9)

    def mean(self, name: str) -> float:
        """Mean of a field of the reports over the last steps, weighted by their time."""
        return math.fsum(getattr(report, name) * report.time_s for report in self._recent) / self._recent_s

    def share(self, name: str) -> float:
        """Share of the last steps' time that a field in seconds makes up, 0 to 1."""
        return min(1.0, math.fsum(getattr(report, name) for report in self._recent) / self._recent_s)

    def waits(self) -> list[tuple[str, float]]:
        """Who works and who waits, as shares of time."""
        return [
            ("trainer busy", self.mean("trainer_busy")),
            ("waits for batch", self.share("wait_batch_s")),
            ("engines busy", self.mean("engine_busy")),
            ("paused for weights", self.share("pause_s")),
        ]


def sparkline(values: Sequence[float], width: int) -> str:
    """At most ``width`` blocks, each the mean of its share of ``values``, scaled from the lowest to the highest."""
    count = min(width, len(values))
    edges = [round(index * len(values) / count) for index in range(count + 1)] if count else []
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    if not means:
        return ""
    low, span = min(means), max(means) - min(means)
    if not math.isfinite(span) or span < 1e-12:  # noqa: PLR2004 - flat up to rounding
        return _MIDDLE * count
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, int((mean - low) / span * len(_BLOCKS)))] for mean in means)


def duration(seconds: float) -> str:
    """``0:07``, ``12:30``, ``3:02:01``."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // _HOUR, whole % _HOUR // _MINUTE, whole % _MINUTE
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def percent(share: float) -> str:
    """``62%``."""
    return f"{100 * share:.0f}%"


def held_out(progress: Progress) -> str:
    """The first and the latest result on the held-out prompts, with the 95 % interval of the latest."""
    (_, first), (step, latest) = progress.evaluations[0], progress.evaluations[-1]
    before = f"{first.reward_mean:.3f} before, " if len(progress.evaluations) > 1 else ""
    low, high = latest.interval
    passed = "".join(f", pass@{k} {found.mean:.3f}" for k, found in latest.pass_at.items())
    return f"{before}{latest.reward_mean:.3f} ({low:.3f} to {high:.3f}){passed} at step {step}"


def num_asked(evaluation: Evaluation) -> str:
    """``256 prompts``, or ``256 prompts, 1022 answers, 2 failed``."""
    parts = [f"{evaluation.num_prompts} prompts"]
    if evaluation.num_answers != evaluation.num_prompts:
        parts.append(f"{evaluation.num_answers} answers")
    if evaluation.num_failed:
        parts.append(f"{evaluation.num_failed} failed")
    return ", ".join(parts)
