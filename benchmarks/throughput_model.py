"""The paper's throughput model (arXiv 2509.19128, appendix A) for a machine whose cores engines and trainer may share.

The paper gives the accelerators to one stage or the other and works with two measured numbers: how fast a decode step
is at h sequences, and what it costs to train a token. Here the same two numbers are measured (``stages.py``) and each
schedule is played step by step, since slots that are taken in order of admission have no closed form:

- a decode step of all engines takes c(h / engines) seconds with h sequences in flight, and gives each of them a token;
- a training step takes a fixed time and a time per token;
- an update of the weights keeps the trainer for a while in which the engines go on, then they stand still for it. It
  comes after each step, in rounds after the last one of a round;
- in a split both run at full speed side by side; sharing, E engines and R ranks get the cores there are between them.

Invariant: nothing here looks at the runs that it predicts. Besides the two costs it is given the pause, the other
seconds between two steps that have an update between them, and the lengths, all from one short run of the layout that
is not among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

NUM_STEPS = 200
SKIPPED = 20


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, each stage alone on the cores that it has in its layout."""

    decode_s: dict[int, float]
    """Seconds of one decode step, by sequences per engine, with every engine at work."""
    train_fixed_s: float
    train_token_s: float
    update_s: float
    """Of the trainer for an update of the weights, while the engines go on: what passes between two steps."""
    pause_s: float
    """In which the engines stand still for an update."""
    num_engines: int
    num_ranks: int
    num_cores: int
    """That this process may use; an engine and a rank compute on one each."""
    shared: bool

    def decode(self, num_sequences: float) -> float:
        """One decode step with this many sequences in all engines together."""
        sizes = sorted(self.decode_s)
        each = num_sequences / self.num_engines
        known = float(np.interp(each, sizes, [self.decode_s[size] for size in sizes]))
        return known * max(1.0, each / sizes[-1])

    def train(self, num_tokens: float, *, then_updates: bool) -> float:
        """One training step, and the update behind it where there is one."""
        return self.train_fixed_s + self.train_token_s * num_tokens + then_updates * self.update_s

    def speeds(self, *, generating: bool, training: bool) -> tuple[float, float]:
        """Of the engines and of the trainer, against each alone."""
        if not (generating and training and self.shared):
            return 1.0, 1.0
        share = min(1.0, self.num_cores / (self.num_engines + self.num_ranks))
        return share, share


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """What decides who waits for whom; the names are those of ``[pipeline]`` and ``[engine]``."""

    groups_per_step: int
    group_size: int
    num_slots: int
    """Groups under way at most; streams where groups are trained as they finish."""
    in_order: bool
    """Groups are trained in the order of admission."""
    max_ahead: int = 0
    """Where they are not: groups finished or in a step that stop admission."""
    steps_per_round: int = 1
    max_streams: int = 10**9
    """Of all engines together."""


def play(costs: Costs, schedule: Schedule, lengths: Sequence[Sequence[int]], prompt_tokens: float) -> dict[str, Any]:
    """Samples per second, mean and largest lag of a token, and sequences in flight.

    Args:
        costs: of the layout.
        schedule: what is played.
        lengths: of the completions of one group, for each of many groups, drawn from in a fixed random order.
        prompt_tokens: mean length of a prompt, which is trained over too.
    """
    return _Play(costs, schedule, lengths, prompt_tokens).run()


class _Play:
    """One schedule in virtual time, one decode step after another."""

    def __init__(
        self, costs: Costs, schedule: Schedule, lengths: Sequence[Sequence[int]], prompt_tokens: float
    ) -> None:
        self._costs, self._schedule, self._lengths, self._prompt_tokens = costs, schedule, lengths, prompt_tokens
        self._dice = np.random.default_rng(0)
        self._now = self._training_left_s = 0.0
        self._version = self._num_taken = self._steps_left_of_round = 0
        self._waiting: list[tuple[int, int]] = []  # (group, tokens to sample) of streams without a place in an engine
        self._group_of, self._left = np.empty(0, int), np.empty(0, int)
        self._open: dict[int, int] = {}  # streams that a group still has
        self._tokens: dict[int, np.ndarray] = {}  # tokens that a group has by version; grown as versions come
        self._finished: list[int] = []
        self._next_group = 0
        self._done_at: list[float] = []
        self._lags: list[tuple[float, int]] = []
        self._in_flight: list[float] = []

    def run(self) -> dict[str, Any]:
        while self._version < NUM_STEPS:
            self._admit()
            self._take()
            self._advance()
        seconds = self._done_at[-1] - self._done_at[SKIPPED - 1]
        per_step = self._schedule.groups_per_step * self._schedule.group_size
        return {
            "samples_per_s": per_step * (NUM_STEPS - SKIPPED) / seconds,
            "lag_mean": float(np.mean([mean for mean, _ in self._lags[SKIPPED:]])),
            "lag_max": max(largest for _, largest in self._lags[SKIPPED:]),
            "in_flight": float(np.mean(self._in_flight)),
        }

    def _admit(self) -> None:
        """Fill free slots, then places in the engines."""
        schedule = self._schedule
        while self._has_room():
            members = self._lengths[int(self._dice.integers(len(self._lengths)))]
            self._open[self._next_group] = len(members)
            self._tokens[self._next_group] = np.zeros(NUM_STEPS + 1, int)
            self._waiting += [(self._next_group, length) for length in members]
            self._next_group += 1
        free = max(0, schedule.max_streams - len(self._left))
        starting, self._waiting = self._waiting[:free], self._waiting[free:]
        if starting:
            groups, lengths = zip(*starting, strict=True)
            self._group_of = np.concatenate([self._group_of, groups])
            self._left = np.concatenate([self._left, lengths])

    def _has_room(self) -> bool:
        """As ``prl/buffer.py`` admits."""
        schedule, ahead = self._schedule, len(self._finished) + self._num_taken
        if schedule.in_order:
            return len(self._open) + ahead < schedule.num_slots
        streams = len(self._left) + len(self._waiting)
        return ahead < schedule.max_ahead and (streams + schedule.group_size <= schedule.num_slots or not streams)

    def _take(self) -> None:
        """Start a training step where the trainer is free and its batch, or its round, is there."""
        schedule = self._schedule
        if self._training_left_s > 0:
            return
        if not self._steps_left_of_round:
            wanted = schedule.groups_per_step * schedule.steps_per_round
            ready = self._ready()[:wanted]
            if len(ready) < wanted:
                return
            self._round = ready
            self._finished = [group for group in self._finished if group not in set(ready)]
            self._num_taken = wanted
            self._steps_left_of_round = schedule.steps_per_round
        batch, self._round = self._round[: schedule.groups_per_step], self._round[schedule.groups_per_step :]
        by_version = sum(self._tokens.pop(group) for group in batch)
        versions = np.arange(NUM_STEPS + 1)
        num_tokens = int(by_version.sum())
        lag = self._version - versions
        self._lags.append((float((lag * by_version).sum() / num_tokens), int(lag[by_version > 0].max())))
        num_samples = schedule.groups_per_step * schedule.group_size
        self._training_left_s = self._costs.train(
            num_tokens + num_samples * self._prompt_tokens, then_updates=self._steps_left_of_round == 1
        )

    def _ready(self) -> list[int]:
        if not self._schedule.in_order:
            return self._finished
        oldest_open = min(self._open, default=self._next_group)
        return sorted(group for group in self._finished if group < oldest_open)

    def _advance(self) -> None:
        """One decode step, or the rest of a training step where nothing is in flight."""
        generating, training = len(self._left) > 0, self._training_left_s > 0
        generation_speed, training_speed = self._costs.speeds(generating=generating, training=training)
        if not generating:
            self._now += self._training_left_s
            self._training_left_s = 0.0
            self._trained()
            return
        step_s = self._costs.decode(len(self._left)) / generation_speed
        self._now += step_s
        self._in_flight.append(len(self._left))
        self._sample()
        if training:
            self._training_left_s -= step_s * training_speed
            if self._training_left_s <= 0:
                self._training_left_s = 0.0
                self._trained()

    def _sample(self) -> None:
        for group, count in zip(*np.unique(self._group_of, return_counts=True), strict=True):
            self._tokens[int(group)][self._served()] += count
        self._left -= 1
        ended = self._left == 0
        for group in self._group_of[ended].tolist():
            self._open[group] -= 1
            if not self._open[group]:
                del self._open[group]
                self._finished.append(group)
        self._group_of, self._left = self._group_of[~ended], self._left[~ended]

    def _served(self) -> int:
        """The version in the engines."""
        return self._version // self._schedule.steps_per_round * self._schedule.steps_per_round

    def _trained(self) -> None:
        """A new version; at the end of a round it goes into the engines and its slots are free."""
        self._version += 1
        self._steps_left_of_round -= 1
        if not self._steps_left_of_round:
            self._num_taken = 0
            self._now += self._costs.pause_s
        self._done_at.append(self._now)
