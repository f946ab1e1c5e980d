"""Questions to one ``vllm serve`` process: JSON over HTTP, each with a deadline, every failure naming the address.

Invariants:

- Whoever did not answer (``ServerAwayError``) is told apart from who refused (``ServerRefusedError``, with the status
  and the server's own words): the first is a reason to give the server up, the second may be one to change a setting.
- No connection is used twice: the server closes one when it likes (after a request that failed, or some seconds), and
  a question that meets that would look like a death.
- The API key is read from the environment and leaves this process in a header only.
- Behind ``https://`` the server has to show a certificate for its name, of an authority that this machine trusts or
  that ``SSL_CERT_FILE`` names; who shows none is not asked again, since that does not pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, NoReturn

import aiohttp
import msgspec

from prl.deadlines import awake_timeout
from prl.errors import EngineError
from prl.waits import waiting

GENERATE = "/inference/v1/generate"
_CONNECT_TIMEOUT_S = 10.0
_BACK_OFF_S = (0.5, 5.0)
"""Pauses between two tries to reach a server that does not answer: the first, and the longest."""
_NUM_WORDS = 600
"""Characters of a server's answer that stand in an error."""
_BAD_GATEWAY = 502
_NO_SERVER = frozenset({_BAD_GATEWAY, 503, 504})
"""What stands for the server says that it is not there; vLLM itself says 503 when its core is gone."""


class ServerAwayError(EngineError):
    """Nobody answers at the address."""


class ServerUntrustedError(ServerAwayError):
    """Whoever answers at the address may be somebody else."""


class ServerRefusedError(EngineError):
    """The server answered that it will not, or cannot."""

    def __init__(self, message: str, *, status: int, said: str) -> None:
        super().__init__(message)
        self.status, self.said = status, said


class ServerLink:
    """One address; ``open`` it in the event loop that uses it.

    Args:
        name: of the engine.
        url: such as ``http://host:8000``, with a path where something in between adds one.
        api_key_env: the environment variable with the API key; None: no key is sent.
    """

    def __init__(self, name: str, url: str, api_key_env: str | None) -> None:
        self.url, self.api_key_env = url.rstrip("/"), api_key_env
        self.who = f"{name} at {self.url}"
        """Stands in every message."""
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make ready to ask; nothing is asked yet.

        Raises:
            EngineError: the variable that should hold the API key is not set.
        """
        headers = {"Content-Type": "application/json"}
        if self.api_key_env is not None:
            if not (key := os.environ.get(self.api_key_env)):
                raise EngineError(
                    f"{self.who}: engine.api_key_env = {self.api_key_env!r}, and that environment variable is not set"
                )
            headers["Authorization"] = f"Bearer {key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True, ssl=self._verification()),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
            headers=headers,
        )

    def _verification(self) -> ssl.SSLContext | bool:
        """How TLS is checked. aiohttp's own context would be that of the moment in which it was imported."""
        return ssl.create_default_context() if self.url.startswith("https:") else True

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        if self._session is not None:
            await self._session.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_s: float,
        doing: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """What the server answers, as JSON; None for an answer without a body.

        Raises:
            TimeoutError: no answer within ``timeout_s``.
            ServerAwayError: nobody answers.
            ServerRefusedError: the answer is no success.
        """
        data = b"" if body is None else msgspec.json.encode(body)
        async with awake_timeout(timeout_s):
            with waiting(self.who, doing or path, limit_s=timeout_s):
                async with self.request(method, path, data, headers) as response:
                    with self._away_if_broken():
                        answer = await response.read()
        if not answer:
            return None
        try:
            return msgspec.json.decode(answer)
        except msgspec.DecodeError:
            raise ServerRefusedError(
                f"{self.who} answered {path} with what is no JSON: is it a vllm serve process?",
                status=response.status,
                said=_shortened(answer),
            ) from None

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that has begun and is a success. The caller owns the deadline; raises as ``ask`` does."""
        if self._session is None or self._session.closed:
            raise EngineError(f"{self.who} is not open")
        with self._away_if_broken():
            response = await self._session.request(
                method, self.url + path, data=data, headers=headers, allow_redirects=False
            )
        try:
            if not response.ok or response.status >= 300:  # noqa: PLR2004 -- a redirect is no answer
                with self._away_if_broken():
                    answer = await response.content.read(1 << 16)
                self._refused(path, response.status, answer)
            yield response
        finally:
            response.release()

    async def answers(self, *, timeout_s: float) -> None:
        """Wait until somebody does, asking again and again.

        Raises:
            TimeoutError: nobody did within ``timeout_s``.
            ServerAwayError: the address's name stands for no host, or TLS failed.
        """
        pause_s, last = _BACK_OFF_S[0], ""
        async with awake_timeout(timeout_s):
            with waiting(self.who, lambda: f"answers ({last})" if last else "answers", limit_s=timeout_s):
                while True:
                    try:
                        async with self.request("GET", "/health", b""):
                            return
                    except ServerAwayError as error:
                        if isinstance(error, ServerUntrustedError) or isinstance(
                            error.__cause__, aiohttp.ClientConnectorDNSError
                        ):
                            raise
                        last = str(error)
                    except ServerRefusedError as error:
                        if error.status not in _NO_SERVER:
                            return
                        last = f"it says {error.status}"
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _BACK_OFF_S[1])

    @contextlib.contextmanager
    def _away_if_broken(self) -> Any:
        try:
            yield
        except aiohttp.ClientSSLError as error:
            raise ServerUntrustedError(
                f"TLS with {self.who} failed ({error}): engine.servers must name it as its certificate does, signed by"
                " an authority that this machine trusts; name the file of another one in the variable SSL_CERT_FILE"
            ) from error
        except aiohttp.ClientError as error:
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            what = str(cause) or type(error).__name__
            raise ServerAwayError(
                f"nobody answers at the address of {self.who} ({what}): is vllm serve running there, and is the address"
                " in engine.servers right?"
            ) from error

    def _refused(self, path: str, status: int, answer: bytes) -> NoReturn:
        said = _words(answer)
        raise ServerRefusedError(f"{self.who} answered {path} with {status}: {said}", status=status, said=said)


def _words(answer: bytes) -> str:
    """What an error answer says: vLLM's own, or whatever it is."""
    with contextlib.suppress(msgspec.DecodeError):
        told = msgspec.json.decode(answer)
        error = told.get("error", told.get("detail", told)) if isinstance(told, dict) else told
        message = error.get("message", error) if isinstance(error, dict) else error
        return str(message).removeprefix("Call to collective_rpc method failed: ")[:_NUM_WORDS]
    return _shortened(answer)


def _shortened(answer: bytes) -> str:
    return answer.decode(errors="replace").strip()[:_NUM_WORDS] or "nothing"
