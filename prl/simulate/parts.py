"""What stands in for the outside of a simulated run: prompts, rewards, the journal, and the trainer's working time.

Invariant: everything is drawn from the seed, so a configuration has one course.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Awaitable, Callable

from prl.config_simulate import FaultsConfig
from prl.records import AnyRecord
from prl.simulation import fraction
from prl.types import Batch, Completion, Prompt, Score, Verdict

HOUR_S = 3600.0


class Numbers:
    """Prompts without end; the only token of each is its number."""

    def __init__(self) -> None:
        self.cursor = 0

    def next(self) -> Prompt:
        """The next one."""
        number, self.cursor = self.cursor, self.cursor + 1
        return Prompt(id=number, token_ids=[number], text="", messages=[], fields={})

    def passed_over(self) -> list[tuple[int, str]]:
        """None is."""
        return []

    def seek(self, cursor: int) -> None:
        """Go on from there."""
        self.cursor = cursor


class NoRecords:
    """A simulation is never resumed, so nothing is written down."""

    def append(self, record: AnyRecord) -> None:
        """Forget it."""

    async def ready(self) -> None:
        """At once."""


def make_score(score_s: float, sleep: Callable[[float], Awaitable[None]]) -> Callable[..., Awaitable[Verdict]]:
    """A reward that takes its time and is right every other time."""
    rewards = itertools.cycle([Score(reward=1.0), Score(reward=0.0)])

    async def score(_: Completion, __: Prompt) -> Verdict:
        if score_s:
            await sleep(score_s)
        return next(rewards)

    return score


def lags_of(batch: Batch) -> Counter[int]:
    """Sampled tokens of a batch by their lag."""
    versions: Counter[int] = Counter()
    for sample in batch.samples:
        versions.update(sample.versions)
    return Counter({batch.step - version: count for version, count in versions.items() if version >= 0})


class Deaths:
    """When something breaks that breaks at a rate: exponential times, by a key."""

    def __init__(self, per_hour: float, seed: int) -> None:
        self._per_hour, self._seed, self._numbers = per_hour, seed, itertools.count()

    def next_s(self, key: int = 0) -> float:
        """Seconds until the next one; infinite where nothing breaks."""
        if not self._per_hour:
            return math.inf
        return -math.log(fraction(self._seed, key, next(self._numbers))) * HOUR_S / self._per_hour


class TrainingTime:
    """How long optimiser steps take, those included that a death makes the trainer do again.

    Args:
        step_s: seconds of a step on so many samples with so many sampled tokens.
        faults: how often the trainer dies and what its start takes.
        checkpoint_every: steps between checkpoints; 0, none but the beginning.
        seed: of the deaths.
    """

    def __init__(
        self, step_s: Callable[[int, int], float], faults: FaultsConfig, checkpoint_every: int, seed: int
    ) -> None:
        self._step_s, self._start_s, self._checkpoint_every = step_s, faults.trainer_start_s, checkpoint_every
        self._deaths = Deaths(faults.trainer_deaths_per_hour, seed)
        self._alive_s = self._deaths.next_s()
        self._since_checkpoint: list[float] = []
        self._num_steps = 0
        self.num_restarts = 0
        self.lost_s = 0.0
        """Spent on starts and on steps once more."""

    def next_s(self, num_samples: int, num_tokens: int) -> float:
        """Seconds of the next step."""
        step_s = self._step_s(num_samples, num_tokens)
        total_s = 0.0
        while self._alive_s < step_s:
            lost_s = self._alive_s + self._start_s + sum(self._since_checkpoint)
            total_s, self.lost_s, self.num_restarts = total_s + lost_s, self.lost_s + lost_s, self.num_restarts + 1
            self._alive_s = self._deaths.next_s()
        self._alive_s -= step_s
        self._num_steps += 1
        self._since_checkpoint.append(step_s)
        if self._checkpoint_every and self._num_steps % self._checkpoint_every == 0:
            self._since_checkpoint.clear()
        return total_s + step_s
