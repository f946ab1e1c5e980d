"""The control address: a small HTTP server beside a run, which can neither hold it up nor end it.

Invariants:

- What goes wrong in here is told to whoever asked, and logged where it is a bug; nothing is raised into the run.
- Nobody can hold it up: at most ``MAX_CONNECTIONS`` are open, and ``answers.py`` bounds what each may cost.
- Nobody but who holds the token is answered (``guard.py``); who asks without it learns nothing of the run.
- It listens, with ``control.json`` beside the run's files, from ``open`` to ``close``. An address that was chosen and
  cannot be had is a ConfigError before anything is started; for want of the default one no run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from prl.check_control import CONTROL_TOKEN, METRICS_TOKEN
from prl.config_control import ControlConfig
from prl.control import address as control_file
from prl.control.guard import Guard
from prl.control.prometheus import PATH as METRICS_PATH
from prl.control.route import Route
from prl.errors import ConfigError
from prl.log import get_logger
from prl.network import is_loopback, listener, origin_of

if TYPE_CHECKING:
    from aiohttp import web

MAX_CONNECTIONS = 64
CLOSE_TIMEOUT_S = 2.0
"""How long answers under way may take when the run ends."""

log = get_logger(__name__)


class ControlServer:
    """See the module. ``bind`` it first, before anything is started; then ``open`` and ``close`` it."""

    def __init__(self, config: ControlConfig, run_dir: Path, routes: Iterable[Route]) -> None:
        self._config, self._run_dir, self._routes = config, run_dir, list(routes)
        given = os.environ.get(CONTROL_TOKEN)
        self._token = given or secrets.token_hex(16)
        self._token_is_given = bool(given)
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None
        self.address: control_file.ControlAddress | None = None
        self._writing: asyncio.Future[None] | None = None
        """Where it listens; None while it does not."""

    def bind(self) -> None:
        """Take the port.

        Raises:
            ConfigError: the configuration names an address or a port, and it cannot be had.
        """
        host, port = self._config.address, self._config.port
        if not self._config.enabled:
            return
        try:
            self._socket = listener(host, port)
        except OSError as error:
            if self._config != ControlConfig():
                raise ConfigError(
                    f"control.address = {host!r}, control.port = {port}: {error.strerror}; name an address of this"
                    " machine, and a port that is free or 0"
                ) from error
            log.warning("the run cannot be asked or steered while it goes on", why=f"{host}: {error.strerror}")

    async def open(self) -> None:
        """Listen, and say where in the run folder, which must be there. What fails is logged."""
        if self._socket is None:
            return
        try:
            await self._listen(self._socket)
        except (ImportError, OSError, NotImplementedError) as error:  # the last: a loop without sockets
            log.warning("the run cannot be asked or steered while it goes on", why=str(error))
            await self.close()

    async def close(self) -> None:
        """Listen no more, in bounded time. Idempotent."""
        if self._writing is not None:  # a start that was cut off here has a thread that may write yet
            await asyncio.wait([self._writing], timeout=CLOSE_TIMEOUT_S)
            self._writing = None
        if self.address is not None:
            await asyncio.to_thread(control_file.remove, self._run_dir, self.address)
            self.address = None
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * CLOSE_TIMEOUT_S):
                    await self._runner.cleanup()
            self._runner = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _listen(self, listening: socket.socket) -> None:
        # aiohttp takes a fifth of a second to import, or a whole one: for a run alone, and not on the event loop
        answers = await asyncio.to_thread(importlib.import_module, "prl.control.answers")
        self._runner = answers.runner_of(self._routes, self._guard(), close_timeout_s=CLOSE_TIMEOUT_S)
        await self._runner.setup()
        handler = self._runner.server
        assert handler is not None, "set up"

        def accept() -> asyncio.Protocol:
            return handler() if len(handler.connections) < MAX_CONNECTIONS else _Full()

        self._server = await asyncio.get_running_loop().create_server(accept, sock=listening)
        url = origin_of(listening)
        address = control_file.of_this_process(url, None if self._token_is_given else self._token)
        self.address = address
        self._writing = asyncio.get_running_loop().run_in_executor(None, control_file.write, self._run_dir, address)
        await asyncio.shield(self._writing)
        log.info("the run can be asked and steered", address=url)

    def _guard(self) -> Guard:
        names = [self._config.address]
        if not is_loopback(self._config.address):
            names.append(socket.gethostname())
        reader = os.environ.get(METRICS_TOKEN, "")
        return Guard(self._token, names, reader_token=reader, reader_paths=[METRICS_PATH])


class _Full(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Drop it at once."""
        transport.close()
