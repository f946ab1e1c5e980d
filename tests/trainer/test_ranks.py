from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from prl.errors import ConfigError
from prl.trainer import protocol
from prl.trainer.ranks import RankFailure, Ranks
from prl.wire import Channel, WireClosedError
from tests.trainer.cases import make_config

SETUP = protocol.Setup(config=make_config(Path("m")), model="m", resume=None)


class FakeRank:
    """The other end of one connection, driven by the test."""

    def __init__(self, channel: Channel[protocol.FromController]) -> None:
        self.channel = channel

    async def greet(self, rank: int, world_size: int = 2, token: str = "secret") -> None:
        """Introduce itself."""
        await self.channel.send(protocol.Hello(rank=rank, world_size=world_size, pid=100 + rank, token=token))

    async def answer(self, *replies: protocol.Reply) -> None:
        """Answer so many commands."""
        for reply in replies:
            await self.channel.receive()
            await self.channel.send(reply)


Connect = Callable[[str], Awaitable[FakeRank]]


@pytest.fixture
async def ranks() -> AsyncIterator[Ranks]:
    """Two ranks expected, with everything under a deadline."""
    async with asyncio.timeout(20):
        group = Ranks(2, "secret")
        yield group
        group.close()
        await asyncio.sleep(0)  # one turn of the loop, in which the sockets close


@pytest.fixture
async def connect(ranks: Ranks) -> AsyncIterator[Connect]:
    """Opens connections to an address; all are closed at the end."""
    opened: list[FakeRank] = []

    async def open_one(address: str) -> FakeRank:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        opened.append(FakeRank(Channel[protocol.FromController](reader, writer, protocol.FromController)))
        return opened[-1]

    yield open_one
    for fake in opened:
        fake.channel.close()


async def _both(ranks: Ranks, connect: Connect) -> tuple[FakeRank, FakeRank]:
    address = ranks.listen("127.0.0.1", 0)
    first, second = await connect(address), await connect(address)
    await first.greet(1)
    await second.greet(0)
    assert await ranks.gather() is None
    return second, first


async def test_ranks_are_known_by_what_they_say(ranks: Ranks, connect: Connect) -> None:
    """The order of connecting does not matter, and each rank gets its own command."""
    zero, one = await _both(ranks, connect)
    assert (ranks.pid(0), ranks.pid(1), ranks.missing()) == (100, 101, [])
    async with asyncio.TaskGroup() as group:
        group.create_task(zero.answer(protocol.Scored(logprobs=[0.0])))
        group.create_task(one.answer(protocol.Scored(logprobs=[1.0])))
        replies = await ranks.ask([protocol.Score(token_ids=[0]), protocol.Score(token_ids=[1])])
    assert replies == [protocol.Scored(logprobs=[0.0]), protocol.Scored(logprobs=[1.0])]


async def test_a_stranger_is_refused_and_does_not_end_the_start(ranks: Ranks, connect: Connect) -> None:
    """A wrong token, noise and silence are dropped; the real ranks still come in."""
    address = ranks.listen("127.0.0.1", 0)
    thief, noise, silent = [await connect(address) for _ in range(3)]
    await thief.greet(0, token="guess")
    noise.channel._writer.write(b"GET / HTTP/1.1\r\n\r\n")
    one, two = await connect(address), await connect(address)
    async with asyncio.TaskGroup() as group:
        gathering = group.create_task(ranks.gather())
        refused = await thief.channel.receive()
        assert isinstance(refused, protocol.Refused)
        assert "wrong token" in refused.reason
        with pytest.raises(WireClosedError):
            await noise.channel.receive()
        await one.greet(0)
        await two.greet(1)
    assert gathering.result() is None
    with pytest.raises(WireClosedError):
        await silent.channel.receive()


@pytest.mark.parametrize(
    ("rank", "world_size", "reason"),
    [
        (0, 3, "rank 0 (pid 100) of 3 came, but trainer.num_ranks = 2"),
        (2, 2, "there is no such rank"),
        (-1, 2, "there is no such rank"),
    ],
)
async def test_a_wrong_claim_with_the_right_token_ends_the_start(
    ranks: Ranks, connect: Connect, rank: int, world_size: int, reason: str
) -> None:
    """A rank of this run that does not fit is an error at once, not a wait for the deadline."""
    address = ranks.listen("127.0.0.1", 0)
    stray = await connect(address)
    await stray.greet(rank, world_size)
    refusal = await ranks.gather()
    assert refusal is not None
    assert reason in refusal


async def test_the_same_rank_twice_ends_the_start(ranks: Ranks, connect: Connect) -> None:
    """Two torchruns pointed at one controller are noticed."""
    address = ranks.listen("127.0.0.1", 0)
    for _ in range(2):
        await (await connect(address)).greet(1)
    refusal = await ranks.gather()
    assert refusal is not None
    assert "came twice" in refusal
    assert ranks.missing() == [0]


async def test_a_dead_rank_is_the_cause_and_not_the_peer_that_noticed(ranks: Ranks, connect: Connect) -> None:
    """Rank 0 reports a broken connection to rank 1, whose end is only seen after: rank 1 is named."""
    zero, one = await _both(ranks, connect)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(ranks.ask([protocol.Score(token_ids=[0])] * 2))
        await zero.answer(protocol.Failed(error="Connection closed by peer", traceback=""))
        for _ in range(20):  # turns of the loop, in which the reply is read
            await asyncio.sleep(0)
        one.channel.close()
    assert asking.result() == RankFailure(1, None)


async def test_a_rank_that_failed_is_the_cause_while_its_peer_hangs(ranks: Ranks, connect: Connect) -> None:
    """Rank 1 fails with a bug and rank 0 waits for it in a collective: the answer comes, and names rank 1."""
    _, one = await _both(ranks, connect)
    failed = protocol.Failed(error="KeyError: 'x'", traceback="...")
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(ranks.ask([protocol.Score(token_ids=[0])] * 2))
        await one.answer(failed)
    assert asking.result() == RankFailure(1, failed)


async def test_a_reply_that_is_none_is_a_failure_of_its_rank(ranks: Ranks, connect: Connect) -> None:
    """Bytes that are no message, and a second Hello, are told as that rank's failure."""
    zero, one = await _both(ranks, connect)
    await one.channel.send({"type": "Nonsense"})
    await zero.greet(0)
    outcome = await ranks.ask([protocol.Score(token_ids=[0])] * 2)
    assert isinstance(outcome, RankFailure)
    assert outcome.rank == 0
    assert outcome.failed is not None
    assert "twice" in outcome.failed.error


async def test_an_end_is_seen_while_nobody_reads(ranks: Ranks, connect: Connect) -> None:
    """Between commands the death of a rank sets the event, and the order of deaths is kept."""
    zero, one = await _both(ranks, connect)
    one.channel.close()
    await ranks.any_ended.wait()
    zero.channel.close()
    await ranks.all_ended.wait()
    assert ranks.ends == [1, 0]
    assert await ranks.ask([SETUP] * 2) == RankFailure(1, None)


async def test_a_rank_that_gives_no_sign_of_life_is_dropped(
    ranks: Ranks, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process keeps its connection: silence for too long counts as its end, also for a command that waits."""
    monkeypatch.setattr("prl.trainer.ranks.WATCH_S", 0.02)
    _, one = await _both(ranks, connect)

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


async def test_signs_of_life_are_no_replies(ranks: Ranks, connect: Connect) -> None:
    """Beats before a reply are passed over."""
    zero, one = await _both(ranks, connect)
    for rank in (zero, one):
        for message in (protocol.Beat(), protocol.Beat(), protocol.Done()):
            await rank.channel.send(message)
    assert await ranks.ask([protocol.Score(token_ids=[0])] * 2) == [protocol.Done()] * 2


async def test_shutting_down_tells_those_that_are_left(ranks: Ranks, connect: Connect) -> None:
    """A rank that is gone does not keep the others from being told."""
    zero, one = await _both(ranks, connect)
    zero.channel.close()
    await ranks.any_ended.wait()
    await ranks.shut_down()
    assert await one.channel.receive() == protocol.Shutdown()


async def test_a_port_in_use_is_a_config_error(ranks: Ranks) -> None:
    """The message names the key, the address and what else can be chosen."""
    address = ranks.listen("127.0.0.1", 0)
    other = Ranks(1, "t")
    with contextlib.closing(other), pytest.raises(ConfigError, match=rf"trainer\.listen = '{address}'.*port 0"):
        other.listen("127.0.0.1", int(address.rpartition(":")[2]))
