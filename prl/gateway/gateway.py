"""The address at which agents speak as their episodes.

Invariants:

- A request is of the episode whose API key it presents: ``Authorization: Bearer KEY``, or in the path, ``/KEY/v1``. A
  key is random, one episode's alone, and dead when the episode has ended; there is no other way in.
- What an episode's agent still waits for when the episode ends is cancelled with it.
- ``Host`` and ``Origin`` are judged as at the control address (``control/guard.py``): no web page can ask here.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prl.config_environment import GatewayConfig
from prl.control.guard import Names
from prl.environments.session import Address, Session
from prl.errors import ConfigError
from prl.log import get_logger
from prl.network import is_loopback

if TYPE_CHECKING:
    from aiohttp import web

CLOSE_TIMEOUT_S = 2.0

log = get_logger(__name__)


class Guest:
    """One episode that can be spoken to."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.asking: set[asyncio.Task[None]] = set()
        """What its agent waits for."""


class Gateway:
    """See the module. ``open`` it before the first episode, ``close`` it after the last."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._guests: dict[str, Guest] = {}
        self._runner: web.AppRunner | None = None
        self._overridden: set[str] = set()
        names = [config.address]
        if not is_loopback(config.address):
            names.append(socket.gethostname())
        self.names = Names(names)
        self.url = ""
        """Where it listens; empty while it does not."""

    async def open(self) -> None:
        """Listen.

        Raises:
            ConfigError: the address or the port cannot be had.
        """
        from aiohttp import web  # noqa: PLC0415 -- a fifth of a second, for a run with a gateway alone

        from prl.gateway.answers import application  # noqa: PLC0415 -- the same

        host, port = self._config.address, self._config.port
        self._runner = web.AppRunner(
            application(self),
            access_log=None,
            handler_cancellation=True,  # an agent that hangs up wants no answer
            shutdown_timeout=CLOSE_TIMEOUT_S,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self.close()
            raise ConfigError(
                f"gateway.address = {host!r}, gateway.port = {port}: {error.strerror}; name an address of this machine,"
                " and a port that is free or 0"
            ) from error
        host, port = self._runner.addresses[0][:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 -- looked for
        self.url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
        log.info("agents can ask", address=self.url)

    async def close(self) -> None:
        """Listen no more, in bounded time. Idempotent."""
        if self._runner is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * CLOSE_TIMEOUT_S):
                    await self._runner.cleanup()
            self._runner = None

    def new_address(self) -> Address:
        """An address that no episode has had."""
        return Address(base_url=f"{self.url}/v1", api_key=f"prl-{secrets.token_hex(16)}")

    @contextmanager
    def serving(self, address: Address, session: Session) -> Iterator[None]:
        """Let those who know ``address`` speak to ``session`` meanwhile."""
        guest = self._guests[address.api_key] = Guest(session)
        try:
            yield
        finally:
            del self._guests[address.api_key]
            for asking in guest.asking:
                asking.cancel()

    def guest(self, key: str) -> Guest | None:
        """Whose key this is; None: nobody's, or of an episode that has ended."""
        return self._guests.get(key)

    def note_overridden(self, names: list[str]) -> None:
        """Say once of each parameter that it does not hold."""
        if new := [name for name in names if name not in self._overridden]:
            self._overridden.update(new)
            log.warning(
                "agents set sampling parameters; those of the run hold in their place ([sampling], [eval])",
                parameters=", ".join(new),
            )
