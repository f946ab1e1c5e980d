"""pass@k against its definition, and intervals that cover what they say."""

from __future__ import annotations

import itertools
import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prl.estimates import Estimate, estimate, pass_at_k


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_one_that_passed(passed: list[bool], data: st.DataObject) -> None:
    """Every way to choose k of the n answers, counted."""
    k = data.draw(st.integers(1, len(passed)))
    chosen = [any(subset) for subset in itertools.combinations(passed, k)]
    assert pass_at_k(len(passed), sum(passed), k) == pytest.approx(float(Fraction(sum(chosen), len(chosen))), abs=1e-12)


@given(st.integers(1, 400), st.data())
def test_pass_at_k_of_many_answers(num_answers: int, data: st.DataObject) -> None:
    """pass@1 is the share that passed, pass@n whether any did, and a larger k is never worse."""
    num_passed = data.draw(st.integers(0, num_answers))
    k = data.draw(st.integers(1, num_answers))
    assert pass_at_k(num_answers, num_passed, 1) == pytest.approx(num_passed / num_answers)
    assert pass_at_k(num_answers, num_passed, num_answers) == float(num_passed > 0)
    assert pass_at_k(num_answers, num_passed, 1) <= pass_at_k(num_answers, num_passed, k) + 1e-12


@pytest.mark.parametrize(("n", "c", "k"), [(4, 2, 0), (4, 2, 5), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_refuses_what_has_no_answer(n: int, c: int, k: int) -> None:
    """More of k or of c than there are answers is an error, and not 0 or 1."""
    with pytest.raises(ValueError, match=f"k = {k}, n = {n}, c = {c}"):
        pass_at_k(n, c, k)


def test_the_interval_of_one_answer_each_is_wilsons() -> None:
    """Brown, Cai and DasGupta 2001: for 10 of 20, 0.299 to 0.701; for none of 20, 0 to 0.161."""
    half = estimate([[0.0], [1.0]] * 10)
    assert (half.mean, half.low, half.high) == (0.5, pytest.approx(0.2993, abs=2e-4), pytest.approx(0.7007, abs=2e-4))
    none = estimate([[0.0]] * 20)
    assert (none.mean, none.low, none.high) == (0.0, 0.0, pytest.approx(0.1611, abs=2e-4))
    assert estimate([[1.0]] * 20).low == pytest.approx(1 - none.high)


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=12))
def test_rewards_in_0_to_1_have_an_interval_in_0_to_1(values: list[list[float]]) -> None:
    """It holds the mean, stays in range, and has a width, whatever the answers were."""
    found = estimate(values)
    assert found.mean == pytest.approx(statistics.fmean(map(statistics.fmean, values)))
    assert 0 <= found.low <= found.mean <= found.high <= 1
    assert found.low < found.high


def test_answers_of_one_prompt_are_not_independent() -> None:
    """Repeating every answer tells nothing new; answers as different as those of different prompts do."""
    once = estimate([[float(number % 3 == 0)] for number in range(60)])
    repeated = estimate([[float(number % 3 == 0)] * 4 for number in range(60)])
    assert repeated.high - repeated.low == pytest.approx(once.high - once.low, rel=0.02)
    different = estimate([[0.0, 1.0, 0.0]] * 60)
    assert different.high - different.low < 0.6 * (once.high - once.low)


def test_every_prompt_weighs_the_same() -> None:
    """A prompt that lost answers counts as much as one that has them all."""
    assert estimate([[1.0], [0.0, 0.0, 0.0]]).mean == 0.5


def test_rewards_of_any_range_have_the_normal_interval() -> None:
    """1.96 standard errors of the prompts' means to either side; one prompt alone says nothing."""
    found = estimate([[-1.0, 3.0], [2.0], [6.0]])
    assert found.mean == 3.0
    assert found.high - found.mean == pytest.approx(1.96 * statistics.stdev([1, 2, 6]) / math.sqrt(3))
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert estimate([[5.0]]) == Estimate(mean=5.0, low=-math.inf, high=math.inf)


def _coverage(num_prompts: int, num_answers: int, a: float, b: float) -> tuple[float, float]:
    """Share of 2000 evaluations whose interval holds the true mean: ours, and one that takes answers as independent.

    A prompt's share of right answers is drawn from a beta distribution: the smaller a and b, the more they agree.
    """
    draw, true = np.random.default_rng(1), a / (a + b)
    chances = draw.beta(a, b, size=(2000, num_prompts, 1))
    rewards = (draw.random((2000, num_prompts, num_answers)) < chances).astype(float)
    found = [estimate(sample) for sample in rewards.tolist()]
    covered = statistics.fmean(each.low <= true <= each.high for each in found)
    means = rewards.mean(axis=(1, 2))
    width = 1.96 * np.sqrt(means * (1 - means) / (num_prompts * num_answers))
    return covered, float(np.mean(np.abs(means - true) <= width))


@pytest.mark.parametrize(
    ("num_prompts", "num_answers", "a", "b"),
    [(64, 1, 1, 1), (64, 1, 49, 1), (64, 4, 1, 1), (64, 4, 0.2, 0.2), (64, 8, 19, 1), (128, 4, 0.3, 2.7)],
)
def test_the_interval_covers_the_truth(num_prompts: int, num_answers: int, a: float, b: float) -> None:
    """In 95 of 100 evaluations, give or take two: with answers that agree, and with a mean near 1 or 0."""
    covered, _ = _coverage(num_prompts, num_answers, a, b)
    assert 0.93 <= covered <= 0.985


def test_taking_answers_as_independent_would_not() -> None:
    """What the interval is for: with eight answers that agree, a plain one holds the truth in fewer than 70 of 100."""
    covered, plain = _coverage(64, 8, 0.2, 0.2)
    assert plain < 0.7
    assert covered >= 0.93
