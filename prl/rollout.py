"""One prompt -> n streams -> completions -> scores -> group.

Invariants:

- Every rollout ends in exactly one outcome: a group, or a drop with its reason. It has a deadline of its own.
- A member that comes to nothing (aborted, refused, unusable log-probabilities, unscored) leaves the group; it never
  counts as a reward of 0. A group of several goes on while at least two members remain, so that there is a baseline.
- Only streams that ended with ``stop`` or ``length`` are scored, each as soon as it ends.
- A bug, or an engine that died, is no outcome: it is reported to ``FirstFailure`` and ends the run.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

import msgspec

from prl.engines.base import Decoding
from prl.errors import EngineDeadError, EngineError
from prl.failure import FirstFailure, being_cancelled, failures_to
from prl.types import Abstained, Completion, Group, Prompt, Score, ScoringFailed, TokenChunk, Verdict, are_logprobs

MAX_ATTEMPTS = 2
"""A member whose stream comes to nothing is sampled once more."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The rollout made a group."""

    group: Group


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """The rollout came to nothing; its slot is refilled."""

    reason: str
    """The counter ``dropped_<reason>`` in the metrics."""
    message: str


Outcome = Done | Dropped
Member = tuple[Completion, Score] | Dropped


def stream_seed(*key: int) -> int:
    """A 32-bit seed for one stream, the same on every machine."""
    return zlib.crc32(",".join(map(str, key)).encode())


class Streams(Protocol):
    """Where streams come from: the pool, or a single engine."""

    def generate(self, token_ids: list[int], decoding: Decoding, *, group: int) -> AsyncGenerator[TokenChunk, None]:
        """Sample one stream; see ``engines/base.py``."""
        ...


class Rollout:
    """Rolls out prompts, one call each."""

    def __init__(
        self,
        streams: Streams,
        score: Callable[[Completion, Prompt], Awaitable[Verdict]],
        decode: Callable[[list[int]], str],
        *,
        decoding: Decoding,
        group_size: int,
        timeout_s: float,
        failure: FirstFailure,
        seed: int | None = None,
    ) -> None:
        self._streams, self._score, self._decode = streams, score, decode
        self._decoding, self._group_size, self._timeout_s = decoding, group_size, timeout_s
        self._failure, self._seed = failure, seed
        self.members_dropped: Counter[str] = Counter()
        """Members that came to nothing, by reason, in groups that went on or not."""

    async def __call__(self, prompt: Prompt) -> Outcome:
        """Roll out one prompt."""
        members: list[Member] = []
        try:
            async with asyncio.timeout(self._timeout_s), asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._guarded_member(prompt, member)) for member in range(self._group_size)]
            members = [task.result() for task in tasks]
        except TimeoutError:
            return self._drop("timeout", f"prompt {prompt.id}: pipeline.rollout_timeout_s = {self._timeout_s:g} passed")
        return self._assemble(prompt, members)

    def _assemble(self, prompt: Prompt, members: list[Member]) -> Outcome:
        survivors = [member for member in members if not isinstance(member, Dropped)]
        lost = [member for member in members if isinstance(member, Dropped)]
        self.members_dropped.update(member.reason for member in lost)
        if len(survivors) >= min(2, self._group_size):
            return Done(
                group=Group(
                    prompt=prompt,
                    completions=[completion for completion, _ in survivors],
                    scores=[score for _, score in survivors],
                )
            )
        reason, _ = Counter(member.reason for member in lost).most_common(1)[0]
        example = next(member.message for member in lost if member.reason == reason)
        return Dropped(reason=reason, message=f"prompt {prompt.id}: {len(lost)} of {len(members)} members: {example}")

    def _drop(self, reason: str, message: str) -> Dropped:
        self.members_dropped[reason] += self._group_size
        return Dropped(reason=reason, message=message)

    async def _guarded_member(self, prompt: Prompt, member: int) -> Member:
        """One member; a failure that must end the run is reported at once and not raised into the task group."""
        with failures_to(self._failure.set, f"the rollout of prompt {prompt.id}"):
            return await self._member(prompt, member)
        return Dropped(reason="error", message="it ends the run")

    async def _member(self, prompt: Prompt, member: int) -> Member:
        sampled = await self.sample(prompt, self._seeded(prompt, member, 0))
        for attempt in range(1, MAX_ATTEMPTS):
            if isinstance(sampled, Completion):
                break
            sampled = await self.sample(prompt, self._seeded(prompt, member, attempt))
        if isinstance(sampled, Dropped):
            return sampled
        match await self._score(sampled, prompt):
            case Score() as score:
                return sampled, score
            case Abstained(reason=reason):
                return Dropped(reason="abstained", message=reason)
            case ScoringFailed(reason=reason, message=message):
                return Dropped(reason=reason, message=message)

    def _seeded(self, prompt: Prompt, member: int, attempt: int) -> Decoding:
        """The decoding of one attempt; its seed depends on the run's seed and on what is sampled, not on when."""
        if self._seed is None:
            return self._decoding
        return msgspec.structs.replace(self._decoding, seed=stream_seed(self._seed, prompt.id, member, attempt))

    async def sample(self, prompt: Prompt, decoding: Decoding) -> Completion | Dropped:
        """Fold one stream into a completion, or say why it is none."""
        token_ids: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        finish = None
        try:
            async with aclosing(self._streams.generate(prompt.token_ids, decoding, group=prompt.id)) as chunks:
                async for chunk in chunks:
                    token_ids += chunk.token_ids
                    logprobs += chunk.logprobs
                    versions += [chunk.version] * len(chunk.token_ids)
                    finish = chunk.finish
        except EngineDeadError:
            raise
        except EngineError as error:
            if being_cancelled():  # the stream failed to close: no reason to go on with another
                raise asyncio.CancelledError from error
            return Dropped(reason="engine_error", message=str(error))
        if finish not in {"stop", "length"} or not token_ids:
            return Dropped(reason="aborted", message=f"the stream ended with {finish} after {len(token_ids)} tokens")
        if not are_logprobs(logprobs):
            return Dropped(reason="bad_logprobs", message="the engine reported a log-probability that is none")
        return Completion(
            token_ids=token_ids,
            logprobs=logprobs,
            versions=versions,
            text=self._decode(token_ids),
            finish="stop" if finish == "stop" else "length",
        )
