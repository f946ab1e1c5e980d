from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from prl.trainer import protocol
from prl.trainer.gathering import Gathering
from prl.trainer.ranks import RankFailure, Ranks
from tests.trainer.cases import make_config
from tests.trainer.fake_rank import Connect, FakeRank

SETUP = protocol.Setup(config=make_config(Path("m")), model="m", resume=None)


@pytest.fixture
def ranks(gathering: Gathering) -> Ranks:
    """Two of them."""
    return gathering.ranks


@pytest.fixture
async def both(gathering: Gathering, connect: Connect) -> tuple[FakeRank, FakeRank]:
    """The other ends of both, which are there."""
    address = gathering.listen("127.0.0.1", 0)
    first, second = await connect(address), await connect(address)
    await first.greet(1)
    await second.greet(0)
    assert await gathering.gather() is None
    return second, first


async def test_ranks_are_known_by_what_they_say(ranks: Ranks, both: tuple[FakeRank, FakeRank]) -> None:
    """The order of connecting does not matter, and each rank gets its own command."""
    zero, one = both
    assert (ranks.pid(0), ranks.pid(1), ranks.missing()) == (100, 101, [])
    async with asyncio.TaskGroup() as group:
        group.create_task(zero.answer(protocol.Scored(logprobs=[0.0])))
        group.create_task(one.answer(protocol.Scored(logprobs=[1.0])))
        replies = await ranks.ask([protocol.Score(token_ids=[0]), protocol.Score(token_ids=[1])])
    assert replies == [protocol.Scored(logprobs=[0.0]), protocol.Scored(logprobs=[1.0])]


async def test_a_dead_rank_is_the_cause_and_not_the_peer_that_noticed(
    ranks: Ranks, both: tuple[FakeRank, FakeRank]
) -> None:
    """Rank 0 reports a broken connection to rank 1, whose end is only seen after: rank 1 is named."""
    zero, one = both
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(ranks.ask([protocol.Score(token_ids=[0])] * 2))
        await zero.answer(protocol.Failed(error="Connection closed by peer", traceback=""))
        for _ in range(20):  # turns of the loop, in which the reply is read
            await asyncio.sleep(0)
        one.channel.close()
    assert asking.result() == RankFailure(1, None)


async def test_a_rank_that_failed_is_the_cause_while_its_peer_hangs(
    ranks: Ranks, both: tuple[FakeRank, FakeRank]
) -> None:
    """Rank 1 fails with a bug and rank 0 waits for it in a collective: the answer comes, and names rank 1."""
    _, one = both
    failed = protocol.Failed(error="KeyError: 'x'", traceback="...")
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(ranks.ask([protocol.Score(token_ids=[0])] * 2))
        await one.answer(failed)
    assert asking.result() == RankFailure(1, failed)


async def test_a_reply_that_is_none_is_a_failure_of_its_rank(ranks: Ranks, both: tuple[FakeRank, FakeRank]) -> None:
    """Bytes that are no message, and a second Hello, are told as that rank's failure."""
    zero, one = both
    await one.channel.send({"type": "Nonsense"})
    await zero.greet(0)
    outcome = await ranks.ask([protocol.Score(token_ids=[0])] * 2)
    assert isinstance(outcome, RankFailure)
    assert outcome.rank == 0
    assert outcome.failed is not None
    assert "twice" in outcome.failed.error


async def test_an_end_is_seen_while_nobody_reads(ranks: Ranks, both: tuple[FakeRank, FakeRank]) -> None:
    """Between commands the death of a rank sets the event, and the order of deaths is kept."""
    zero, one = both
    one.channel.close()
    await ranks.any_ended.wait()
    zero.channel.close()
    await ranks.all_ended.wait()
    assert ranks.ends == [1, 0]
    assert await ranks.ask([SETUP] * 2) == RankFailure(1, None)


async def test_a_rank_that_gives_no_sign_of_life_is_dropped(
    ranks: Ranks, both: tuple[FakeRank, FakeRank], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process keeps its connection: silence for too long counts as its end, also for a command that waits."""
    monkeypatch.setattr("prl.trainer.ranks.WATCH_S", 0.02)
    _, one = both

    async def beat() -> None:
        while True:
            await one.channel.send(protocol.Beat())
            await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        beats = group.create_task(beat())
        asked = group.create_task(ranks.ask([SETUP] * 2))
        await ranks.watch(0.4)
        assert await asked == RankFailure(0, None)
        beats.cancel()
    assert (ranks.ends[0], ranks.hung) == (0, {0})


async def test_signs_of_life_are_no_replies(ranks: Ranks, both: tuple[FakeRank, FakeRank]) -> None:
    """Beats before a reply are passed over."""
    zero, one = both
    for rank in (zero, one):
        for message in (protocol.Beat(), protocol.Beat(), protocol.Done()):
            await rank.channel.send(message)
    assert await ranks.ask([protocol.Score(token_ids=[0])] * 2) == [protocol.Done()] * 2


async def test_shutting_down_tells_those_that_are_left(ranks: Ranks, both: tuple[FakeRank, FakeRank]) -> None:
    """A rank that is gone does not keep the others from being told."""
    zero, one = both
    zero.channel.close()
    await ranks.any_ended.wait()
    await ranks.shut_down()
    assert await one.channel.receive() == protocol.Shutdown()
