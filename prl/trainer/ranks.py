"""The connections to all ranks: who may join, one command at a time to all of them, and who left first.

Invariants:

- A connection becomes a rank only by a ``Hello`` with the run's token, within ``GREETING_TIMEOUT_S``. Anybody else is
  dropped and reported, and cannot end or delay the start.
- The order in which ranks end is recorded where the event loop sees it, also while nobody reads. When one rank dies its
  peers soon fail or are ended by torchrun, so the *first* end is the cause that is reported.
- A rank that failed in a command is told apart from one that died. After either, the rest get ``SETTLE_S`` to say what
  they know, so that a dead rank is named rather than the peer that noticed.
- A rank that leaves before all are there is missing again, so its launcher may send another in its place.
- A rank that gives no sign of life is dropped like one that died, while a command waits for it or not.
- Failures travel as values; no task group here closes on an exception of a child.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from prl.errors import ConfigError
from prl.log import get_logger
from prl.trainer import protocol
from prl.waits import waiting
from prl.wire import Channel, WireClosedError, WireError

GREETING_TIMEOUT_S = 10.0
WATCH_S = 1.0
"""How often the ranks' signs of life are looked at."""
SETTLE_S = 0.5

_log = get_logger(__name__)


class RankFailure(NamedTuple):
    """Which rank is at fault in a command that did not succeed."""

    rank: int
    failed: protocol.Failed | None
    """What it said; None: it died, or hangs."""
    in_step: bool = False
    """Whether every rank has answered, so that another command may follow."""


class _Connection(NamedTuple):
    pid: int
    host: str
    channel: Channel[protocol.FromRank]
    stream: _Stream


class Ranks:
    """All ranks of one trainer, from the controller's side."""

    def __init__(self, num_ranks: int, token: str) -> None:
        self.num_ranks, self.token = num_ranks, token
        self._connections: dict[int, _Connection] = {}
        self._listener: socket.socket | None = None
        self._gathered = asyncio.Event()
        self._refusal: str | None = None
        self.ends: list[int] = []
        """Ranks whose connection ended, in that order."""
        self.hung: set[int] = set()
        """Ranks of ``ends`` that were there and gave no sign of life."""
        self.any_ended = asyncio.Event()
        self.all_ended = asyncio.Event()

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
            await self._gathered.wait()
            acceptor.cancel()
        self._stop_listening()
        return self._refusal

    def missing(self) -> list[int]:
        """Ranks that have not introduced themselves."""
        return [rank for rank in range(self.num_ranks) if rank not in self._connections]

    def present(self) -> dict[str, list[int]]:
        """Ranks that have introduced themselves, by the host that they are on."""
        found: dict[str, list[int]] = {}
        for rank, connection in sorted(self._connections.items()):
            found.setdefault(connection.host, []).append(rank)
        return found

    def pid(self, rank: int) -> int:
        """The process id that the rank told."""
        return self._connections[rank].pid

    def host(self, rank: int) -> str:
        """The host that the rank told."""
        return self._connections[rank].host

    async def ask(
        self, commands: Sequence[protocol.Setup | protocol.Command], what: str = "a command"
    ) -> list[protocol.Reply] | RankFailure:
        """Send each rank its command, ``what`` in words, and wait for every reply. The caller owns the deadline."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask_one(rank, command, what)) for rank, command in enumerate(commands)]
            pending: set[asyncio.Task[protocol.Reply | None]] = set(tasks)
            while pending and not any(_failed(task) for task in tasks):
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if any(_failed(task) for task in tasks):
                await asyncio.wait(tasks, timeout=SETTLE_S)
                for task in tasks:
                    task.cancel()
        replies = [task.result() for task in tasks if not task.cancelled()]
        whole: list[protocol.Reply] = [
            reply for reply in replies if reply is not None and not isinstance(reply, protocol.Failed)
        ]
        return whole if len(whole) == self.num_ranks else self._cause(tasks)

    async def shut_down(self) -> None:
        """Tell every rank to leave; those that are gone already are not an error."""
        for connection in self._connections.values():
            try:
                await connection.channel.send(protocol.Shutdown())
            except WireClosedError:
                continue

    async def watch(self, timeout_s: float) -> None:
        """Wait until a rank has ended. One that says nothing for ``timeout_s`` is dropped and counts as ended."""
        clock = asyncio.get_running_loop().time
        while not self.any_ended.is_set():
            looked_at = clock()
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await self.any_ended.wait()
            if clock() - looked_at > 2 * WATCH_S:  # this process slept, and cannot tell who else did
                for connection in self._connections.values():
                    connection.stream.heard_at = clock()
            for rank, connection in self._connections.items():
                if clock() - connection.stream.heard_at > timeout_s and rank not in self.ends:
                    self.hung.add(rank)
                    self._end(rank, connection.stream)
                    connection.channel.close()

    def close(self) -> None:
        """Drop every connection, which ends ranks that are still there."""
        self._stop_listening()
        for connection in self._connections.values():
            connection.channel.close()

    async def _ask_one(self, rank: int, command: protocol.Setup | protocol.Command, what: str) -> protocol.Reply | None:
        """The rank's reply; None when its connection ended or it said what is no reply."""
        connection, doing = self._connections[rank], ""
        channel, stream, clock = connection.channel, connection.stream, asyncio.get_running_loop().time

        def state() -> str:
            where = f"{what}, {doing}" if doing else what
            return f"{where}, heard {clock() - stream.heard_at:.1f} s ago"

        try:
            with waiting(f"trainer rank {rank}", state, alive_at=lambda: stream.heard_at):
                await channel.send(command)
                while isinstance(reply := await channel.receive(), protocol.Beat):
                    doing = reply.doing
        except WireClosedError:
            return None
        except WireError as error:
            return protocol.Failed(error=str(error), traceback="")
        if isinstance(reply, protocol.Hello):
            return protocol.Failed(error="it introduced itself twice", traceback="")
        return reply

    def _cause(self, tasks: Sequence[asyncio.Task[protocol.Reply | None]]) -> RankFailure:
        said = {rank: task.result() for rank, task in enumerate(tasks) if not task.cancelled()}
        failures = {rank: reply for rank, reply in said.items() if isinstance(reply, protocol.Failed)}
        for rank in self.ends:
            if rank not in failures:
                return RankFailure(rank, None)
        rank = min(failures, default=next(iter(said)))
        in_step = len(said) == self.num_ranks and all(reply is not None for reply in said.values())
        return RankFailure(rank, failures.get(rank), in_step)

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
        stream = _Stream(reader)
        transport, _ = await loop.create_connection(lambda: stream, sock=connection)
        writer = asyncio.StreamWriter(transport, stream, reader, loop)
        channel = Channel[protocol.FromRank](reader, writer, protocol.FromRank)
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                hello = await channel.receive()
                refusal = self._check(hello)
                if refusal is None and isinstance(hello, protocol.Hello):
                    self._welcome(hello, channel, stream)
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
        if hello.world_size != self.num_ranks:
            self._refusal = f"{claim} came, but trainer.num_ranks = {self.num_ranks}; start torchrun with as many"
        elif not 0 <= hello.rank < self.num_ranks:
            self._refusal = f"{claim} came: there is no such rank"
        elif hello.rank in self._connections:
            self._refusal = f"{claim} came twice; pid {self.pid(hello.rank)} was first"
        if self._refusal is not None:
            self._gathered.set()
        return self._refusal

    def _welcome(self, hello: protocol.Hello, channel: Channel[protocol.FromRank], stream: _Stream) -> None:
        self._connections[hello.rank] = _Connection(hello.pid, hello.host, channel, stream)
        stream.call_at_end(lambda: self._end(hello.rank, stream))
        if not self.missing():
            self._gathered.set()

    def _end(self, rank: int, stream: _Stream) -> None:
        connection = self._connections.get(rank)
        if connection is None or connection.stream is not stream:
            return  # another came in its place
        if not self._gathered.is_set():
            del self._connections[rank]
            connection.channel.close()
        elif rank not in self.ends:
            self.ends.append(rank)
            self.any_ended.set()
            if len(self.ends) == self.num_ranks:
                self.all_ended.set()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


class _Stream(asyncio.StreamReaderProtocol):
    """A stream that tells when it ends, whether or not anybody reads."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self.heard_at = asyncio.get_running_loop().time()
        self._ended = False
        self._at_end: Callable[[], None] | None = None

    def call_at_end(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end
        if self._ended:
            at_end()

    def data_received(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        super().data_received(data)

    def eof_received(self) -> bool | None:
        self._tell()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._tell()
        super().connection_lost(exc)

    def _tell(self) -> None:
        self._ended = True
        if self._at_end is not None:
            self._at_end()


def _failed(task: asyncio.Task[protocol.Reply | None]) -> bool:
    return task.done() and isinstance(task.result(), protocol.Failed | None)
