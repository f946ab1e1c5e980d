"""Rewards of one group into advantages. Pure, and by group: a reward never meets one of another prompt.

Suffix: G, the members of a group that were scored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Advantage = Callable[[Sequence[float]], list[float]]


def leave_one_out(rewards_G: Sequence[float]) -> list[float]:
    """A_i = R_i - mean of the other members' rewards (PipelineRL, section 5; RLOO, arXiv 2402.14740, equation 7).

    A group of equal rewards has advantages of exactly 0, whatever the rounding of its mean; so has a group of one,
    which has nothing to be compared with.
    """
    num_others = len(rewards_G) - 1
    if num_others < 1 or min(rewards_G) == max(rewards_G):
        return [0.0] * len(rewards_G)
    total = sum(rewards_G)
    return [reward - (total - reward) / num_others for reward in rewards_G]


ADVANTAGES: dict[str, Advantage] = {"leave_one_out": leave_one_out}
"""By the name in ``[advantage]``."""
