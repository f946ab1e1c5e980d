"""What a token weighs, by hand."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from prl.config_algorithm import LossConfig

torch: Any = pytest.importorskip("torch")

from prl.trainer.losses.aggregation import token_weights  # noqa: E402 -- after the check for torch

Aggregation = Literal["token_sum", "sequence_mean", "fixed_length"]


def weights(aggregation: Aggregation, sequences: list[int], num_sequences: int) -> list[float]:
    """The weights of tokens of these sequences, with at most 8 tokens to a completion."""
    config = LossConfig(aggregation=aggregation)
    sequence_N = torch.tensor(sequences, dtype=torch.long)
    found: list[float] = token_weights(sequence_N, config, num_sequences=num_sequences, max_tokens=8).tolist()
    return found


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_sum", [0.25] * 4),
        ("sequence_mean", [0.25 / 3] * 3 + [0.25]),
        ("fixed_length", [0.25 / 8] * 4),
    ],
)
def test_weights_by_hand(aggregation: Aggregation, expected: list[float]) -> None:
    """Sequences of 3 tokens and of 1, in a batch of 4 sequences of which 2 are elsewhere."""
    assert weights(aggregation, [0, 0, 0, 1], 4) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("aggregation", ["token_sum", "sequence_mean", "fixed_length"])
def test_nothing_trained_divides_by_one(aggregation: Aggregation) -> None:
    """Field notes D, everything masked: no 0/0, whether or not there is a token."""
    assert weights(aggregation, [], 0) == []
    assert weights(aggregation, [0], 0) == [1.0 if aggregation != "fixed_length" else 0.125]
