"""Which turn of an episode is credited with what: the advantage of each turn. Pure.

- ``episode``: the rewards of a group's episodes are compared, and every turn has its episode's advantage. It knows
  nothing of turns and needs nothing, and its variance grows with their number.
- ``reward_to_go``: a turn answers for what was given after it was asked for, and for nothing before. At each turn the
  members' rewards to go are compared with one another by the same ``[advantage]``; an episode that is over gets nothing
  more, so it counts with 0. Neither half moves the expectation of the policy gradient. What was given before a turn
  does not depend on what is sampled in it, so leaving it out takes away noise alone; so GPOMDP pairs a reward with the
  actions before it (Baxter and Bartlett, "Infinite-Horizon Policy-Gradient Estimation", JAIR 15, 2001, pages 319-350,
  arXiv 1106.0665), which discounts and estimates the gradient of an average reward, where here nothing is discounted
  and an episode ends. And the baseline of a turn depends on other episodes alone (``leave_one_out``), an additive
  control variate (Greensmith, Bartlett and Baxter, "Variance Reduction Techniques for Gradient Estimates in
  Reinforcement Learning", JMLR 5, 2004, pages 1471-1530).
- In either, a completion of one stream has the advantage of its reward.

Suffixes: B, the groups of a batch; G, the members of a group; T, the turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from prl.advantage import Advantage
from prl.types import Completion, Group

Credit = Literal["episode", "reward_to_go"]
DIGITS = 12
"""Decimals of a difference of rewards: equal ones stay equal, in whatever order they were added up."""


def num_turns(completion: Completion) -> int:
    """Turns of an episode; 1 for one stream."""
    return len(completion.turns) or 1


def compared(group: Group, rewards_G: Sequence[float], credit: Credit) -> list[list[float]]:
    """What is compared among the members of a group: one list of G rewards, or one for each turn of the longest."""
    if credit == "episode":
        return [list(rewards_G)]
    longest = max(map(num_turns, group.completions))
    return [
        [_to_go(done, reward, turn) for done, reward in zip(group.completions, rewards_G, strict=True)]
        for turn in range(longest)
    ]


def advantages_of(
    groups: Sequence[Group], rewards_BG: Sequence[Sequence[float]], advantage: Advantage, credit: Credit
) -> list[list[list[float]]]:
    """The advantage of each turn, by group and member. ``rewards_BG`` are those that the groups are trained on."""
    if credit == "episode":
        return [
            [[value] * num_turns(done) for done, value in zip(group.completions, values_G, strict=True)]
            for group, values_G in zip(groups, advantage(rewards_BG), strict=True)
        ]
    found = []
    for group, rewards_G in zip(groups, rewards_BG, strict=True):
        values_TG = [advantage([to_go_G])[0] for to_go_G in compared(group, rewards_G, credit)]
        found.append(
            [
                [values_G[member] for values_G in values_TG[: num_turns(done)]]
                for member, done in enumerate(group.completions)
            ]
        )
    return found


def _to_go(completion: Completion, reward: float, turn: int) -> float:
    """What an episode gets in all, less what it had before it asked for a turn; 0 where it has no such turn."""
    if turn >= num_turns(completion):
        return 0.0
    if not completion.turns or not completion.turns[turn].earned:
        return reward
    return round(reward - completion.turns[turn].earned, DIGITS)
