"""Gaps by hand."""

from __future__ import annotations

import math

import msgspec
import pytest

from prl.doctor.evidence import WORST, Gap, Sampled, gap_of

SAMPLED = Sampled(prompt_ids=[5, 6], token_ids=[7, 8], logprobs=[-1.0, -2.0], stopped=True)


def test_a_gap_is_what_its_names_say() -> None:
    """Two tokens whose ratios pi / mu are 2 and 1/2."""
    gap = gap_of([(-1.0, -1.0 + math.log(2)), (-1.0, -1.0 - math.log(2))])
    expected = Gap(
        num_tokens=2, mean=math.log(2), max=math.log(2), bias=0.0, kl=0.25, ess=2.5**2 / (2 * 4.25), mass=1.25
    )
    assert msgspec.structs.astuple(gap) == pytest.approx(msgspec.structs.astuple(expected))


def test_of_nothing_there_is_no_gap() -> None:
    """No division by zero."""
    assert gap_of([]) == Gap(num_tokens=0, mean=0, max=0, bias=0, kl=0, ess=1, mass=1)


@pytest.mark.parametrize("pi", [-math.inf, math.nan])
def test_a_number_that_is_none_is_as_far_off_as_can_be_written(pi: float) -> None:
    """JSON holds neither infinity nor NaN."""
    gap = gap_of([(-1.0, pi)])
    assert gap.max == WORST
    assert all(map(math.isfinite, msgspec.structs.astuple(gap)))


def test_a_completion_is_paired_with_its_own_scores() -> None:
    """The scores are those of the tokens after the first, so the completion's are the last ones."""
    assert SAMPLED.pairs([-9.0, -1.5, -2.5]) == [(-1.0, -1.5), (-2.0, -2.5)]
    assert SAMPLED.pairs([-9.0, -9.0, -1.5, -2.5], num_prefixed=1) == [(-1.0, -1.5), (-2.0, -2.5)]
    assert SAMPLED.pairs([-1.5, -2.5], num_prefixed=-1) == [(-1.0, -1.5), (-2.0, -2.5)]


def test_another_number_of_scores_is_no_pairing() -> None:
    """Something else was scored."""
    assert SAMPLED.pairs([-1.5, -2.5]) is None
