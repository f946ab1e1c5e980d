"""One stream of an engine, held to the engine protocol: its promises are checked and its waits have an end.

Invariants:

- It ends in exactly one way: a chunk with a finish, last, or an EngineError that names the engine.
- The finish is passed on only after the engine's stream has shown that it was the last chunk.
- Versions never decrease and there are never more than ``max_tokens`` tokens.
- The wait for a chunk has a deadline, which stands still while the engines are paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import NoReturn

from prl.errors import EngineError
from prl.types import TokenChunk

CLOSE_TIMEOUT_S = 20.0
"""Longest wait for an engine to free a stream."""


class TokenDeadlines:
    """The deadlines of every wait for a token, which stop and start together."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._stopped = False
        self._waits: set[asyncio.Timeout] = set()

    def stop(self) -> None:
        """The engines pause: no wait ends."""
        self._stopped = True
        self._set_all(None)

    def start(self) -> None:
        """The engines go on: every wait has the whole limit again, as a new version may have to recompute."""
        self._stopped = False
        self._set_all(asyncio.get_running_loop().time() + self.limit_s)

    def _set_all(self, when: float | None) -> None:
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(when)

    async def next(self, engine: str, chunks: AsyncGenerator[TokenChunk, None]) -> TokenChunk | None:
        """The next chunk, or None at the end."""
        try:
            async with asyncio.timeout(None if self._stopped else self.limit_s) as wait:
                self._waits.add(wait)
                try:
                    return await anext(chunks, None)
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            if not wait.expired():
                raise
            limit = f"{self.limit_s:g} s (engine.token_timeout_s)"
            raise EngineError(f"{engine} gave an open stream no token for {limit}") from None


class GuardedStream:
    """See the module. ``close`` it, whatever happened."""

    def __init__(
        self, engine: str, chunks: AsyncGenerator[TokenChunk, None], *, max_tokens: int, deadlines: TokenDeadlines
    ) -> None:
        self._engine, self._chunks, self._deadlines = engine, chunks, deadlines
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._version: int | None = None
        self._finished = False

    async def next(self) -> TokenChunk | None:
        """The next chunk, or None after the one with the finish.

        Raises:
            EngineError: the engine failed the stream, broke the protocol, or gave no token in time.
        """
        if self._finished:
            return None
        chunk = await self._deadlines.next(self._engine, self._chunks)
        if chunk is None:
            self._refuse("ended without a finish")
        self._check(chunk)
        if chunk.finish is not None:
            if await self._deadlines.next(self._engine, self._chunks) is not None:
                self._refuse("went on after its finish")
            self._finished = True
        return chunk

    async def close(self) -> None:
        """Make the engine free the stream; one that cannot be freed does not hold up its consumer for ever."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S) as wait:
                await self._chunks.aclose()
        except TimeoutError:
            if not wait.expired():
                raise
            raise EngineError(f"{self._engine} did not free a stream within {CLOSE_TIMEOUT_S:g} s") from None

    def _check(self, chunk: TokenChunk) -> None:
        self._num_tokens += len(chunk.token_ids)
        if self._num_tokens > self._max_tokens:
            self._refuse(f"gave more than the {self._max_tokens} tokens that were allowed")
        if self._version is not None and chunk.version < self._version:
            self._refuse(f"stamped version {chunk.version} after version {self._version}")
        self._version = chunk.version

    def _refuse(self, what: str) -> NoReturn:
        raise EngineError(f"{self._engine} broke the protocol: a stream {what} (at token {self._num_tokens})")
