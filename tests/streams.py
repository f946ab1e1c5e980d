"""Streams that follow a script, where no engine is needed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence

from prl.engines.base import Decoding
from prl.types import Finish, TokenChunk

DECODING = Decoding(temperature=1.0, max_tokens=64, stop_token_ids=[0])

Item = TokenChunk | Exception | float
"""What a scripted stream does next: give a chunk, fail, or wait for some seconds."""


def chunk(*token_ids: int, version: int = 0, finish: Finish | None = None, logprob: float = -0.5) -> TokenChunk:
    """Some tokens of a stream."""
    return TokenChunk(token_ids=list(token_ids), logprobs=[logprob] * len(token_ids), version=version, finish=finish)


GOOD = (chunk(7), chunk(8, finish="stop"))
STALLED = (chunk(7), math.inf)


class Streams:
    """Streams that follow scripts, the n-th stream the n-th, and then the last again; counts what is open."""

    def __init__(self, *scripts: Sequence[Item], closing: Exception | None = None) -> None:
        self._scripts = scripts or (GOOD,)
        self._closing = closing
        self.asked: list[tuple[list[int], Decoding, int]] = []
        self.num_open = 0

    async def generate(
        self, token_ids: list[int], decoding: Decoding, *, group: int, at_least: int = 0
    ) -> AsyncGenerator[TokenChunk, None]:
        """Follow the next script."""
        script = self._scripts[min(len(self.asked), len(self._scripts) - 1)]
        self.asked.append((token_ids, decoding, group))
        self.num_open += 1
        try:
            for item in script:
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, float):
                    await asyncio.sleep(item)
                else:
                    yield item
        finally:
            self.num_open -= 1
            if self._closing is not None:
                raise self._closing


def as_numbers(token_ids: list[int]) -> str:
    """A text that is the token ids."""
    return " ".join(map(str, token_ids))
