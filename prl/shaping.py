"""The rewards that a group is trained on: what its scores say, less what overlong completions cost. Pure."""

from __future__ import annotations

from collections.abc import Callable

from prl.config_algorithm import OverlongConfig
from prl.types import Group

Shaping = Callable[[Group], list[float]]
"""The rewards to train on, one per member."""


def shaping_of(overlong: OverlongConfig, max_tokens: int) -> Shaping:
    """How ``[overlong]`` shapes the rewards of a group; ``max_tokens`` is the longest that a completion can be."""

    def shaped(group: Group) -> list[float]:
        return [
            score.reward + overlong_penalty(len(completion.token_ids), max_tokens, overlong.buffer)
            for completion, score in zip(group.completions, group.scores, strict=True)
        ]

    return shaped


def plain(group: Group) -> list[float]:
    """The scores as they are."""
    return [score.reward for score in group.scores]


def overlong_penalty(length: int, max_tokens: int, buffer: int) -> float:
    """0 up to ``max_tokens - buffer``, then ((max_tokens - buffer) - length) / buffer (DAPO, arXiv 2503.14476, eq. 13).

    At ``max_tokens`` that is -1, and so it is beyond.
    """
    beyond = length - (max_tokens - buffer)
    if buffer == 0 or beyond <= 0:
        return 0.0
    return max(-1.0, -beyond / buffer)
