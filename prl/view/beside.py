"""The page beside a run: a socket that listens from the run's start to its end, and a process once somebody knocks.

Invariants:

- Until the page is first opened it costs the run one socket. Then it is made by a process of its own, at low priority,
  which dies with the run; nothing of it runs on the run's event loop.
- That process's death never matters to the run: the next who knocks starts another one, at the same address, a few
  times; then the socket is closed, and a warning says where the reason stands.
- An address that was chosen and cannot be had is a ConfigError before anything is started; for want of the default one
  no run ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from prl.config_view import ViewConfig
from prl.errors import ConfigError
from prl.log import get_logger
from prl.network import listener, origin_of
from prl.process import Child

FILE = "view.json"
MAX_STARTS = 3
"""Times in a row that the process may end within ``STEADY_S``."""
STEADY_S = 60.0
_STOP_GRACE_S = 1.0
_WRITE_GRACE_S = 2.0
_FEW_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

log = get_logger(__name__)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """``view.json``: where the page of the run in this folder is."""

    url: str
    pid: int
    """The run's process."""
    host: str
    """The machine's name."""


class Page:
    """See the module. ``bind`` it first, then ``serve`` it beside the run."""

    def __init__(self, config: ViewConfig, run_dir: Path) -> None:
        self._config, self._run_dir = config, run_dir.absolute()  # the process may change its folder meanwhile
        self._socket: socket.socket | None = None
        self.url: str | None = None
        """What to open; None: there is no page."""

    def bind(self) -> None:
        """Take the port.

        Raises:
            ConfigError: the configuration names an address or a port, and it cannot be had.
        """
        if not self._config.enabled:
            return
        host, port = self._config.address, self._config.port
        try:
            self._socket = listener(host, port)
        except OSError as error:
            if self._config != ViewConfig():
                raise ConfigError(
                    f"view.address = {host!r}, view.port = {port}: {error.strerror}; name an address of this machine,"
                    " and a port that is free or 0"
                ) from error
            log.warning("the run has no page while it goes on", why=f"{host}: {error.strerror}")
            return
        self.url = f"{origin_of(self._socket)}/"

    def close(self) -> None:
        """Listen no more. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = self.url = None

    async def serve(self) -> None:
        """Write where the page is, and start its process when somebody knocks and none is there; until cancelled."""
        if self._socket is None or self.url is None:
            return
        place = Place(url=self.url, pid=os.getpid(), host=socket.gethostname())
        writing = asyncio.get_running_loop().run_in_executor(None, _write, self._run_dir, place)
        try:
            await asyncio.shield(writing)
            await self._keep(self._socket)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the run goes on without a page
            log.warning("the page of the run is gone", why=f"{type(error).__name__}: {error}")
        finally:
            await asyncio.wait([writing], timeout=_WRITE_GRACE_S)  # of a run that ends at once
            self.close()
            _remove(self._run_dir, place)

    async def _keep(self, listening: socket.socket) -> None:
        starts, loop = 0, asyncio.get_running_loop()
        while starts < MAX_STARTS:
            await _knock(listening)
            begun_at = loop.time()
            told = await self._one(listening)
            starts = 1 if loop.time() - begun_at >= STEADY_S else starts + 1
            log.info("the process of the page ended", why=told)
        log.warning("the page of the run is closed: its process ended again and again", log=str(self._log))

    async def _one(self, listening: socket.socket) -> str:
        command = [sys.executable, "-m", "prl.view.child", str(self._run_dir), self._config.address]
        descriptor = listening.fileno()
        child = await Child.start(
            "the page", [*command, str(descriptor)], self._log, _FEW_THREADS, pass_fds=(descriptor,)
        )
        try:
            return await child.ended()
        finally:
            await child.stop(_STOP_GRACE_S)

    @property
    def _log(self) -> Path:
        return self._run_dir / "logs" / "view.log"


async def _knock(listening: socket.socket) -> None:
    """Wait until somebody wants to connect."""
    came, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(listening.fileno(), came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(listening.fileno())


def _write(run_dir: Path, place: Place) -> None:
    draft = run_dir / f"{FILE}.{place.pid}.part"
    draft.write_bytes(msgspec.json.encode(place) + b"\n")
    draft.replace(run_dir / FILE)


def _remove(run_dir: Path, place: Place) -> None:
    """Take the file away if it is still this run's."""
    with suppress(OSError, msgspec.MsgspecError):
        if msgspec.json.decode((run_dir / FILE).read_bytes(), type=Place) == place:
            (run_dir / FILE).unlink()
