from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.cases import masked, sample

torch: Any = pytest.importorskip("torch")

from prl.trainer.microbatch import pack, scored  # noqa: E402 -- after the check for torch

CPU = torch.device("cpu")


def test_each_target_is_predicted_from_the_position_before_it() -> None:
    """Positions restart per sample, and a trained token at t is read at t - 1 of the same sample."""
    batch = pack([sample([5, 6, 7], 1, 0.5, -1.0), sample([8, 9, 10, 11], 3, -0.5, -2.0)], CPU, single_row=True)
    assert batch.token_ids_RL.tolist() == [[8, 9, 10, 11, 5, 6, 7]]
    assert batch.positions_RL.tolist() == [[0, 1, 2, 3, 0, 1, 2]]
    assert batch.at_N.tolist() == [4, 5, 2]
    assert batch.targets_N.tolist() == [6, 7, 11]
    assert batch.behaviour_N.tolist() == [-1.0, -1.0, -2.0]
    assert batch.advantages_N.tolist() == [0.5, 0.5, -0.5]
    assert batch.sequence_N.tolist() == [0, 0, 1]
    assert batch.trained_N.tolist() == [True, True, True]


def test_sequences_are_numbered_without_gaps() -> None:
    """Samples with nothing to train have no number: per-sequence sums have one entry per trained sample."""
    samples = [sample([5, 6, 7], 1, 0.5), masked(sample([5, 6, 7], 1, 0.0)), sample([8, 9, 10], 2, 0.5)]
    assert pack(samples, CPU).sequence_N.tolist() == [0, 0, 1]


def test_rows_are_as_long_as_the_longest_sample_and_shared() -> None:
    """Lengths 4, 2, 3 and 2 make rows of 4: the twos share one, the three's is filled, and filling counts on."""
    samples = [sample(list(range(10 * n, 10 * n + length)), 1, 0.5) for n, length in enumerate([4, 2, 3, 2], 1)]
    batch = pack(samples, CPU)
    assert batch.token_ids_RL.tolist() == [[10, 11, 12, 13], [30, 31, 32, 0], [20, 21, 40, 41]]
    assert batch.positions_RL.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 0, 1]]
    assert batch.targets_N.tolist() == [11, 12, 13, 21, 31, 32, 41]
    assert (batch.token_ids_RL.flatten()[batch.at_N] + 1).tolist() == batch.targets_N.tolist()


@pytest.mark.parametrize("samples", [[], [masked(sample([5, 6, 7], 1, 0.0))], [masked(sample([5], 1, 0.0))]])
def test_a_rank_with_nothing_to_train_still_predicts_something(samples: list[Any]) -> None:
    """An empty, a fully masked and a one-token micro-batch have one target, which is not trained."""
    batch = pack(samples, CPU)
    assert batch.token_ids_RL.shape[1] >= 2
    assert batch.trained_N.tolist() == [False]


def test_training_a_first_token_is_refused() -> None:
    """No token predicts a sample's first one."""
    with pytest.raises(ValueError, match="sample 1 trains its first token"):
        pack([sample([5, 6], 1, 0.0), sample([5, 6], 0, 0.0)], CPU)


def test_scoring_predicts_every_token_after_the_first() -> None:
    """A sequence of 4 has 3 targets."""
    batch = pack([scored([5, 6, 7, 8])], CPU)
    assert batch.at_N.tolist() == [0, 1, 2]
    assert batch.targets_N.tolist() == [6, 7, 8]


def test_a_short_sample_before_a_long_one_keeps_its_own_positions() -> None:
    """Whatever the order of the samples, positions restart with each of them."""
    batch = pack([sample([5, 6], 1, 0.5), sample([7, 8, 9], 1, 0.5)], CPU, single_row=True)
    assert batch.token_ids_RL.tolist() == [[7, 8, 9, 5, 6]]
    assert batch.positions_RL.tolist() == [[0, 1, 2, 0, 1]]
    assert batch.at_N.tolist() == [3, 0, 1]
