"""What the contract tests need of each kind of engine, and how they consume streams.

``tests/engines/<kind>_factory.py`` offers one name for them:

    @asynccontextmanager
    async def subject(folder: Path) -> AsyncIterator[Subject]: ...

It yields an opened engine that is connected to a weight group of which the factory itself holds rank 0, and closes what
it opened. ``folder`` is an empty folder for models and logs. Where the package of the kind is missing it calls
``pytest.importorskip`` or ``pytest.skip`` with the reason. It is entered and left by different tasks of one event loop,
so it must not keep a TaskGroup or a timeout open across its ``yield``.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from prl.engines.base import Decoding, Engine
from prl.types import TokenChunk, WeightUpdate

DEADLINE_S = 60.0
"""Longest wait of any test for anything."""


class Subject(abc.ABC):
    """An engine under test, with the trainer's side of its weight group.

    Attributes:
        engine: open, connected, not paused, serving version 0.
        prompt: token ids that it can continue.
        max_num_seqs: how many streams it runs at once; small, so that the tests can exceed it.
        long: tokens that one stream may have at most; enough to last for five pushes.
        version: the version it serves.
        num_copies: of the model, that sample behind it each by itself.
    """

    num_copies = 1

    def __init__(self, engine: Engine, *, prompt: list[int], max_num_seqs: int, long: int) -> None:
        self.engine, self.prompt, self.max_num_seqs, self.long = engine, prompt, max_num_seqs, long
        self.version = 0

    @abc.abstractmethod
    async def transfer(self, version: int) -> None:
        """Send changed weights as ``version`` while the paused engine loads them; raises what its ``load`` raised."""

    @abc.abstractmethod
    async def failing_transfer(self, version: int) -> None:
        """The same, in a way that makes ``load`` fail; raises what it raised. The next ``transfer`` works again."""

    @abc.abstractmethod
    async def stage(self, version: int) -> WeightUpdate:
        """Send changed weights as ``version`` to the engine, which goes on generating; what it is to swap in then."""

    @abc.abstractmethod
    async def break_off(self, version: int) -> None:
        """Begin to stage ``version`` from a sender that is gone before it has sent everything."""

    @abc.abstractmethod
    async def reconnect(self) -> None:
        """Meet the engine in a new weight group, with a sender that lives."""

    @abc.abstractmethod
    async def kill(self) -> None:
        """End the engine as an accident would: its process is gone."""

    async def push(self, version: int) -> None:
        """Pause, transfer, resume."""
        await self.engine.pause()
        await self.transfer(version)
        await self.engine.resume()
        self.version = version

    async def stopping(self) -> Decoding:
        """A decoding under which a stream of the prompt ends with a stop token: one that greedy sampling meets."""
        stream = await self.sample(Decoding(temperature=0, max_tokens=8, stop_token_ids=[]))
        return Decoding(temperature=0, max_tokens=self.long, stop_token_ids=[stream.token_ids[4]])

    def version_of(self, token: int) -> int | None:
        """The version that sampled ``token``, where the weights are such that it can be read off; else None."""
        return None

    async def scores(self, token_ids: list[int]) -> list[list[float]]:
        """What each copy of the model says of the tokens after the first."""
        told, length = await self.engine.score(token_ids), len(token_ids) - 1
        assert len(told) == self.num_copies * length
        return [told[copy * length : (copy + 1) * length] for copy in range(self.num_copies)]

    async def sampled_by_copy(self) -> list[int]:
        """Tokens that each copy has sampled so far."""
        return [self.engine.statistics().tokens_generated]

    async def sample(self, decoding: Decoding, prompt: list[int] | None = None) -> Stream:
        """One stream to its end."""
        stream = Stream()
        async with aclosing(self.engine.generate(prompt or self.prompt, decoding)) as chunks:
            await stream.consume(chunks)
        return stream


class Stream:
    """What one stream gave so far."""

    def __init__(self) -> None:
        self.chunks: list[TokenChunk] = []
        self._news = asyncio.Condition()

    @property
    def token_ids(self) -> list[int]:
        """All tokens."""
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def logprobs(self) -> list[float]:
        """Their log-probabilities."""
        return [logprob for chunk in self.chunks for logprob in chunk.logprobs]

    @property
    def versions(self) -> list[int]:
        """Their versions."""
        return [chunk.version for chunk in self.chunks for _ in chunk.token_ids]

    async def consume(self, chunks: AsyncGenerator[TokenChunk, None]) -> None:
        """Take every chunk."""
        async for chunk in chunks:
            async with self._news:
                self.chunks.append(chunk)
                self._news.notify_all()

    async def has(self, num_tokens: int) -> None:
        """Wait until there are so many tokens."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.token_ids) >= num_tokens)
