"""The controller's end of the link to a transformers engine's child: its process, its connection and its death.

Invariants:

- Whatever ends the child or the connection ends the link once, with one reason: every call raises it, ``on_end`` is
  called, ``failed`` returns it. There is no other end, so a caller that hears of none may wait.
- One task reads the child. It hands tokens to ``on_tokens``, which must not block, so that no consumer delays another.
- Only the child that was given the token is listened to, and only on loopback.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from prl.engines.transformers_protocol import (
    ADDRESS_VARIABLE,
    TOKEN_VARIABLE,
    Call,
    FromChild,
    FromController,
    Hello,
    Reply,
    Request,
    Tokens,
)
from prl.errors import EngineDeadError, EngineError
from prl.process import Child, tail
from prl.wire import Channel, WireClosedError, WireError

_LOOPBACK = "127.0.0.1"
_STOP_GRACE_S = 2.0
_END_S = 5.0
"""A child that dropped its connection is about to end; past this it is killed."""


class Link:
    """One child process that answers calls and sends tokens."""

    def __init__(
        self,
        name: str,
        log: Path,
        *,
        on_tokens: Callable[[Tokens], None],
        on_end: Callable[[], None],
        send_timeout_s: float,
    ) -> None:
        self._name, self._log = name, log
        self._on_tokens, self._on_end = on_tokens, on_end
        self._send_timeout_s = send_timeout_s
        self._token = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._child: Child | None = None
        self._channel: Channel[FromChild] | None = None
        self._connected, self._ended = asyncio.Event(), asyncio.Event()
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._ids = itertools.count()
        self.reason: str | None = None
        """Why the link has ended; None while it has not."""

    async def start(self) -> None:
        """Start the child and wait until it has connected. The caller owns the deadline.

        Raises:
            EngineDeadError: the child ended first.
        """
        self._server = await asyncio.start_server(self._serve, _LOOPBACK, 0)
        port = self._server.sockets[0].getsockname()[1]
        command = [sys.executable, "-m", "prl.engines.transformers_host"]
        env = {ADDRESS_VARIABLE: f"{_LOOPBACK}:{port}", TOKEN_VARIABLE: self._token}
        self._child = await Child.start(self._name, command, self._log, env)
        async with asyncio.TaskGroup() as group:
            # Until the connection stands, the child's end is seen here; afterwards the connection's end tells.
            watch = group.create_task(self._watch_start(self._child))
            await self._connected.wait()
            watch.cancel()
        self._server.close()
        self.check_alive()

    async def call(self, request: Request, timeout_s: float, error: type[Exception] = EngineError) -> Reply:
        """Ask the child and wait for its answer; what it could not do in time, or at all, is raised as ``error``."""
        self.check_alive()
        number = next(self._ids)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        what = type(request).__name__.lower()
        try:
            async with asyncio.timeout(timeout_s):
                await self.send(Call(id=number, request=request))
                reply = await future
        except TimeoutError:
            raise error(f"{self._name} did not answer {what!r} within {timeout_s:g} s") from None
        finally:
            del self._calls[number]
        if reply.error is not None:
            raise error(f"{self._name}: {reply.error}")
        return reply

    async def send(self, message: FromController) -> None:
        """Send a message; a child that takes none is killed."""
        self.check_alive()
        assert self._channel is not None, "checked alive"
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await self._channel.send(message)
        except WireClosedError:
            raise EngineDeadError(await self.failed()) from None
        except TimeoutError:
            await self.kill(f"{self._name} took no message for {self._send_timeout_s:g} s")
            self.check_alive()

    def check_alive(self) -> None:
        """Raise the link's end, if it has ended."""
        if self.reason is not None:
            raise EngineDeadError(self.reason)
        if self._channel is None:
            raise EngineError(f"{self._name} is not open")

    async def failed(self) -> str:
        """Wait for the end and return its reason."""
        await self._ended.wait()
        assert self.reason is not None, "the end has a reason"
        return self.reason

    async def kill(self, reason: str) -> None:
        """End a child that does not move."""
        self._end(f"{reason}; last lines of {self._log}:\n{tail(self._log)}")
        await self._stop(grace_s=0)

    async def close(self) -> None:
        """End the child, if it still runs. Idempotent."""
        self._end(f"{self._name} is closed")
        if self._server is not None:
            self._server.close()
        await self._stop(_STOP_GRACE_S)

    async def _stop(self, grace_s: float) -> None:
        if self._child is not None:
            await self._child.stop(grace_s)

    def _end(self, reason: str) -> None:
        if self.reason is not None:
            return
        self.reason = reason
        self._connected.set()
        self._ended.set()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EngineDeadError(reason))
        self._on_end()

    async def _watch_start(self, child: Child) -> None:
        self._end(await child.ended())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read the child's messages until its end. The server owns the task that this runs in."""
        channel: Channel[FromChild] = Channel(reader, writer, FromChild)
        try:
            async with asyncio.timeout(_END_S):
                hello = await channel.receive()
            if not (isinstance(hello, Hello) and hmac.compare_digest(hello.token, self._token)):
                return
            self._channel = channel
            self._connected.set()
            while True:
                self._take(await channel.receive())
        except (WireClosedError, WireError, TimeoutError) as error:
            if self._channel is channel:
                self._end(await self._how_it_ended(error))
        finally:
            channel.close()

    def _take(self, message: FromChild) -> None:
        match message:
            case Tokens():
                self._on_tokens(message)
            case Reply(id=number):
                future = self._calls.get(number)  # None: the caller has left
                if future is not None and not future.done():
                    future.set_result(message)
            case Hello():
                raise WireError(f"{self._name} said hello twice")

    async def _how_it_ended(self, error: Exception) -> str:
        assert self._child is not None, "a child that is connected was started"
        try:
            async with asyncio.timeout(_END_S):
                return await self._child.ended()
        except TimeoutError:
            await self._stop(grace_s=0)
            return f"{self._name} broke its connection ({error}); last lines of {self._log}:\n{tail(self._log)}"
