"""What came for one stream and was not taken yet.

Invariants:

- One consumer waits at a time; putting never blocks.
- News of one version that wait together are one chunk; the order of tokens, and which version sampled which, stay.
- A failure is raised after the chunks before it were taken, and again at every take after that.
"""

from __future__ import annotations

import asyncio
from collections import deque

from prl.types import Finish, TokenChunk


class Inbox:
    """A queue of chunks for one stream."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[list[int], list[float], int, Finish | None]] = deque()
        self._failure: Exception | None = None
        self._taker: asyncio.Future[None] | None = None

    def put(self, token_ids: list[int], logprobs: list[float], version: int, finish: Finish | None) -> None:
        """Tokens of one version came; the lists are the inbox's from now on."""
        if self._waiting and self._waiting[-1][2] == version:
            waiting_ids, waiting_logprobs, _, _ = self._waiting.pop()
            waiting_ids += token_ids
            waiting_logprobs += logprobs
            token_ids, logprobs = waiting_ids, waiting_logprobs
        self._waiting.append((token_ids, logprobs, version, finish))
        self._wake()

    def fail(self, error: Exception) -> None:
        """Nothing more will come; only the first reason counts."""
        self._failure = self._failure or error
        self._wake()

    async def take(self) -> TokenChunk:
        """The next chunk, as soon as there is one. The putter owns the deadline."""
        while not self._waiting:
            if self._failure is not None:
                raise self._failure
            self._taker = asyncio.get_running_loop().create_future()
            await self._taker
        token_ids, logprobs, version, finish = self._waiting.popleft()
        return TokenChunk(token_ids=token_ids, logprobs=logprobs, version=version, finish=finish)

    def _wake(self) -> None:
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)
