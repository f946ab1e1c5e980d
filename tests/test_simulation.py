"""What the simulated engine and trainer share: a model that needs no arithmetic, and a meeting place."""

from __future__ import annotations

import asyncio

import pytest

from prl.simulation import CHECKPOINT, Meeting, learn, sequence_logprobs
from prl.types import Sample, WeightGroup
from tests.virtual import in_virtual_time

GROUP = WeightGroup(transport="simulated", address="here", port=1, world_size=3, timeout_s=10)


def sample(*token_ids: int) -> Sample:
    """A sample of these tokens."""
    zeros = [0] * len(token_ids)
    return Sample(token_ids=list(token_ids), loss_mask=zeros, logprobs=zeros, versions=zeros, advantages=zeros)


def test_weights_say_what_was_learned_in_which_order() -> None:
    """Equal batches in equal order give equal weights; anything else gives others."""
    a, b = sample(1, 2), sample(1, 3)
    assert learn(learn(CHECKPOINT, [a]), [b]) == learn(learn(CHECKPOINT, [a]), [b])
    assert len({learn(CHECKPOINT, [a, b]), learn(CHECKPOINT, [b, a]), learn(learn(CHECKPOINT, [a]), [b])}) == 3


def test_logprobs_are_negative_and_drift_a_little() -> None:
    """New weights move each log-probability by less than the drift, and by something."""
    token_ids = list(range(100))
    before, after = (sequence_logprobs(weights, token_ids) for weights in (CHECKPOINT, learn(CHECKPOINT, [sample(1)])))
    assert len(before) == 99
    assert all(-5.2 < logprob < 0 for logprob in before)
    assert all(0 < abs(a - b) < 0.1 for a, b in zip(before, after, strict=True))


async def meet() -> list[Meeting]:
    """All three ranks join."""
    async with asyncio.TaskGroup() as group:
        joined = [group.create_task(Meeting.join(GROUP, rank)) for rank in (2, 0, 1)]
    return [task.result() for task in joined]


@in_virtual_time
async def test_nobody_is_past_join_before_everybody_is_there() -> None:
    """The first rank waits for the last; then the address is free for another meeting."""
    async with asyncio.TaskGroup() as group:
        early = [group.create_task(Meeting.join(GROUP, rank)) for rank in (0, 1)]
        await asyncio.sleep(100)
        assert not any(task.done() for task in early)
        group.create_task(Meeting.join(GROUP, 2))
    first = early[0].result()
    assert first is early[1].result()
    assert first is not (await meet())[0]


@in_virtual_time
async def test_rank_that_is_taken_or_disagrees_is_refused() -> None:
    """Two of one rank, or two sizes, are an error and no wait."""
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(Meeting.join(GROUP, 0))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="rank 0 of 3 cannot join"):
            await Meeting.join(GROUP, 0)
        with pytest.raises(ValueError, match="rank 1 of 2 cannot join"):
            await Meeting.join(WeightGroup(transport="x", address="here", port=1, world_size=2, timeout_s=1), 1)
        waiting.cancel()


@in_virtual_time
async def test_rank_that_gave_up_may_come_again() -> None:
    """A join that met its deadline leaves no trace."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await Meeting.join(GROUP, 1)
    assert len({id(meeting) for meeting in await meet()}) == 1


@in_virtual_time
async def test_send_waits_for_every_receiver() -> None:
    """All receivers get the same at the same time, none before all take part, and each send is received once."""
    meeting = (await meet())[0]
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(meeting.send(4, b"w"))
        receiving = [group.create_task(meeting.receive())]
        await asyncio.sleep(5)
        assert not sending.done()
        assert not receiving[0].done()
        receiving.append(group.create_task(meeting.receive()))
    assert [task.result() for task in receiving] == [(4, b"w"), (4, b"w")]


@in_virtual_time
async def test_receiver_that_gave_up_is_not_there() -> None:
    """A send is not satisfied by a receiver that was cancelled."""
    meeting = (await meet())[0]
    async with asyncio.TaskGroup() as group:
        given_up = group.create_task(meeting.receive())
        group.create_task(meeting.receive())
        await asyncio.sleep(0)
        given_up.cancel()
        sending = group.create_task(meeting.send(1, b"w"))
        await asyncio.sleep(5)
        assert not sending.done()
        group.create_task(meeting.receive())
