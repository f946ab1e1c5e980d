"""One stream -> one completion.

Invariants:

- A stream whose engine dies, stalls or is removed goes on with another one, behind the tokens that it has: they keep
  their versions and log-probabilities, and what follows is sampled given them, so no length is favoured.
- Only a stream that ended with ``stop`` or ``length``, with tokens and a log-probability for each, is a completion;
  anything else is ``Dropped`` with its reason.
- A cancelled stream is closed and goes on with no other engine, however it closes.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

import msgspec

from prl.engines.base import Decoding
from prl.errors import EngineDeadError, EngineError, EngineLeftError, EngineStalledError
from prl.failure import being_cancelled, raise_as_it_was
from prl.records import Member, completion_of
from prl.types import Completion, Prompt, TokenChunk, are_logprobs

MAX_DEATHS, MAX_STALLS = 8, 1
"""Engines that may die, or stall, under one stream before it is given up."""


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """A stream, an episode or a whole rollout came to nothing."""

    reason: str
    """The counter ``dropped_<reason>`` in the metrics."""
    message: str


Sample = Callable[[Prompt, Decoding, Callable[[TokenChunk], None]], Awaitable[Completion | Dropped]]
"""Samples one stream behind a prompt, as ``decoding`` says, and tells its chunks."""


def stream_seed(*key: int) -> int:
    """A 32-bit seed for one stream, the same on every machine."""
    return zlib.crc32(",".join(map(str, key)).encode())


class Streams(Protocol):
    """Where streams come from: the pool, or a single engine."""

    def generate(
        self, token_ids: list[int], decoding: Decoding, *, group: int, at_least: int = 0
    ) -> AsyncGenerator[TokenChunk, None]:
        """Sample one stream; see ``EnginePool.generate``."""
        ...


class Sampler:
    """See the module; ``decode`` says tokens as text."""

    def __init__(self, streams: Streams, decode: Callable[[list[int]], str]) -> None:
        self._streams, self.decode = streams, decode
        self.num_moved = 0
        """Streams that went on with another engine because theirs died or stalled."""
        self.num_handed_over = 0
        """Streams that did because theirs was removed, as often as that was asked for."""

    async def sample(
        self,
        prompt: Prompt,
        decoding: Decoding,
        record: Callable[[TokenChunk], None] = lambda _: None,
        member: Member | None = None,
    ) -> Completion | Dropped:
        """Fold one stream into a completion, or say why it is none.

        Args:
            prompt: what is continued.
            decoding: how to sample; its ``max_tokens`` are those of the whole completion.
            record: told of every chunk.
            member: what is known of it; the stream goes on behind its tokens, which keep their versions.

        Raises:
            EngineDeadError: more than ``MAX_DEATHS`` engines died under it, or the last one did.
        """
        member = Member() if member is None else member
        if member.finish is None:
            try:
                await self._to_the_end(prompt, decoding, record, member)
            except EngineDeadError:
                raise
            except EngineError as error:
                _end_if_cancelled(error)
                return Dropped(reason="engine_error", message=str(error))
        if member.finish not in {"stop", "length"} or not member.token_ids:
            message = f"the stream ended with {member.finish} after {len(member.token_ids)} tokens"
            return Dropped(reason="aborted", message=message)
        if not are_logprobs(member.logprobs):
            return Dropped(reason="bad_logprobs", message="the engine reported a log-probability that is none")
        return completion_of(member, self.decode)

    async def _to_the_end(
        self, prompt: Prompt, decoding: Decoding, record: Callable[[TokenChunk], None], member: Member
    ) -> None:
        """An engine that is gone or stalls leaves the rest to another; the first death, or stall, is what is raised."""
        deaths, stalls = list[EngineError](), list[EngineError]()
        while True:
            try:
                return await self._on_one_engine(prompt, decoding, record, member)
            except EngineLeftError as error:
                _end_if_cancelled(error)
                self.num_handed_over += 1
            except (EngineDeadError, EngineStalledError) as error:
                _end_if_cancelled(error)
                alike = deaths if isinstance(error, EngineDeadError) else stalls
                alike.append(error)
                if len(deaths) > MAX_DEATHS or len(stalls) > MAX_STALLS:
                    raise_as_it_was(alike[0])
                self.num_moved += 1

    async def _on_one_engine(
        self, prompt: Prompt, decoding: Decoding, record: Callable[[TokenChunk], None], member: Member
    ) -> None:
        """Sample behind what ``member`` has, into it."""
        known, at_least = len(member.token_ids), member.versions[-1] if member.versions else 0
        if known >= decoding.max_tokens:
            member.finish = "length"
            return
        if known:
            decoding = msgspec.structs.replace(decoding, max_tokens=decoding.max_tokens - known, num_known=known)
        behind = prompt.token_ids + member.token_ids
        chunks = self._streams.generate(behind, decoding, group=prompt.id, at_least=at_least)
        async with aclosing(chunks):
            async for chunk in chunks:
                member.add(chunk)
                record(chunk)


def _end_if_cancelled(error: EngineError) -> None:
    if being_cancelled():  # the stream failed to close: no reason to go on with another
        raise asyncio.CancelledError from error
