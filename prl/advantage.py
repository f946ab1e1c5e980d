"""Rewards into advantages. Pure.

Invariants:

- One protocol for all: the rewards of a batch, by group, into as many advantages. Those that look at one group at a
  time are written for one group, and a reward then never meets one of another prompt.
- Where all that is compared is equal, advantages are exactly 0: whether it is, is decided by comparing rewards, never
  by a rounded mean or deviation.

Suffixes: G, the members of a group that were scored; B, the groups of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

GroupAdvantage = Callable[[Sequence[float]], list[float]]
Advantage = Callable[[Sequence[Sequence[float]]], list[list[float]]]

EPSILON = 1e-6
"""Added to a standard deviation, so that rewards that differ by rounding do not become large advantages."""


def all_equal(rewards_G: Sequence[float]) -> bool:
    """Whether there is nothing to compare: equal rewards exactly, or fewer than two."""
    return len(rewards_G) < 2 or min(rewards_G) == max(rewards_G)  # noqa: PLR2004 -- the least to compare


def leave_one_out(rewards_G: Sequence[float]) -> list[float]:
    """A_i = R_i - mean of the other members' rewards (PipelineRL, arXiv 2509.19128).

    This is RLOO's advantage (arXiv 2402.14740), so ``rloo`` names it too, and G / (G - 1) times ``group_mean``.
    """
    if all_equal(rewards_G):
        return [0.0] * len(rewards_G)
    total = sum(rewards_G)
    return [reward - (total - reward) / (len(rewards_G) - 1) for reward in rewards_G]


def group_mean(rewards_G: Sequence[float]) -> list[float]:
    """A_i = R_i - mean of the group's rewards (Dr. GRPO, arXiv 2503.20783, section 3.2)."""
    if all_equal(rewards_G):
        return [0.0] * len(rewards_G)
    mean = sum(rewards_G) / len(rewards_G)
    return [reward - mean for reward in rewards_G]


def group_mean_std(rewards_G: Sequence[float]) -> list[float]:
    """A_i = (R_i - mean) / std of the group's rewards (GRPO, arXiv 2402.03300, section 4.1.2).

    std is the sample's (n - 1), as the usual implementations take it.
    """
    deviations_G = group_mean(rewards_G)
    if all_equal(rewards_G):
        return deviations_G
    std = math.hypot(*deviations_G) / math.sqrt(len(rewards_G) - 1)
    return [deviation / (std + EPSILON) for deviation in deviations_G]


def reinforce_pp(rewards_BG: Sequence[Sequence[float]]) -> list[list[float]]:
    """A_i = (R_i - mean) / std over all sequences of the batch (REINFORCE++, arXiv 2501.03262).

    Groups do not matter here, so they may have one member, and a group of equal rewards has advantages too. The paper
    normalises after its penalty to the reference is in the rewards; here ``[kl]`` comes after.
    """
    normalised = iter(group_mean_std([reward for rewards_G in rewards_BG for reward in rewards_G]))
    return [[next(normalised) for _ in rewards_G] for rewards_G in rewards_BG]


def by_group(advantage: GroupAdvantage) -> Advantage:
    """An advantage that looks at each group alone, for a whole batch."""
    return lambda rewards_BG: [advantage(rewards_G) for rewards_G in rewards_BG]


ADVANTAGES: dict[str, Advantage] = {
    "leave_one_out": by_group(leave_one_out),
    "rloo": by_group(leave_one_out),
    "group_mean": by_group(group_mean),
    "dr_grpo": by_group(group_mean),
    "group_mean_std": by_group(group_mean_std),
    "reinforce_pp": reinforce_pp,
}
"""By the name in ``[advantage]``."""
