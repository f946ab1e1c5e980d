from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from prl.errors import ConfigError
from prl.trainer import protocol
from prl.trainer.gathering import Gathering
from prl.trainer.ranks import Ranks
from prl.wire import WireClosedError
from tests.trainer.fake_rank import Connect, FakeRank


async def test_a_stranger_is_refused_and_does_not_end_the_start(gathering: Gathering, connect: Connect) -> None:
    """A wrong token, noise and silence are dropped; the real ranks still come in."""
    address = gathering.listen("127.0.0.1", 0)
    thief, noise, silent = [await connect(address) for _ in range(3)]
    await thief.greet(0, token="guess")
    noise.channel._writer.write(b"GET / HTTP/1.1\r\n\r\n")
    one, two = await connect(address), await connect(address)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(gathering.gather())
        refused = await thief.channel.receive()
        assert isinstance(refused, protocol.Refused)
        assert "wrong token" in refused.reason
        with pytest.raises(WireClosedError):
            await noise.channel.receive()
        await one.greet(0)
        await two.greet(1)
    assert waiting.result() is None
    with pytest.raises(WireClosedError):
        await silent.channel.receive()


async def test_a_connection_that_is_gone_at_once_does_not_end_the_start(gathering: Gathering) -> None:
    """Its socket cannot even be set up: that is its own end, and no error of the task that would greet it."""
    gone, other = socket.socketpair()
    with other:
        gone.close()
        await gathering._greet(gone, "somebody")
    assert gathering.ranks.missing() == [0, 1]


@pytest.mark.parametrize(
    ("rank", "world_size", "reason"),
    [
        (0, 3, "rank 0 (pid 100) of 3 came, but trainer.num_ranks = 2"),
        (2, 2, "there is no such rank"),
        (-1, 2, "there is no such rank"),
    ],
)
async def test_a_wrong_claim_with_the_right_token_ends_the_start(
    gathering: Gathering, connect: Connect, rank: int, world_size: int, reason: str
) -> None:
    """A rank of this run that does not fit is an error at once, not a wait for the deadline."""
    address = gathering.listen("127.0.0.1", 0)
    stray = await connect(address)
    await stray.greet(rank, world_size)
    refusal = await gathering.gather()
    assert refusal is not None
    assert reason in refusal


async def test_the_same_rank_twice_ends_the_start(gathering: Gathering, connect: Connect) -> None:
    """Two torchruns pointed at one controller are noticed."""
    address = gathering.listen("127.0.0.1", 0)
    for _ in range(2):
        await (await connect(address)).greet(1)
    refusal = await gathering.gather()
    assert refusal is not None
    assert "came twice" in refusal
    assert gathering.ranks.missing() == [0]


async def test_a_rank_that_left_before_all_were_there_may_come_again(gathering: Gathering, connect: Connect) -> None:
    """It is missing again, and the next with its number takes its place; nobody says that it came twice."""
    ranks, address = gathering.ranks, gathering.listen("127.0.0.1", 0)

    async def greet(rank: int) -> FakeRank:
        fake = await connect(address)
        await fake.channel.send(protocol.Hello(rank=rank, world_size=2, pid=7, token="secret", host="node-3"))
        return fake

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(gathering.gather())
        first = await greet(0)
        while ranks.missing() == [0, 1]:  # noqa: ASYNC110 -- the socket's turn
            await asyncio.sleep(0)
        assert ranks.present() == {"node-3": [0]}
        first.channel.close()
        while ranks.missing() == [1]:  # noqa: ASYNC110 -- the same
            await asyncio.sleep(0)
        for rank in (0, 1):
            await greet(rank)
    assert waiting.result() is None
    assert (ranks.ends, ranks.host(1)) == ([], "node-3")


async def test_a_port_in_use_is_a_config_error(gathering: Gathering) -> None:
    """The message names the key, the address and what else can be chosen."""
    address = gathering.listen("127.0.0.1", 0)
    other = Gathering(Ranks(1), "t")
    with contextlib.closing(other), pytest.raises(ConfigError, match=rf"trainer\.listen = '{address}'.*port 0"):
        other.listen("127.0.0.1", int(address.rpartition(":")[2]))
