"""How stale a batch is, against a count by hand."""

from __future__ import annotations

import time

import pytest

from prl.advantage import ADVANTAGES
from prl.batch import make_batch
from prl.lag import Lag, lag_of
from prl.types import Batch, Completion, Sample
from tests.factories import make_completion, make_group


def batch_of(step: int, *completions: Completion) -> Batch:
    """A batch for ``step`` of one group of these completions."""
    groups = [make_group(0, [0.0] * len(completions), completions)]
    return make_batch(
        step, groups, advantage=ADVANTAGES["leave_one_out"], num_ranks=1, max_tokens_per_microbatch=10_000
    )


@pytest.mark.parametrize(
    ("step", "versions", "lag_max", "lag_mean", "num_versions"),
    [
        (0, [[0, 0, 0]], 0, 0.0, 1),
        (3, [[3, 3, 3]], 0, 0.0, 1),
        (3, [[1, 2, 3, 3]], 2, 0.75, 3),
        (3, [[3], [1, 1, 1]], 2, 1.5, 1),
        (7, [[2, 6, 6], [5]], 5, 9 / 4, 2),
    ],
)
def test_lag_is_the_step_minus_the_version(
    step: int, versions: list[list[int]], lag_max: int, lag_mean: float, num_versions: int
) -> None:
    """Field notes A, off-by-one in the staleness bound: measured at training time; the maximum at the oldest token.

    The batch of step v is trained on version v, so tokens that version v sampled have lag 0.
    """
    completions = [make_completion(range(1, len(v) + 1), versions=v) for v in versions]
    found = lag_of(batch_of(step, *completions))
    assert (found.max, found.num_versions_max) == (lag_max, num_versions)
    assert found.mean == pytest.approx(lag_mean)


def test_only_trained_tokens_have_a_lag() -> None:
    """Neither the prompt's tokens, which nobody sampled, nor masked ones count."""
    sample = Sample(
        token_ids=[1, 2, 3, 4],
        loss_mask=[0, 0, 1, 1],
        logprobs=[0.0, -1.0, -1.0, -1.0],
        versions=[-1, 0, 4, 5],
        advantages=[0.0, 0.0, 1.0, 1.0],
    )
    batch = Batch(step=5, samples=[sample], plan=[[[0]]], num_sequences=1)
    assert lag_of(batch) == Lag(max=1, mean=0.5, num_versions_max=2, histogram=[1, 1])


def test_tokens_by_lag() -> None:
    """One number for each lag from 0 on; the last bin takes everything that is older."""
    completions = [make_completion([7] * 4, versions=[497, 498, 500, 500]), make_completion([7, 8], versions=[3, 372])]
    found = lag_of(batch_of(500, *completions)).histogram
    assert {lag: count for lag, count in enumerate(found) if count} == {0: 2, 2: 1, 3: 1, 128: 2}
    assert len(found) == 129


def test_a_batch_without_trained_tokens_has_no_lag() -> None:
    """Field notes D, everything masked: zeros and no division by zero."""
    sample = Sample(token_ids=[1], loss_mask=[0], logprobs=[0.0], versions=[-1], advantages=[0.0])
    for samples in ([], [sample]):
        assert lag_of(Batch(step=5, samples=samples, plan=[[[]]], num_sequences=0)) == Lag(
            max=0, mean=0.0, num_versions_max=0
        )


def test_the_lag_of_a_million_tokens_is_no_long_stop() -> None:
    """Measuring the lag hardly holds up the event loop: a small part of a microsecond a token."""
    batch = batch_of(9, *[make_completion(range(1, 4001), versions=[8] * 2000 + [9] * 2000)] * 250)
    started = time.process_time()
    assert lag_of(batch).mean == 0.5
    assert time.process_time() - started < 0.25
