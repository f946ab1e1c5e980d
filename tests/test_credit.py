"""Which turn is credited with what, by hand-computed numbers."""

from __future__ import annotations

import pytest

from prl.advantage import ADVANTAGES
from prl.batch import make_batch
from prl.credit import advantages_of, compared
from prl.refill import Refill
from prl.shaping import plain
from prl.types import Completion, Group, Turn
from tests.factories import make_completion, make_group


def episode(*earned: float) -> Completion:
    """One token a turn; what had been given before each."""
    turns = [Turn(sample=0, context=[9], num_sampled=1, finish="stop", earned=before) for before in earned]
    count = len(turns)
    return Completion(
        token_ids=[7] * count, logprobs=[-1.0] * count, versions=[0] * count, text="", finish="stop", turns=turns
    )


@pytest.fixture
def group() -> Group:
    """Rewards of 3, 1 and 0: two turns with 1 after the first, three that earn 1 late, one that earns nothing."""
    return make_group(0, [3.0, 1.0, 0.0], [episode(0.0, 1.0), episode(0.0, 0.0, 0.0), episode(0.0)])


def test_an_episodes_turns_share_its_advantage(group: Group) -> None:
    """Without regard to turns, every turn has what a single stream of that reward would have."""
    assert compared(group, plain(group), "episode") == [[3.0, 1.0, 0.0]]
    advantages = advantages_of([group], [plain(group)], ADVANTAGES["leave_one_out"], "episode")
    assert advantages == [[[2.5, 2.5], [-0.5, -0.5, -0.5], [-2.0]]]


def test_a_turn_answers_for_what_comes_after_it(group: Group) -> None:
    """At each turn the rest is compared with the others' rest; an episode that is over gets nothing more."""
    assert compared(group, plain(group), "reward_to_go") == [[3.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    advantages = advantages_of([group], [plain(group)], ADVANTAGES["leave_one_out"], "reward_to_go")
    assert advantages == [[[2.5, 1.5], [-0.5, 0.0, 1.0], [-2.0]]]


def test_single_streams_are_credited_alike() -> None:
    """Without turns either way gives the advantages of the rewards."""
    group = make_group(0, [1.0, 0.0], [make_completion([7, 8]), make_completion([7])])
    found = [
        advantages_of([group], [[1.0, 0.0]], ADVANTAGES["leave_one_out"], how) for how in ("episode", "reward_to_go")
    ]
    assert found == [[[[1.0], [-1.0]]]] * 2


def test_the_sampled_tokens_of_a_turn_carry_its_advantage(group: Group) -> None:
    """In the batch: context 0, and behind it the turn's own number."""
    batch = make_batch(
        0,
        [group],
        advantage=ADVANTAGES["leave_one_out"],
        credit="reward_to_go",
        num_ranks=1,
        max_tokens_per_microbatch=64,
    )
    assert [sample.advantages for sample in batch.samples] == [[0, 2.5, 0, 1.5], [0, -0.5, 0, 0.0, 0, 1.0], [0, -2.0]]


def test_equal_rewards_of_unequal_turns_teach() -> None:
    """Refills ask what is trained on: the same reward, earned at other turns, is a difference."""
    group = make_group(0, [1.0, 1.0], [episode(0.0, 1.0), episode(0.0, 0.0)])
    assert Refill(plain, 1).wants_another(group)
    assert not Refill(plain, 1, "reward_to_go").wants_another(group)
    sums = make_group(0, [0.1 + 0.2, 0.2], [episode(0.0, 0.1), episode(0.0, 0.0)])
    assert compared(sums, plain(sums), "reward_to_go")[1] == [0.2, 0.2]
