"""Rewards of overlong completions, by hand."""

from __future__ import annotations

import pytest

from prl.config_algorithm import OverlongConfig
from prl.shaping import overlong_penalty, plain, shaping_of
from tests.factories import make_completion, make_group


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(1, 0.0), (16, 0.0), (17, -0.25), (18, -0.5), (20, -1.0), (21, -1.0)],
)
def test_the_last_tokens_cost(length: int, penalty: float) -> None:
    """((Lmax - buffer) - length) / buffer over the last buffer tokens: L_max = 20, buffer = 4."""
    assert overlong_penalty(length, 20, 4) == penalty


@pytest.mark.parametrize("length", [1, 20, 21])
def test_no_buffer_costs_nothing(length: int) -> None:
    """0 switches the penalty off, whatever the length."""
    assert overlong_penalty(length, 20, 0) == 0.0


def test_a_buffer_as_long_as_a_completion_prices_every_token() -> None:
    """From the first token on."""
    assert [overlong_penalty(length, 4, 4) for length in range(5)] == [0.0, -0.25, -0.5, -0.75, -1.0]


def test_the_penalty_is_added_to_the_score() -> None:
    """Member by member; without a buffer the scores are what is trained on."""
    group = make_group(0, [1.0, 0.5], [make_completion([7] * 3), make_completion([7] * 8)])
    assert shaping_of(OverlongConfig(buffer=2), 8)(group) == [1.0, -0.5]
    assert shaping_of(OverlongConfig(), 8)(group) == plain(group) == [1.0, 0.5]
