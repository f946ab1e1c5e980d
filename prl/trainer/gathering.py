"""Who may join: connections that introduce themselves as ranks, until all ranks are there.

Invariants:

- A connection becomes a rank only by a ``Hello`` with the run's token, within ``GREETING_TIMEOUT_S``. Anybody else is
  dropped and reported, and cannot end or delay the start.
- A claim with the right token that does not fit the run (a rank that is there already, another number of ranks) ends
  the start at once, since waiting would not mend it.
- A rank that leaves before all are there is missing again, so its launcher may send another in its place. Once all are
  there nobody listens any more.
"""

from __future__ import annotations

import asyncio
import hmac
import socket

from prl.errors import ConfigError
from prl.log import get_logger
from prl.trainer import protocol
from prl.trainer.ranks import Connection, Ranks, Stream
from prl.wire import Channel, WireClosedError, WireError

GREETING_TIMEOUT_S = 10.0
_log = get_logger(__name__)


class Gathering:
    """See the module; ``ranks`` are those that it gathers, none of them there yet."""

    def __init__(self, ranks: Ranks, token: str) -> None:
        self.ranks, self.token = ranks, token
        self._listener: socket.socket | None = None
        self._over = asyncio.Event()
        self._refusal: str | None = None

    def listen(self, host: str, port: int) -> str:
        """Bind and return the address to connect to. Raises ConfigError where it cannot be had."""
        try:
            self._listener = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            raise ConfigError(
                f"trainer.listen = '{host}:{port}' cannot be used: {error.strerror}; choose another,"
                f" port 0 is any free one"
            ) from error
        self._listener.setblocking(False)
        shown = f"[{host}]" if ":" in host else host
        return f"{shown}:{self._listener.getsockname()[1]}"

    async def gather(self) -> str | None:
        """Wait until every rank is here; returns why that cannot happen, else None. The caller owns the deadline."""
        async with asyncio.TaskGroup() as group:
            acceptor = group.create_task(self._accept())
            await self._over.wait()
            acceptor.cancel()
        self.close()
        return self._refusal

    def close(self) -> None:
        """Listen no more."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._listener is not None
        async with asyncio.TaskGroup() as greetings:
            while True:
                connection, peer = await loop.sock_accept(self._listener)
                greetings.create_task(self._greet(connection, str(peer)))

    async def _greet(self, connection: socket.socket, peer: str) -> None:
        """Make a connection a rank, or drop it."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        stream = Stream(reader)
        try:
            transport, _ = await loop.create_connection(lambda: stream, sock=connection)
        except OSError as error:  # some systems refuse to set up a socket whose peer is gone
            _log.warning("a connection to trainer.listen was gone at once", peer=peer, reason=str(error))
            connection.close()
            return
        writer = asyncio.StreamWriter(transport, stream, reader, loop)
        channel = Channel[protocol.FromRank](reader, writer, protocol.FromRank)
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                hello = await channel.receive()
                refusal = self._check(hello)
                if refusal is None and isinstance(hello, protocol.Hello):
                    self.ranks.join(hello.rank, Connection(hello.pid, hello.host, channel, stream))
                    if not self.ranks.missing():
                        self._over.set()
                    return
                _log.warning("a connection to trainer.listen was refused", peer=peer, reason=refusal)
                await channel.send(protocol.Refused(reason=str(refusal)))
        except (WireClosedError, WireError, TimeoutError) as error:
            _log.warning("a connection to trainer.listen said nothing useful", peer=peer, reason=str(error))
        except BaseException:
            channel.close()
            raise
        channel.close()

    def _check(self, hello: protocol.FromRank) -> str | None:
        """Why the first message of a connection is not accepted. With the right token, a wrong claim ends the start."""
        if not isinstance(hello, protocol.Hello):
            return f"the first message must be Hello, not {type(hello).__name__}"
        if not hmac.compare_digest(hello.token.encode(), self.token.encode()):
            return "wrong token: PRL_TOKEN must be the controller's"
        where = f" on {hello.host}" if hello.host else ""
        claim = f"rank {hello.rank} (pid {hello.pid}{where}) of {hello.world_size}"
        if hello.world_size != self.ranks.num_ranks:
            self._refusal = f"{claim} came, but trainer.num_ranks = {self.ranks.num_ranks}; start torchrun with as many"
        elif not 0 <= hello.rank < self.ranks.num_ranks:
            self._refusal = f"{claim} came: there is no such rank"
        elif hello.rank not in self.ranks.missing():
            self._refusal = f"{claim} came twice; pid {self.ranks.pid(hello.rank)} was first"
        if self._refusal is not None:
            self._over.set()
        return self._refusal
