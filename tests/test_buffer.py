"""The slots, and the lag bound that their docstring proves, over random schedules."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl import virtual_time
from prl.buffer import Buffer
from prl.types import Completion, Group, Prompt, Score


def group(prompt_id: int, version: int = 0) -> Group:
    """A group of one completion that ``version`` sampled."""
    prompt = Prompt(id=prompt_id, token_ids=[1], text="", messages=[], fields={})
    completion = Completion(token_ids=[2], logprobs=[-1.0], versions=[version], text="", finish="stop")
    return Group(prompt=prompt, completions=[completion], scores=[Score(reward=0.0)])


async def is_ready(waiting: asyncio.Task[object]) -> bool:
    """Whether a task ends without anything further happening."""
    for _ in range(5):
        await asyncio.sleep(0)
    return waiting.done()


async def test_admission_waits_for_a_free_slot() -> None:
    """No more prompts are under way than there are slots, until one is released or dropped."""
    buffer = Buffer(2)
    first, second = await buffer.admit(), await buffer.admit()
    async with asyncio.TaskGroup() as tasks:
        third = tasks.create_task(buffer.admit())
        assert not await is_ready(third)
        buffer.finish(first, group(0))
        [(taken, _)] = await buffer.take(1)
        assert taken == first
        assert not await is_ready(third), "a taken group still holds its slot"
        buffer.release(1)
        assert await third == 2
    buffer.drop(second)
    assert await buffer.admit() == 3


async def test_groups_are_taken_in_the_order_of_admission() -> None:
    """A short sequence that finishes first does not overtake: it waits for those admitted before it."""
    buffer = Buffer(3)
    tickets = [await buffer.admit() for _ in range(3)]
    buffer.finish(tickets[1], group(1))
    buffer.finish(tickets[2], group(2))
    async with asyncio.TaskGroup() as tasks:
        take = tasks.create_task(buffer.take(2))
        assert not await is_ready(take)
        assert buffer.waiting_for(2) == [tickets[0]]
        buffer.finish(tickets[0], group(0))
        assert [ticket for ticket, _ in await take] == tickets[:2]


async def test_groups_are_taken_as_they_finish_in_the_papers_mode() -> None:
    """With order="completion" what is ready first is trained first."""
    buffer = Buffer(3, order="completion")
    tickets = [await buffer.admit() for _ in range(3)]
    buffer.finish(tickets[2], group(2))
    assert buffer.waiting_for(2) == tickets[:2]
    buffer.finish(tickets[0], group(0))
    assert buffer.waiting_for(2) == []
    assert [ticket for ticket, _ in await buffer.take(2)] == [tickets[2], tickets[0]]


async def test_in_the_papers_mode_a_stream_that_ends_makes_room_though_its_group_goes_on() -> None:
    """The engines stay full: what the short members of a group leave free is given to the next prompt at once."""
    buffer = Buffer(4, order="completion", group_size=2, max_ahead=2)
    first, second = await buffer.admit(), await buffer.admit()
    async with asyncio.TaskGroup() as tasks:
        third = tasks.create_task(buffer.admit())
        buffer.stream_ended(first)
        assert not await is_ready(third), "half a group has no room for a whole one"
        buffer.stream_ended(second)
        assert await third == 2
    assert buffer.statistics().streams == 4


async def test_in_the_papers_mode_generation_does_not_run_away_from_training() -> None:
    """With max_ahead groups finished or in a step no prompt is admitted, whatever is free; a release admits again."""
    buffer = Buffer(8, order="completion", group_size=1, max_ahead=2)
    tickets = [await buffer.admit() for _ in range(4)]
    for ticket in tickets[:3]:
        buffer.finish(ticket, group(ticket))
    async with asyncio.TaskGroup() as tasks:
        another = tasks.create_task(buffer.admit())
        await buffer.take(2)
        assert not await is_ready(another), "what is in a step counts"
        buffer.release(2)
        assert await another == 4


async def test_a_group_larger_than_all_slots_is_admitted_alone() -> None:
    """Engines that cannot hold a group at once sample it in turns rather than never."""
    buffer = Buffer(4, order="completion", group_size=8, max_ahead=2)
    only = await buffer.admit()
    buffer.finish(only, group(only))
    assert await buffer.admit() == 1


async def test_a_drop_closes_the_ranks() -> None:
    """One lost rollout does not block the batch: those behind it move up, and its slot is free at once."""
    buffer = Buffer(2)
    first, second = await buffer.admit(), await buffer.admit()
    buffer.finish(second, group(1))
    buffer.drop(first)
    assert [ticket for ticket, _ in await buffer.take(1)] == [second]
    assert buffer.statistics().dropped == 1


async def test_a_batch_that_the_slots_cannot_hold_is_refused() -> None:
    """Waiting for more groups than there are slots would never end, so it does not begin."""
    with pytest.raises(ValueError, match="cannot take 3 groups from 2 slots"):
        await Buffer(2).take(3)


async def test_statistics_say_where_the_slots_are() -> None:
    """Running, finished and taken add up to the slots held; counters grow."""
    buffer = Buffer(4)
    tickets = [await buffer.admit() for _ in range(4)]
    for ticket in tickets[:3]:
        buffer.finish(ticket, group(ticket))
    await buffer.take(2)
    now = buffer.statistics()
    assert (now.running, now.finished, now.taken, now.admitted, now.trained) == (1, 1, 2, 4, 0)
    buffer.release(2)
    assert (buffer.statistics().taken, buffer.statistics().trained) == (0, 2)


@settings(max_examples=150, deadline=None)
@given(
    max_lag=st.integers(0, 5),
    groups_per_step=st.integers(1, 5),
    drop_share=st.sampled_from([0.0, 0.3]),
    train_s=st.sampled_from([0.01, 1.0, 20.0]),
    seed=st.integers(0, 2**16),
)
def test_the_lag_never_exceeds_the_bound(
    max_lag: int, groups_per_step: int, drop_share: float, train_s: float, seed: int
) -> None:
    """max(trained version - version at admission) <= k for random lengths, drops and speeds; FIFO without loss."""
    lags, trained, dropped = virtual_time.run(simulate(max_lag, groups_per_step, drop_share, train_s, seed))
    assert max(lags) <= max_lag
    assert trained == sorted(trained), "trained in the order of admission"
    lost = set(range(max(trained))) - {*trained, *dropped}
    assert not lost, "nothing before the last trained was left out"


@pytest.mark.parametrize("max_lag", [1, 2, 4])
def test_the_bound_is_reached(max_lag: int) -> None:
    """With a slow trainer the lag is k, not less: the bound paces and does not throttle."""
    lags, _, _ = virtual_time.run(simulate(max_lag, 3, 0.0, 20.0, 1))
    assert max(lags) == max_lag


async def simulate(
    max_lag: int, groups_per_step: int, drop_share: float, train_s: float, seed: int
) -> tuple[list[int], list[int], list[int]]:
    """A run of 30 steps in virtual time: lags, prompts trained and prompts dropped."""
    rng = random.Random(seed)
    buffer = Buffer((max_lag + 1) * groups_per_step)
    version = 0
    lags: list[int] = []
    trained: list[int] = []
    dropped: list[int] = []

    async def roll_out(ticket: int, sampled_by: int) -> None:
        await asyncio.sleep(rng.lognormvariate(0, 1.5))
        if rng.random() < drop_share:
            dropped.append(ticket)
            buffer.drop(ticket)
        else:
            buffer.finish(ticket, group(ticket, sampled_by))

    async def admit() -> None:
        async with asyncio.TaskGroup() as rollouts:
            while True:
                rollouts.create_task(roll_out(await buffer.admit(), version))

    async with asyncio.TaskGroup() as loops:
        admitting = loops.create_task(admit())
        for step in range(30):
            batch = await buffer.take(groups_per_step)
            lags += [step - found.completions[0].versions[0] for _, found in batch]
            trained += [ticket for ticket, _ in batch]
            await asyncio.sleep(train_s)
            version = step + 1
            buffer.release(groups_per_step)
        admitting.cancel()
    return lags, trained, dropped


async def test_fewer_slots_are_a_lower_bound_and_more_than_the_lag_allows_are_refused() -> None:
    """With the order of admission the number may fall and rise again, up to what the buffer was made with."""
    buffer = Buffer(4)
    buffer.resize(2)
    for _ in range(2):
        await buffer.admit()
    async with asyncio.TaskGroup() as tasks:
        third = tasks.create_task(buffer.admit())
        assert not await is_ready(third)
        buffer.resize(4)
    assert third.result() == 2
    with pytest.raises(ValueError, match="4 slots are the lag bound: there cannot be 5"):
        buffer.resize(5)
