"""Asking a run from another process: ``prl engines``, ``prl why`` and whoever else talks to a control address.

Blocking, and with nothing but the standard library: no proxy of the environment sees the token.
"""

from __future__ import annotations

import http.client
import os
import socket
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from prl.check_control import CONTROL_TOKEN
from prl.control import address as control_file
from prl.control.address import ControlAddress
from prl.errors import ConfigError, NotFoundError, PrlError, RefusedError

TIMEOUT_S = 60.0
"""A run whose event loop stands still answers when it goes on; longer than that is not waited for."""
_MAX_BYTES = 64 << 20
T = TypeVar("T")


class Unanswered(PrlError):  # noqa: N818 -- no fault of the asker's
    """The run did not answer, or not as one does."""


class _Told(msgspec.Struct):
    error: str


class Client:
    """Asks one run."""

    def __init__(self, url: str, token: str, where: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """``where`` is what messages call it; ``timeout_s`` bounds each silence in an answer."""
        parts, self._timeout_s = urlsplit(url), timeout_s
        self._host, self._port = parts.hostname or "", parts.port
        self._token, self._where = token, where

    def ask(self, method: str, path: str, kind: type[T] | Any, body: Any = None) -> T:
        """What the run answers, as a ``kind``.

        Raises:
            RefusedError: it cannot do this now; says why. A NotFoundError where something named is not there.
            ConfigError: the token is wrong.
            Unanswered: nobody is there, or somebody else.
        """
        status, content = self._exchange(method, path, b"" if body is None else msgspec.json.encode(body))
        try:
            if status == http.client.OK:
                return msgspec.json.decode(content, type=kind)
            told = msgspec.json.decode(content, type=_Told).error
        except msgspec.MsgspecError as error:
            raise Unanswered(f"{self._where}: what answers there is no run of this version ({error})") from error
        if status == http.client.UNAUTHORIZED:
            raise ConfigError(f"{self._where}: the token is wrong: put that of the run into {CONTROL_TOKEN}")
        if status == http.client.NOT_FOUND:
            raise NotFoundError(told)
        if status == http.client.CONFLICT:
            raise RefusedError(told)
        raise Unanswered(f"{self._where} answered {status}: {told}")

    def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request(method, path, body=body or None, headers={"Authorization": f"Bearer {self._token}"})
            response = connection.getresponse()
            return response.status, response.read(_MAX_BYTES)
        except TimeoutError as error:
            raise Unanswered(
                f"{self._where} did not answer within {self._timeout_s:g} s: its event loop stands still"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unanswered(f"{self._where} does not answer: {error or type(error).__name__}") from error
        finally:
            connection.close()


def find(run: str) -> Client:
    """Whom to ask about ``run``: a run folder, or the address of a run as ``http://host:port``.

    Raises:
        ConfigError: no run goes on there, or there is no token for it.
    """
    given = os.environ.get(CONTROL_TOKEN, "")
    if "://" in run:
        _check_url(run)
        if not given:
            raise ConfigError(f"{run}: put the token of the run into {CONTROL_TOKEN}; it stands in its control.json")
        return Client(run, given, run)
    address = control_file.read(Path(run))
    token = given if address.token is None else address.token
    if not token:
        raise ConfigError(f"{run}: the run was started with {CONTROL_TOKEN} set: set it to the same here")
    return Client(address.url, token, f"the run in {run} ({_place(address)})")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme == "http" and parts.hostname and parts.port and parts.path in {"", "/"}
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigError(f"{url} must be the address of a run, such as http://127.0.0.1:8470")


def _place(address: ControlAddress) -> str:
    """Where it is, with the machine where that is another: its loopback cannot be asked from here."""
    if address.host == socket.gethostname():
        return address.url
    return f"{address.url} on {address.host}; ask there, or forward the port with ssh -L"
