"""The other end of one rank's connection, driven by the test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from prl.trainer import protocol
from prl.wire import Channel


class FakeRank:
    """See the module."""

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
