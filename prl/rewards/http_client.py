"""Posting JSON to a service: what the rewards ``http`` and ``judge`` share.

- Connections are pooled, as many as calls may be under way, and waiting for one is not counted against a request.
  Neither is waiting for the rate: calls that a limit holds back are not late.
- Every wait of a request has a limit; its total is the reward's ``timeout_s``, which the scorer keeps. A status that
  is no success is aiohttp's ClientResponseError: the scorer tries again what may pass, and pauses the reward through an
  outage.
- A key comes from an environment variable that is named, never from the configuration. What a service says is cleared
  of it before it is cut.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import aiohttp
import msgspec

from prl.deadlines import uncounted
from prl.errors import ConfigError, RewardError
from prl.hidden import HIDDEN, cleared_start, parts_of
from prl.waits import waiting

_CONNECT_TIMEOUT_S = 10.0
_MAX_SAID = 300
"""Characters of a service's refusal that are kept."""
_MAX_REFUSAL_BYTES = 16 * 1024
MAX_REPLY_BYTES = 16 * 1024 * 1024


class Client:
    """One URL, its connections, and its rate."""

    def __init__(
        self,
        url: str,
        *,
        api_key_env: str | None,
        concurrency: int,
        request_timeout_s: float,
        max_requests_per_s: float | None,
    ) -> None:
        """Raises ConfigError where the variable is not set, or ``url`` is none."""
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"url = {url!r} is no address: it begins with http:// or https://")
        self._headers, self._secrets = dict[str, str](), set[str]()
        if api_key_env is not None:
            if not os.environ.get(api_key_env):
                raise ConfigError(f"api_key_env = {api_key_env!r}: the environment variable {api_key_env} is not set")
            self._headers["Authorization"] = f"Bearer {os.environ[api_key_env]}"
            self._secrets = parts_of(os.environ[api_key_env])
        self._url, self._concurrency, self._request_timeout_s = url, concurrency, request_timeout_s
        self._interval_s = 0.0 if max_requests_per_s is None else 1.0 / max_requests_per_s
        self._next_at = 0.0
        self._session: aiohttp.ClientSession | None = None
        self.num_requests = 0

    async def open(self) -> None:
        """Make the pool; no connection yet."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._concurrency),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=self._request_timeout_s
            ),
            headers=self._headers,
        )

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        if self._session is not None:
            await self._session.close()

    async def post(self, body: Any) -> Any:
        """The reply to ``body``. Raises aiohttp's ClientError, TimeoutError, or RewardError for what is no JSON."""
        assert self._session is not None
        self.num_requests += 1
        encoded = msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._url, data=encoded, headers=headers, allow_redirects=False) as response:
            if not response.ok or response.status >= 300:  # noqa: PLR2004 - a redirect is no reply
                said, is_whole = await _read(response.content, _MAX_REFUSAL_BYTES)
                message = f"{response.reason}: {self._said(said, is_whole=is_whole)}"
                raise aiohttp.ClientResponseError(response.request_info, (), status=response.status, message=message)
            reply, _ = await _read(response.content, MAX_REPLY_BYTES)
        for secret in self._secrets:  # whoever quotes a part of the reply cannot quote half of the key
            reply = reply.replace(secret.encode(), HIDDEN.encode())
        try:
            return msgspec.json.decode(reply)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            answer = self._said(reply, is_whole=True)
            raise RewardError(f"{self._url} answered what is no JSON ({error}): {answer!r}") from error

    def _said(self, body: bytes, *, is_whole: bool) -> str:
        """The beginning of what the service said, without the key."""
        return cleared_start(body.decode(errors="replace"), self._secrets, _MAX_SAID, is_whole=is_whole)

    async def turn(self) -> None:
        """Wait until the rate allows another request, which the caller then makes."""
        if not self._interval_s:
            return
        now = asyncio.get_running_loop().time()
        at = max(now, self._next_at)
        self._next_at = at + self._interval_s
        with uncounted(), waiting("the limit of its rate", limit_s=at - now):
            await asyncio.sleep(at - now)


async def _read(content: aiohttp.StreamReader, limit: int) -> tuple[bytes, bool]:
    """At most ``limit`` bytes of a body, and whether that is all of it."""
    body = b""
    while len(body) < limit and (more := await content.read(limit - len(body))):
        body += more
    return body, len(body) < limit
