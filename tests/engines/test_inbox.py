from __future__ import annotations

import asyncio

import pytest

from prl.engines.inbox import Inbox
from prl.errors import EngineError
from prl.types import TokenChunk
from tests.virtual import in_virtual_time


def chunk(token_ids: list[int], version: int, finish: str | None = None) -> TokenChunk:
    """Each token's log-probability is its negative."""
    return TokenChunk(token_ids=token_ids, logprobs=[-float(t) for t in token_ids], version=version, finish=finish)


def put(inbox: Inbox, token_ids: list[int], version: int, finish: str | None = None) -> None:
    """As ``chunk``."""
    inbox.put(token_ids, [-float(t) for t in token_ids], version, finish)


@in_virtual_time
async def test_news_that_wait_together_are_one_chunk_of_a_version() -> None:
    """A consumer that was slow gets all tokens in order, in one chunk for each version, the finish on the last."""
    inbox = Inbox()
    put(inbox, [1, 2], 0)
    put(inbox, [3], 0)
    put(inbox, [4], 1)
    put(inbox, [5, 6], 1, "stop")
    assert [await inbox.take(), await inbox.take()] == [chunk([1, 2, 3], 0), chunk([4, 5, 6], 1, "stop")]


@in_virtual_time
async def test_taken_chunk_does_not_grow() -> None:
    """News after a take are a chunk of their own, of the same version or not."""
    inbox = Inbox()
    put(inbox, [1], 0)
    first = await inbox.take()
    put(inbox, [2], 0)
    assert (first, await inbox.take()) == (chunk([1], 0), chunk([2], 0))


@in_virtual_time
async def test_taker_waits_for_news() -> None:
    """A consumer that is there first is woken by what comes."""
    inbox = Inbox()
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(inbox.take())
        await asyncio.sleep(1)
        assert not taking.done()
        put(inbox, [7], 3)
        put(inbox, [8], 3)
    assert taking.result() == chunk([7, 8], 3)


@in_virtual_time
async def test_cancelled_taker_loses_nothing() -> None:
    """What comes after a consumer was cancelled is there for the next take."""
    inbox = Inbox()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await inbox.take()
    put(inbox, [1], 0)
    assert await inbox.take() == chunk([1], 0)


@in_virtual_time
async def test_failure_comes_after_the_chunks_before_it() -> None:
    """Tokens that came before a failure are given first; then the first failure is raised, at every take."""
    inbox = Inbox()
    put(inbox, [1], 0)
    inbox.fail(EngineError("first"))
    inbox.fail(EngineError("second"))
    assert await inbox.take() == chunk([1], 0)
    for _ in range(2):
        with pytest.raises(EngineError, match="first"):
            await inbox.take()


@in_virtual_time
async def test_failure_wakes_the_taker() -> None:
    """A consumer that waits hears of a failure."""
    inbox = Inbox()
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(failure_of(inbox))
        await asyncio.sleep(1)
        inbox.fail(EngineError("it is gone"))
    assert taking.result() == "it is gone"


async def failure_of(inbox: Inbox) -> str:
    """What a take raises."""
    with pytest.raises(EngineError) as caught:
        await inbox.take()
    return str(caught.value)
