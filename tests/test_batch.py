"""Batches: what was sampled is what is trained, and a plan that keeps all ranks in step."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantage import ADVANTAGES
from prl.batch import make_batch, make_plan, make_sample
from prl.config_algorithm import OverlongConfig
from prl.shaping import shaping_of
from prl.types import Batch, Group
from tests.factories import make_completion, make_group, make_prompt

samples = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5)), max_size=40)
"""Length and family."""
ranks = st.integers(1, 6)
budgets = st.integers(1, 60)


def batch_of(groups: list[Group], *, num_ranks: int = 1, max_tokens: int = 100) -> Batch:
    """The batch of step 5."""
    return make_batch(
        5, groups, advantage=ADVANTAGES["leave_one_out"], num_ranks=num_ranks, max_tokens_per_microbatch=max_tokens
    )


def plan_of(samples: list[tuple[int, int]], num_ranks: int, max_tokens: int) -> tuple[list[list[list[int]]], list[int]]:
    """The plan, and the lengths."""
    lengths = [length for length, _ in samples]
    return make_plan(lengths, num_ranks, max_tokens, [family for _, family in samples]), lengths


def test_what_was_sampled_is_what_is_trained() -> None:
    """Field notes C, re-tokenising text: ids, log-probabilities and versions are the stream's, position by position."""
    completion = make_completion([7, 8], logprobs=[-0.25, -0.5], versions=[3, 4])
    sample = make_sample(make_prompt(1, num_tokens=3), completion, 1.5)
    assert sample.token_ids == [101, 1, 2, 7, 8]
    assert sample.loss_mask == [0, 0, 0, 1, 1]
    assert sample.logprobs == [0.0, 0.0, 0.0, -0.25, -0.5]
    assert sample.versions == [-1, -1, -1, 3, 4]
    assert sample.advantages == [0.0, 0.0, 0.0, 1.5, 1.5]


def test_a_stop_token_that_doubles_as_padding_is_trained() -> None:
    """Field notes C, pad == eos: masks come from lengths, so no token id is special, in prompt or completion."""
    pad = 7
    prompt = make_prompt(0, num_tokens=2)
    prompt.token_ids[:] = [pad, pad]
    sample = make_sample(prompt, make_completion([8, pad, pad]), 1.0)
    assert sample.loss_mask == [0, 0, 1, 1, 1]


def test_samples_follow_groups_and_members_as_given() -> None:
    """Groups in the order they were taken, members in the order they were requested."""
    batch = batch_of([make_group(4, [1.0, 0.0]), make_group(2, [0.0, 0.0, 1.0])])
    assert [sample.token_ids[0] for sample in batch.samples] == [104, 104, 102, 102, 102]
    assert [sum(sample.loss_mask) for sample in batch.samples] == [1, 2, 1, 2, 3]
    assert batch.step == 5


def test_the_denominator_counts_every_sequence_with_a_trained_token() -> None:
    """Field notes D, mean per micro-batch: one global count, and a group that teaches nothing counts as well."""
    groups = [make_group(0, [1.0, 0.0]), make_group(1, [0.5, 0.5, 0.5])]
    assert {batch_of(groups, num_ranks=n, max_tokens=m).num_sequences for n in (1, 2, 7) for m in (1, 4, 100)} == {5}


def test_an_overlong_completion_can_be_masked() -> None:
    """Cut off at a length limit: no token trained, not in the denominator, but its reward is still its group's."""
    completions = [make_completion([7, 8]), make_completion([7, 8, 9], finish="length"), make_completion([5])]
    groups = [make_group(0, [1.0, 0.0, 2.0], completions)]

    def batch(*, mask: bool) -> Batch:
        advantage = ADVANTAGES["group_mean"]
        return make_batch(0, groups, advantage=advantage, num_ranks=1, max_tokens_per_microbatch=99, mask_overlong=mask)

    kept, masked = batch(mask=False), batch(mask=True)
    assert (kept.num_sequences, masked.num_sequences) == (3, 2)
    assert [sum(sample.loss_mask) for sample in masked.samples] == [2, 0, 1]
    assert masked.samples[1].advantages == [0.0] * 5
    assert [masked.samples[0], masked.samples[2]] == [kept.samples[0], kept.samples[2]]


def test_everything_masked_is_a_batch() -> None:
    """Field notes D, everything masked: a batch of no sequences, with a plan."""
    groups = [make_group(0, [1.0, 0.0], [make_completion([7], finish="length"), make_completion([8], finish="length")])]
    batch = make_batch(
        0,
        groups,
        advantage=ADVANTAGES["leave_one_out"],
        num_ranks=2,
        max_tokens_per_microbatch=99,
        mask_overlong=True,
    )
    assert batch.num_sequences == 0
    assert [len(microbatches) for microbatches in batch.plan] == [1, 1]


def test_rewards_are_shaped_before_they_are_compared() -> None:
    """Equal scores and unequal lengths: what is too long costs, and the advantages say so."""
    groups = [make_group(0, [1.0, 1.0], [make_completion([7] * 10), make_completion([7] * 6)])]
    batch = make_batch(
        0,
        groups,
        advantage=ADVANTAGES["leave_one_out"],
        num_ranks=1,
        max_tokens_per_microbatch=99,
        rewards_of=shaping_of(OverlongConfig(buffer=4), max_tokens=10),
    )
    assert [sample.advantages[-1] for sample in batch.samples] == [-1.0, 1.0]


def test_a_batch_is_a_function_of_its_groups() -> None:
    """The same groups give the same batch, plan included."""
    groups = [make_group(number, [1.0, 0.0, 0.0, 1.0]) for number in range(8)]
    assert batch_of(groups, num_ranks=3, max_tokens=7) == batch_of(groups, num_ranks=3, max_tokens=7)


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=4), min_size=1, max_size=8), ranks, budgets)
def test_samples_without_a_gradient_are_planned_last(
    rewards: list[list[float]], num_ranks: int, max_tokens: int
) -> None:
    """Where only advantages teach, those of 0 are apart, at the same places on all ranks, and none is lost."""
    batch = make_batch(
        5,
        [make_group(number, of_group) for number, of_group in enumerate(rewards)],
        advantage=ADVANTAGES["leave_one_out"],
        num_ranks=num_ranks,
        max_tokens_per_microbatch=max_tokens,
        only_advantages_teach=True,
    )
    planned = [index for microbatches in batch.plan for microbatch in microbatches for index in microbatch]
    assert sorted(planned) == list(range(len(batch.samples)))
    assert len({len(microbatches) for microbatches in batch.plan}) == 1
    assert batch.num_teaching is not None
    assert batch.num_teaching >= 1, "a step without a gradient is one, too"
    behind = [index for microbatches in batch.plan for of in microbatches[batch.num_teaching :] for index in of]
    assert not any(any(batch.samples[index].advantages) for index in behind)
    if any(any(sample.advantages) for sample in batch.samples):
        before = set(planned) - set(behind)
        assert all(any(batch.samples[index].advantages) for index in before)


@settings(deadline=None)
@given(samples, ranks, budgets)
def test_each_sample_is_in_exactly_one_microbatch(
    samples: list[tuple[int, int]], num_ranks: int, max_tokens: int
) -> None:
    """The plan neither loses nor repeats a sample."""
    plan, lengths = plan_of(samples, num_ranks, max_tokens)
    planned = [index for microbatches in plan for microbatch in microbatches for index in microbatch]
    assert sorted(planned) == list(range(len(lengths)))


@settings(deadline=None)
@given(samples, ranks, budgets)
def test_all_ranks_have_as_many_microbatches(samples: list[tuple[int, int]], num_ranks: int, max_tokens: int) -> None:
    """Field notes D, unequal micro-batch counts: every rank takes part in equally many collectives, at least 1."""
    plan, _ = plan_of(samples, num_ranks, max_tokens)
    assert len(plan) == num_ranks
    assert len({len(microbatches) for microbatches in plan}) == 1
    assert len(plan[0]) >= 1


@settings(deadline=None)
@given(samples, ranks, budgets)
def test_a_microbatch_keeps_its_budget(samples: list[tuple[int, int]], num_ranks: int, max_tokens: int) -> None:
    """No micro-batch exceeds the budget, except one sample that is longer than it, alone."""
    plan, lengths = plan_of(samples, num_ranks, max_tokens)
    for microbatches in plan:
        for microbatch in microbatches:
            tokens = sum(lengths[index] for index in microbatch)
            assert tokens <= max_tokens or len(microbatch) == 1


@settings(deadline=None)
@given(samples, ranks, budgets)
def test_ranks_carry_the_same_load(samples: list[tuple[int, int]], num_ranks: int, max_tokens: int) -> None:
    """No rank has more tokens than another by more than the longest sample: nobody waits long for a neighbour."""
    plan, lengths = plan_of(samples, num_ranks, max_tokens)
    loads = [sum(lengths[index] for microbatch in microbatches for index in microbatch) for microbatches in plan]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@settings(deadline=None)
@given(samples, ranks, budgets)
def test_microbatches_are_filled(samples: list[tuple[int, int]], num_ranks: int, max_tokens: int) -> None:
    """On a rank, no two micro-batches would fit into one."""
    plan, lengths = plan_of(samples, num_ranks, max_tokens)
    for microbatches in plan:
        filled = sorted(sum(lengths[index] for index in microbatch) for microbatch in microbatches if microbatch)
        assert len(filled) < 2 or filled[0] + filled[1] > max_tokens


@settings(deadline=None)
@given(samples, budgets)
def test_families_cost_no_microbatch(samples: list[tuple[int, int]], max_tokens: int) -> None:
    """A rank has no more micro-batches than it would have if nothing were kept together."""
    plan, lengths = plan_of(samples, 1, max_tokens)
    assert len(plan[0]) <= len(make_plan(lengths, 1, max_tokens)[0])


def test_a_group_stays_together() -> None:
    """Four groups of lengths that mix: each rank and each micro-batch has whole ones, although longest came first."""
    samples = [(length, family) for family in range(4) for length in (9, 8, 8, 7)]
    plan, _ = plan_of(samples, 2, 32)
    assert [[{samples[index][1] for index in of} for of in microbatches] for microbatches in plan] == [
        [{0}, {2}],
        [{1}, {3}],
    ]


def test_a_batch_keeps_its_groups_together() -> None:
    """Groups of the batch are its families: with room for a group in a micro-batch, each has one."""
    batch = batch_of([make_group(number, [1.0, 0.0, 0.0, 1.0]) for number in range(4)], num_ranks=2, max_tokens=22)
    assert sorted(sorted(of) for microbatches in batch.plan for of in microbatches) == [
        [*range(first, first + 4)] for first in range(0, 16, 4)
    ]


@pytest.mark.parametrize(
    ("lengths", "num_ranks", "plan"),
    [
        ([9, 1, 1, 1], 2, [[[0]], [[1, 2, 3]]]),
        ([5], 2, [[[0]], [[]]]),
        ([], 2, [[[]], [[]]]),
        ([20, 3, 20], 1, [[[0], [2], [1]]]),
        ([6, 6, 4, 4], 1, [[[0, 2], [1, 3]]]),
        ([7, 5, 3], 1, [[[0, 2], [1]]]),
    ],
)
def test_plans_by_hand(lengths: list[int], num_ranks: int, plan: list[list[list[int]]]) -> None:
    """Field notes D, lengths [9, 1, 1, 1] and a batch of 1 on two ranks, and more: the plan is what one would draw."""
    assert make_plan(lengths, num_ranks, 10) == plan


@pytest.mark.parametrize(("num_samples", "num_ranks"), [(1024, 128), (8192, 8), (8192, 1)])
def test_planning_costs_next_to_nothing(num_samples: int, num_ranks: int) -> None:
    """Thousands of samples on many ranks, or on one with thousands of micro-batches, are planned at once."""
    lengths = [1 + 7919 * index % 4096 for index in range(num_samples)]
    started = time.process_time()
    make_plan(lengths, num_ranks, 4096, [index // 16 for index in range(num_samples)])
    assert time.process_time() - started < 0.4
