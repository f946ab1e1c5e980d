"""Advantages: the paper's leave-one-out baseline, by group and with exact zeros."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantage import ADVANTAGES, leave_one_out
from prl.batch import make_batch
from tests.factories import make_group

rewards = st.floats(min_value=-1e6, max_value=1e6)


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


@settings(deadline=None)
@given(rewards, st.integers(1, 16))
def test_equal_rewards_teach_exactly_nothing(reward: float, size: int) -> None:
    """A group of equal rewards has advantages of exactly 0: no rounding of a mean becomes a gradient."""
    assert leave_one_out([reward] * size) == [0.0] * size


@pytest.mark.parametrize("reward", [0.1 * 3, 0.1, 1 / 3, 1e-300, 1e300])
def test_equal_rewards_that_binary_cannot_hold(reward: float) -> None:
    """Rewards whose sum rounds, such as 0.1 * 3, give exact zeros too."""
    assert leave_one_out([reward] * 7) == [0.0] * 7


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

    batch = make_batch(0, groups, advantage=leave_one_out, num_ranks=1, max_tokens_per_microbatch=100)

    found = [(sample.token_ids[0] - 100, sample.advantages[-1]) for sample in batch.samples]
    expected_by_sample = [(group.prompt.id, expected) for group in groups for _, expected in arrived[group.prompt.id]]
    assert found == expected_by_sample


def test_the_configuration_names_it() -> None:
    """``[advantage] name = "leave_one_out"`` is this function."""
    assert ADVANTAGES["leave_one_out"] is leave_one_out
