"""What the simulated trainer says of a step, against numbers counted by hand."""

from __future__ import annotations

import math
import struct

import msgspec
import pytest

from prl.simulation import CHECKPOINT, learn, sequence_logprobs
from prl.trainer.base import LOG_RATIO_EDGES, TrainReport
from prl.trainer.simulated_report import report_of
from prl.types import Batch
from tests.trainer.test_simulated import batch

OTHER = learn(CHECKPOINT, [])


def report(given: Batch, weights: bytes = CHECKPOINT, *, skipped: bool = False) -> TrainReport:
    """Of a step that took two seconds."""
    return report_of(given, weights, lr=0.5, train_s=2.0, skipped=skipped)


def test_on_policy_every_ratio_is_one() -> None:
    """Tokens that the weights themselves sampled: no divergence, no gap, all in the middle bin; others differ."""
    said = report(batch(0))
    assert (said.ess, said.kl_behaviour, said.gap_mean) == (1.0, 0.0, 0.0)
    assert said.ratio_histogram == [4 * (index == len(LOG_RATIO_EDGES) // 2) for index in range(23)]
    stale = report(batch(0), OTHER)
    assert 0.9 < stale.ess < 1
    assert stale.gap_mean is not None
    assert stale.gap_mean > 0


def test_the_numbers_of_a_shifted_batch() -> None:
    """Log-probabilities that are all a quarter too high, in a batch of two sequences."""
    given = msgspec.structs.replace(batch(3, shift=0.25), num_sequences=2, with_logprobs=True)
    said = report(given)
    trained = sequence_logprobs(CHECKPOINT, given.samples[0].token_ids)[1:]
    assert (said.step, said.lr, said.train_s, said.tokens_trained, said.tokens_fresh) == (3, 0.5, 2.0, 4, 4)
    assert (said.ess, said.kl_behaviour, said.gap_fresh) == pytest.approx((1, 0.25, 0.25))
    assert (said.loss, said.grad_norm) == pytest.approx((-0.5 * sum(trained) / 2, math.sqrt(4 * 0.25)))
    assert said.logprobs == [struct.pack("<4f", *trained)]


def test_only_tokens_of_the_current_version_are_fresh() -> None:
    """The others count in the gap of all, not in that of the fresh ones."""
    sample = batch(3, shift=0.25).samples[0]
    older = msgspec.structs.replace(sample, versions=[-1, -1, 2, 2, 3, 3])
    said = report(Batch(step=3, samples=[older], plan=[[[0]]], num_sequences=1))
    assert (said.tokens_fresh, said.gap_fresh, said.gap_mean) == (2, pytest.approx(0.25), pytest.approx(0.25))
    assert said.logprobs == []


def test_a_skipped_step_and_one_without_tokens_have_defined_numbers() -> None:
    """No loss and no gradient where it is skipped; nothing to compare where nothing was sampled."""
    skipped = report(batch(0), skipped=True)
    assert (skipped.skipped, math.isnan(skipped.loss), math.isnan(skipped.grad_norm)) == (True, True, True)
    empty = report(Batch(step=0, samples=[], plan=[[]], num_sequences=1))
    assert (empty.loss, empty.grad_norm, empty.ess, empty.gap_mean, empty.gap_fresh) == (0.0, 0.0, 1.0, None, None)
