"""The connections to all ranks: one command at a time to all of them, and who left first.

Invariants:

- The order in which ranks end is recorded where the event loop sees it, also while nobody reads. When one rank dies its
  peers soon fail or are ended by torchrun, so the *first* end is the cause that is reported.
- A rank that failed in a command is told apart from one that died. After either, the rest get ``SETTLE_S`` to say what
  they know, so that a dead rank is named rather than the peer that noticed.
- A rank that leaves before all are there is missing again (``gathering.py``): only then may another be in its place.
- A rank that gives no sign of life is dropped like one that died, while a command waits for it or not.
- Failures travel as values; no task group here closes on an exception of a child.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from prl.trainer import protocol
from prl.waits import waiting
from prl.wire import Channel, WireClosedError, WireError

WATCH_S = 1.0
"""How often the ranks' signs of life are looked at."""
SETTLE_S = 0.5


class RankFailure(NamedTuple):
    """Which rank is at fault in a command that did not succeed."""

    rank: int
    failed: protocol.Failed | None
    """What it said; None: it died, or hangs."""
    in_step: bool = False
    """Whether every rank has answered, so that another command may follow."""


class Connection(NamedTuple):
    """A rank that has introduced itself."""

    pid: int
    host: str
    channel: Channel[protocol.FromRank]
    stream: Stream


class Ranks:
    """All ranks of one trainer, from the controller's side."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._connections: dict[int, Connection] = {}
        self._were_all_there = False
        self.ends: list[int] = []
        """Ranks whose connection ended, in that order."""
        self.hung: set[int] = set()
        """Ranks of ``ends`` that were there and gave no sign of life."""
        self.any_ended = asyncio.Event()
        self.all_ended = asyncio.Event()

    def join(self, rank: int, connection: Connection) -> None:
        """This one is that rank from now on."""
        self._connections[rank] = connection
        connection.stream.call_at_end(lambda: self._end(rank, connection))
        self._were_all_there = not self.missing()

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
                    self._end(rank, connection)
                    connection.channel.close()

    def close(self) -> None:
        """Drop every connection, which ends ranks that are still there."""
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
        at_fault = {rank: reply for rank, reply in said.items() if isinstance(reply, protocol.Failed | None)}
        for rank in self.ends:
            if at_fault.get(rank) is None:
                return RankFailure(rank, None)
        rank = min(at_fault, key=lambda each: (at_fault[each] is None, each))
        in_step = len(said) == self.num_ranks and None not in at_fault.values()
        return RankFailure(rank, at_fault[rank], in_step)

    def _end(self, rank: int, connection: Connection) -> None:
        if self._connections.get(rank) is not connection:
            return  # another came in its place
        if not self._were_all_there:
            del self._connections[rank]
            connection.channel.close()
        elif rank not in self.ends:
            self.ends.append(rank)
            self.any_ended.set()
            if len(self.ends) == self.num_ranks:
                self.all_ended.set()


class Stream(asyncio.StreamReaderProtocol):
    """A stream that tells when it ends, whether or not anybody reads."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self.heard_at = asyncio.get_running_loop().time()
        self._ended = False
        self._at_end: Callable[[], None] | None = None

    def call_at_end(self, at_end: Callable[[], None]) -> None:
        """At once, where it has ended."""
        self._at_end = at_end
        if self._ended:
            at_end()

    def data_received(self, data: bytes) -> None:
        """A sign of life."""
        self.heard_at = asyncio.get_running_loop().time()
        super().data_received(data)

    def eof_received(self) -> bool | None:
        """The end, in order."""
        self._tell()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, in any case."""
        self._tell()
        super().connection_lost(exc)

    def _tell(self) -> None:
        self._ended = True
        if self._at_end is not None:
            self._at_end()


def _failed(task: asyncio.Task[protocol.Reply | None]) -> bool:
    return task.done() and isinstance(task.result(), protocol.Failed | None)
