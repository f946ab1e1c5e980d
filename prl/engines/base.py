"""The engine protocol: what the controller may ask of anything that samples tokens.

Invariants that every implementation keeps, and that ``tests/engines/test_contract.py`` runs against each of them:

- ``generate`` yields chunks and ends with exactly one ``finish``; the consumer may be slow; closing the iterator early
  frees the request; a stream whose engine dies raises ``EngineDeadError``, it never hangs.
- Every token carries the version that sampled it, stamped where it was sampled, never by the controller's clock.
- ``pause`` stops between two decode steps and keeps open streams and their KV cache; ``load`` runs only while paused;
  ``resume`` goes on with the same streams. ``pause`` and ``resume`` are idempotent.
- A load is atomic to requests. After a failed load the engine refuses to generate and to resume until a load succeeds.
- What is staged and not put in place is as good as never sent: a transfer that breaks off, or another that is begun in
  its stead, changes nothing of what the engine serves.
- A new request never reads prefix cache that an older version wrote.
- Log-probabilities are log_softmax(logits / temperature) of the sampled token.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec

from prl.types import TokenChunk, WeightGroup, WeightUpdate


class Decoding(msgspec.Struct, frozen=True, kw_only=True):
    """How one stream is sampled. There is no top-p, top-k or penalty: each would change the distribution trained on."""

    temperature: float
    """> 0 samples from log_softmax(logits / temperature); 0 is greedy and is for evaluation only."""
    max_tokens: int
    """Upper bound on sampled tokens, the stop token included."""
    stop_token_ids: list[int]
    """Union of the tokenizer's and the generation config's end tokens. The sampled one is kept."""
    seed: int | None = None
    """Seeds this stream where the engine supports it."""
    num_known: int = 0
    """Tokens at the end of the prompt that an earlier stream of the same seed sampled."""

    def request_seed(self) -> int | None:
        """``seed`` for an engine whose random numbers begin anew with every request, not by the token's position.

        Behind known tokens it is another one: with the same, what drew the first tokens would draw these again.
        """
        if self.seed is None or not self.num_known:
            return self.seed
        return zlib.crc32(f"{self.seed},{self.num_known}".encode())


class EngineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot; counters grow from the engine's start."""

    version: int
    running: int
    """Streams open now."""
    tokens_generated: int
    busy_s: float
    """Seconds with at least one open stream and not paused."""
    stream_s: float
    """The streams of every such second, added up: over ``busy_s``, the mean number that were open."""
    paused: bool
    dead: bool


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """How long an engine took to stand still, and then stood still, for new weights."""

    drain_s: float
    """Until the step that it was in had ended."""
    still_s: float
    """From then until it went on."""


class Engine(Protocol):
    """Anything that samples token streams and can swap its weights between two decode steps."""

    name: str
    """Such as ``engine-0``; stands in every message about it."""
    num_workers: int
    """Processes that take part in a weight transfer (the tensor-parallel size, times the data-parallel one)."""

    async def open(self) -> None:
        """Start and be ready to generate with the checkpoint's weights as version 0. Raises EngineError, in time."""
        ...

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """Join the weight-transfer group; this engine's workers take ranks ``rank_offset ...`` of it."""
        ...

    def generate(self, token_ids: list[int], decoding: Decoding) -> AsyncGenerator[TokenChunk, None]:
        """Continue ``token_ids``. Iterate under ``contextlib.aclosing``."""
        ...

    async def stage(self, update: WeightUpdate) -> bool:
        """Begin to receive ``update`` beside generation, so that ``load`` has only to put it in place.

        Returns when the engine is ready to receive; the sender knows when it has. False: this engine cannot, and
        receives in ``load``.
        """
        ...

    async def swap(self, update: WeightUpdate) -> Standstill:
        """``pause``, ``load`` of what was staged, and ``resume``, with as few messages as may be.

        After one that failed the engine is as after a load that failed.
        """
        ...

    async def pause(self) -> None:
        """Stop between two decode steps, keeping every stream."""
        ...

    async def load(self, update: WeightUpdate) -> None:
        """Receive ``update`` from the weight group and serve it from the next token on. Only while paused."""
        ...

    async def resume(self) -> None:
        """Go on with the streams that were open at the pause."""
        ...

    async def score(self, token_ids: list[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first, under the current weights (length L - 1).

        Where several copies of the model sample behind one engine (data-parallel ranks), of each, one behind the other.
        """
        ...

    async def failed(self) -> str:
        """Wait until this engine is dead, then return why with its last log lines. For the pool's watch."""
        ...

    def statistics(self) -> EngineStatistics:
        """What it holds and did so far."""
        ...

    async def close(self) -> None:
        """End every process it started. Idempotent, bounded in time, safe after a failure."""
        ...


async def swap_by_steps(engine: Engine, update: WeightUpdate) -> Standstill:
    """``Engine.swap`` where each step is a call of its own."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    await engine.pause()
    still = clock()
    await engine.load(update)
    await engine.resume()
    return Standstill(drain_s=still - begun, still_s=clock() - still)
