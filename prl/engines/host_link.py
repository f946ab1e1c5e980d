"""The controller's end of the link to an engine's host process: the process, its connection and its death.

Invariants:

- Whatever ends the host or the connection ends the link once, with one reason: every call raises it, ``on_end`` is
  called, ``failed`` returns it. There is no other end, so a caller that hears of none may wait.
- One task reads the host. It hands tokens to ``on_news``, which must not block, so that no consumer delays another;
  while nothing comes it asks ``stalled`` every second, and kills a host that should move and does not.
- Only the host that was given the token is listened to, and only on loopback.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from prl.deadlines import awake_timeout
from prl.engines.host_protocol import (
    ADDRESS_VARIABLE,
    TOKEN_VARIABLE,
    Call,
    Failed,
    FromController,
    FromHost,
    Hello,
    Reply,
    Request,
    Tokens,
)
from prl.errors import EngineDeadError, EngineError, PrlError
from prl.log import get_logger
from prl.process import Child, tail
from prl.waits import waiting
from prl.wire import Channel, WireClosedError, WireError

_LOOPBACK = "127.0.0.1"
_CHECK_S = 1.0
"""How often a link on which nothing comes asks whether that is right."""
_STOP_GRACE_S = 2.0
_END_S = 5.0
"""A host that dropped its connection is about to end; past this it is killed."""
log = get_logger(__name__)


class Link:
    """One host process that answers calls and sends tokens.

    Args:
        name: of the engine.
        module: what the host runs, ``python -m``.
        environment: what it sees besides this process's.
        log: where it and whatever it starts print.
        on_news: given all that is no answer to a call.
        on_end: called once, when the link has ended.
        stalled: why the host must be killed, if it must.
        send_timeout_s: longest wait for the host to take a message.
    """

    def __init__(
        self,
        name: str,
        module: str,
        environment: Mapping[str, str],
        log: Path,
        *,
        on_news: Callable[[Tokens | Failed], None],
        on_end: Callable[[], None],
        stalled: Callable[[], str | None],
        send_timeout_s: float,
    ) -> None:
        self._name, self._module, self._environment, self._log = name, module, environment, log
        self._on_news, self._on_end, self._stalled = on_news, on_end, stalled
        self._send_timeout_s = send_timeout_s
        self._token = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._child: Child | None = None
        self._channel: Channel[FromHost] | None = None
        self._connected, self._ended = asyncio.Event(), asyncio.Event()
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._ids = itertools.count()
        self._verdict: str | None = None
        """Why it is being killed: that is how it ends, however its connection does."""
        self.reason: str | None = None
        """Why the link has ended; None while it has not."""

    async def start(self) -> None:
        """Start the host and wait until it has connected. The caller owns the deadline.

        Raises:
            EngineDeadError: the host ended first.
        """
        self._server = await asyncio.start_server(self._serve, _LOOPBACK, 0)
        port = self._server.sockets[0].getsockname()[1]
        command = [sys.executable, "-m", self._module]
        env = {**self._environment, ADDRESS_VARIABLE: f"{_LOOPBACK}:{port}", TOKEN_VARIABLE: self._token}
        self._child = await Child.start(self._name, command, self._log, env)
        async with asyncio.TaskGroup() as group:
            # Until the connection stands, the host's end is seen here; afterwards the connection's end tells.
            watch = group.create_task(self._watch_start(self._child))
            await self._connected.wait()
            watch.cancel()
        self._server.close()
        self.check_alive()

    async def call(
        self, request: Request, timeout_s: float, error: type[PrlError] | None = None, *, doing: str = ""
    ) -> Reply:
        """Ask the host and wait for its answer.

        Args:
            request: what to do.
            timeout_s: longest wait for the answer.
            error: what is raised for a request that failed or is late. None: an ``EngineError`` for one that failed,
                and a host that is late is killed, for then nobody knows what state it is in.
            doing: what the host does meanwhile, in people's words; absent: the request's name.
        """
        self.check_alive()
        number = next(self._ids)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        what = f"{self._name} did not answer {type(request).__name__.lower()!r} within {timeout_s:g} s"
        try:
            async with awake_timeout(timeout_s):
                with waiting(self._name, doing or type(request).__name__.lower(), limit_s=timeout_s):
                    await self.send(Call(id=number, request=request))
                    reply = await future
        except TimeoutError:
            if error is not None:
                raise error(what) from None
            future.cancel()
            await self.kill(what)
            raise EngineDeadError(self.reason) from None
        finally:
            del self._calls[number]
        if reply.error is not None:
            raise (error or EngineError)(f"{self._name}: {reply.error}")
        return reply

    async def send(self, message: FromController) -> None:
        """Send a message; a host that takes none is killed."""
        self.check_alive()
        assert self._channel is not None, "checked alive"
        try:
            async with awake_timeout(self._send_timeout_s):
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
        """End a host that does not move; it is gone when its streams hear of it."""
        self._verdict = self._verdict or f"{reason}; last lines of {self._log}:\n{tail(self._log)}"
        await self._stop(grace_s=0)
        self._end(self._verdict)

    async def close(self) -> None:
        """End the host, if it still runs. Idempotent."""
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
        """Read the host's messages until its end. The server owns the task that this runs in."""
        channel: Channel[FromHost] = Channel(reader, writer, FromHost)
        try:
            async with asyncio.timeout(_END_S):
                hello = await channel.receive()
            if not (isinstance(hello, Hello) and hmac.compare_digest(hello.token, self._token)):
                return
            self._channel = channel
            self._connected.set()
            while True:
                await self._take_next(channel)
        except (WireClosedError, WireError, TimeoutError) as error:
            if self._channel is channel:
                how = await self._how_it_ended(error)
                self._end(self._verdict or how)
        except Exception as bug:
            if self._channel is not channel:
                raise
            log.exception("reading from an engine's host failed; this is a bug", engine=self._name)
            await self.kill(f"{self._name}: reading from its host failed, {bug!r}")
        finally:
            channel.close()

    async def _take_next(self, channel: Channel[FromHost]) -> None:
        try:
            async with awake_timeout(_CHECK_S):
                message = await channel.receive()
        except TimeoutError:
            if (reason := self._stalled()) is not None:
                await self.kill(reason)
        else:
            self._take(message)

    def _take(self, message: FromHost) -> None:
        match message:
            case Tokens() | Failed():
                self._on_news(message)
            case Reply(id=number):
                future = self._calls.get(number)  # None: the caller has left
                if future is not None and not future.done():
                    future.set_result(message)
            case Hello():
                raise WireError(f"{self._name} said hello twice")

    async def _how_it_ended(self, error: Exception) -> str:
        assert self._child is not None, "a host that is connected was started"
        try:
            async with asyncio.timeout(_END_S):
                return await self._child.ended()
        except TimeoutError:
            await self._stop(grace_s=0)
            return f"{self._name} broke its connection ({error}); last lines of {self._log}:\n{tail(self._log)}"
