"""Advantages: the paper's leave-one-out baseline, by group and with exact zeros."""

from __future__ import annotations

import math
import random
import typing
from collections.abc import Callable, Sequence
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantage import ADVANTAGES, EPSILON, group_mean, group_mean_std, leave_one_out, reinforce_pp
from prl.batch import make_batch
from prl.config_algorithm import AdvantageConfig
from tests.factories import make_group

rewards = st.floats(min_value=-1e6, max_value=1e6)
GroupAdvantage = Callable[[Sequence[float]], list[float]]
BY_GROUP = [leave_one_out, group_mean, group_mean_std]


def reference(rewards_G: Sequence[float]) -> list[float]:
    """The definition, written plainly: each reward minus the mean of the others'."""
    advantages = []
    for i, reward in enumerate(rewards_G):
        others = [other for j, other in enumerate(rewards_G) if j != i]
        advantages.append(reward - math.fsum(others) / len(others))
    return advantages


@settings(deadline=None)
@given(st.lists(rewards, min_size=2, max_size=16))
def test_each_member_is_compared_with_the_others(rewards_G: list[float]) -> None:
    """A_i is R_i minus the mean of the other rewards."""
    assert leave_one_out(rewards_G) == pytest.approx(reference(rewards_G), abs=1e-6)


@settings(deadline=None)
@given(st.lists(rewards, min_size=1, max_size=16))
def test_a_group_is_centred(rewards_G: list[float]) -> None:
    """The advantages of a group sum to zero, up to rounding."""
    assert math.fsum(leave_one_out(rewards_G)) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("advantage", BY_GROUP)
@settings(deadline=None)
@given(rewards, st.integers(1, 16))
def test_equal_rewards_teach_exactly_nothing(advantage: GroupAdvantage, reward: float, size: int) -> None:
    """A group of equal rewards has advantages of exactly 0: no rounding of a mean becomes a gradient."""
    assert advantage([reward] * size) == [0.0] * size


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("reward", [0.1 * 3, 0.1, 1 / 3, 1e-300, 1e300])
def test_equal_rewards_that_binary_cannot_hold(name: str, reward: float) -> None:
    """Rewards whose sum rounds, such as 0.1 * 3, give exact zeros too, also where the whole batch is equal."""
    assert ADVANTAGES[name]([[reward] * 7, [reward] * 2, [reward]]) == [[0.0] * 7, [0.0] * 2, [0.0]]


def deviations(rewards_G: Sequence[float]) -> list[float]:
    """The definition of the group's mean, written plainly."""
    return [reward - sum(rewards_G) / len(rewards_G) for reward in rewards_G]


def normalised(rewards_G: Sequence[float]) -> list[float]:
    """The definition of mean and standard deviation, written plainly."""
    variance = sum(each**2 for each in deviations(rewards_G)) / (len(rewards_G) - 1)
    return [each / (math.sqrt(variance) + EPSILON) for each in deviations(rewards_G)]


@settings(deadline=None)
@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=16))
def test_group_mean_and_standard_deviation_are_those_of_plain_python(values: list[int]) -> None:
    """Against the definitions, to 1e-6; equal rewards apart, which the next test covers."""
    rewards_G = [value / 8 for value in values]
    assert group_mean(rewards_G) == pytest.approx(deviations(rewards_G), rel=1e-6, abs=1e-9)
    if len(set(values)) > 1:
        assert group_mean_std(rewards_G) == pytest.approx(normalised(rewards_G), rel=1e-6, abs=1e-9)


@settings(deadline=None)
@given(st.lists(rewards, min_size=2, max_size=16))
def test_leave_one_out_is_rloo_and_scales_the_group_mean(rewards_G: list[float]) -> None:
    """G / (G - 1) times the deviation from the group's mean."""
    factor = len(rewards_G) / (len(rewards_G) - 1)
    assert leave_one_out(rewards_G) == pytest.approx([factor * each for each in group_mean(rewards_G)], abs=1e-5)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 9).map(float), min_size=1, max_size=4), min_size=1, max_size=5))
def test_reinforce_pp_normalises_over_the_whole_batch(rewards_BG: list[list[float]]) -> None:
    """The sequences of all groups are one sample; groups of one, and groups of equal rewards, have advantages too."""
    every = [reward for rewards_G in rewards_BG for reward in rewards_G]
    expected = normalised(every) if len(set(every)) > 1 else [0.0] * len(every)
    found = reinforce_pp(rewards_BG)
    assert [len(each) for each in found] == [len(each) for each in rewards_BG]
    assert [value for each in found for value in each] == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("scale", [1e-300, 1e-6, 1e150, 1e300])
def test_no_reward_overflows_a_standard_deviation(scale: float) -> None:
    """Rewards as large as a float holds have finite advantages."""
    assert all(math.isfinite(value) for value in group_mean_std([scale, 0.0, -scale, 0.5 * scale]))


def test_rewards_that_differ_by_rounding_teach_next_to_nothing() -> None:
    """0.1 + 0.2 against 0.3: no division by a standard deviation of 1e-17 makes advantages of it."""
    assert max(map(abs, group_mean_std([0.1 + 0.2, 0.3]))) < 1e-9


def test_hand_computed_groups() -> None:
    """Two groups of three, computed by hand."""
    assert leave_one_out([1.0, 0.0, 0.0]) == [1.0, -0.5, -0.5]
    assert leave_one_out([3.0, 1.0, 2.0]) == [1.5, -1.5, 0.0]


def test_a_member_of_its_own_has_no_baseline() -> None:
    """A group of one has nothing to be compared with, so its advantage is 0 and not its reward."""
    assert leave_one_out([5.0]) == [0.0]


@settings(deadline=None)
@given(st.permutations(range(6)), st.integers(0, 2**32))
def test_groups_are_formed_by_prompt_and_not_by_arrival(order: list[int], seed: int) -> None:
    """Field notes D, advantage from the wrong grouping: two groups of three, in any order of arrival.

    Members that arrive interleaved give each completion the advantage that its own group gives it.
    """
    members = [(0, 1.0, 1.0), (0, 0.0, -0.5), (0, 0.0, -0.5), (1, 3.0, 1.5), (1, 1.0, -1.5), (1, 2.0, 0.0)]
    arrived: dict[int, list[tuple[float, float]]] = {}
    for index in order:
        prompt_id, reward, expected = members[index]
        arrived.setdefault(prompt_id, []).append((reward, expected))
    groups = [make_group(prompt_id, [reward for reward, _ in arrived[prompt_id]]) for prompt_id in arrived]
    random.Random(seed).shuffle(groups)

    batch = make_batch(0, groups, advantage=ADVANTAGES["leave_one_out"], num_ranks=1, max_tokens_per_microbatch=100)

    found = [(sample.token_ids[0] - 100, sample.advantages[-1]) for sample in batch.samples]
    expected_by_sample = [(group.prompt.id, expected) for group in groups for _, expected in arrived[group.prompt.id]]
    assert found == expected_by_sample


def test_the_configuration_names_it() -> None:
    """``[advantage] name`` knows exactly these; those that look at one group are applied to each."""
    assert set(ADVANTAGES) == set(get_args(typing.get_type_hints(AdvantageConfig)["name"]))
    for each in (leave_one_out, group_mean, group_mean_std):
        assert ADVANTAGES[each.__name__]([[1.0, 0.0], [3.0, 5.0, 1.0]]) == [each([1.0, 0.0]), each([3.0, 5.0, 1.0])]


@pytest.mark.parametrize(("name", "same"), [("rloo", leave_one_out), ("dr_grpo", group_mean)])
def test_two_are_known_by_the_names_of_their_papers_too(name: str, same: Callable[[list[float]], list[float]]) -> None:
    """RLOO is leave-one-out, and Dr. GRPO's advantage is the group mean's."""
    assert ADVANTAGES[name]([[1.0, 0.0], [3.0, 5.0, 1.0]]) == [same([1.0, 0.0]), same([3.0, 5.0, 1.0])]
