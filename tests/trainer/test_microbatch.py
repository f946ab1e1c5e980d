from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.cases import masked, sample

torch: Any = pytest.importorskip("torch")

from prl.trainer.microbatch import MicroBatch, attention_mask, pack, scored  # noqa: E402 -- after the check for torch

CPU = torch.device("cpu")


def places(batch: MicroBatch) -> list[int]:
    """Of each target, where in the rows it is predicted."""
    found: list[int] = batch.at_U[batch.slot_N // batch.targets_UK.shape[1]].tolist()
    return found


def targets(batch: MicroBatch) -> list[int]:
    """What is predicted, target by target."""
    found: list[int] = batch.targets_UK.flatten()[batch.slot_N].tolist()
    return found


def test_each_target_is_predicted_from_the_position_before_it() -> None:
    """Positions restart per sample, a trained token at t is read at t - 1, and a last token is not computed."""
    batch = pack([sample([5, 6, 7], 1, 0.5, -1.0), sample([8, 9, 10, 11], 3, -0.5, -2.0)], CPU, single_row=True)
    assert batch.token_ids_RL.tolist() == [[8, 9, 10, 5, 6]]
    assert batch.positions_RL.tolist() == [[0, 1, 2, 0, 1]]
    assert places(batch) == [3, 4, 2]
    assert targets(batch) == [6, 7, 11]
    assert batch.behaviour_N.tolist() == [-1.0, -1.0, -2.0]
    assert batch.advantages_N.tolist() == [0.5, 0.5, -0.5]
    assert batch.sequence_N.tolist() == [0, 0, 1]
    assert batch.trained_N.tolist() == [True, True, True]


def test_sequences_are_numbered_without_gaps() -> None:
    """Samples with nothing to train have no number: per-sequence sums have one entry per trained sample."""
    samples = [sample([5, 6, 7], 1, 0.5), masked(sample([5, 6, 7], 1, 0.0)), sample([8, 9, 10], 2, 0.5)]
    assert pack(samples, CPU).sequence_N.tolist() == [0, 0, 1]


def test_rows_are_as_long_as_the_longest_sample_and_shared() -> None:
    """3, 1, 2 and 1 tokens make rows of 3: the two's is shared, the last one's is filled, and filling counts on."""
    samples = [sample(list(range(10 * n, 10 * n + length)), 1, 0.5) for n, length in enumerate([4, 2, 3, 2], 1)]
    batch = pack(samples, CPU)
    assert batch.token_ids_RL.tolist() == [[10, 11, 12], [30, 31, 20], [40, 0, 0]]
    assert batch.positions_RL.tolist() == [[0, 1, 2], [0, 1, 0], [0, 1, 2]]
    assert targets(batch) == [11, 12, 13, 21, 31, 32, 41]
    assert (batch.token_ids_RL.flatten()[places(batch)] + 1).tolist() == targets(batch)


def test_what_samples_begin_with_is_there_once_and_predicts_what_each_goes_on_with() -> None:
    """Three answers to one prompt: two targets at its end, one of them of two samples, which keep their order."""
    answers = [sample([5, 6, 7, 8], 2, 0.5), sample([5, 6, 9], 2, -0.5), sample([5, 6, 7, 4], 2, 0.25)]
    batch = pack(answers, CPU, pairs_per_token=100)
    assert batch.token_ids_RL.tolist() == [[5, 6, 7]]
    assert places(batch) == [1, 2, 1, 1, 2]
    assert targets(batch) == [7, 8, 9, 7, 4]
    assert batch.targets_UK.tolist() == [[7, 9], [8, 4]]
    assert batch.advantages_N.tolist() == [0.5, 0.5, -0.5, 0.25, 0.25]
    assert batch.sequence_N.tolist() == [0, 0, 1, 2, 2]


def test_the_mask_is_0_for_what_is_seen() -> None:
    """A token sees itself and those before it whose descendant it is."""
    mask = attention_mask(torch.tensor([[3, 2, 3], [4, 5, 6]]), torch.bfloat16)
    assert (mask.shape, mask.dtype) == ((2, 1, 3, 3), torch.bfloat16)
    assert (mask[:, 0] == 0).tolist() == [
        [[True, False, False], [True, True, False], [True, False, True]],
        [[True, False, False], [False, True, False], [False, False, True]],
    ]
    assert mask.min() == -torch.inf
    assert mask.stride()[-2:] == (16, 1), "sdpa on CUDA would give each layer a copy whose rows begin at such places"


@pytest.mark.parametrize("samples", [[], [masked(sample([5, 6, 7], 1, 0.0))], [masked(sample([5], 1, 0.0))]])
def test_a_rank_with_nothing_to_train_still_predicts_something(samples: list[Any]) -> None:
    """An empty, a fully masked and a one-token micro-batch have one target, which is not trained."""
    batch = pack(samples, CPU, pairs_per_token=100)
    assert batch.token_ids_RL.tolist() == [[0]]
    assert places(batch) == [0]
    assert batch.trained_N.tolist() == [False]
    assert {len(each) for each in (batch.behaviour_N, batch.advantages_N, batch.versions_N, batch.sequence_N)} == {1}


def test_training_a_first_token_is_refused() -> None:
    """No token predicts a sample's first one."""
    with pytest.raises(ValueError, match="sample 1 trains its first token"):
        pack([sample([5, 6], 1, 0.0), sample([5, 6], 0, 0.0)], CPU)


def test_scoring_predicts_every_token_after_the_first() -> None:
    """A sequence of 4 has 3 targets."""
    batch = pack([scored([5, 6, 7, 8])], CPU)
    assert places(batch) == [0, 1, 2]
    assert targets(batch) == [6, 7, 8]


def test_a_short_sample_before_a_long_one_keeps_its_own_positions() -> None:
    """Whatever the order of the samples, positions restart with each of them."""
    batch = pack([sample([5, 6], 1, 0.5), sample([7, 8, 9], 1, 0.5)], CPU, single_row=True)
    assert batch.token_ids_RL.tolist() == [[7, 8, 5]]
    assert batch.positions_RL.tolist() == [[0, 1, 0]]
    assert places(batch) == [2, 0, 1]
