"""One prompt -> n streams -> completions -> scores -> group.

Invariants:

- Every rollout ends in exactly one outcome: a group, or a drop with its reason. It has a deadline of its own, which
  does not run while the engines stand still for a mend.
- A member that comes to nothing (aborted, refused, unusable log-probabilities, unscored) leaves the group; it never
  counts as a reward of 0. A group of several goes on while at least two members remain, so that there is a baseline.
- Only streams that ended with ``stop`` or ``length`` are scored, each as soon as it ends; what judges a whole group is
  asked once every member has ended.
- A stream whose engine dies, stalls or is removed goes on with another one, behind the tokens that it has: they keep
  their versions and log-probabilities, and what follows is sampled given them, so no length is favoured.
- With ``play`` a member is an episode, of as many streams as its environment asks for; it is recorded once it is
  finished, and one that came to nothing is played once more.
- A bug, or the end of all engines, is no outcome: it is reported to ``FirstFailure`` and ends the run.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from types import MappingProxyType
from typing import Protocol

import msgspec

from prl.deadlines import Deadlines
from prl.engines.base import Decoding
from prl.errors import EngineDeadError, EngineError, EngineLeftError, EngineStalledError
from prl.failure import FirstFailure, being_cancelled, failures_to, raise_as_it_was
from prl.records import Member, Played, Sampled, completion_of, member_of
from prl.types import Abstained, Completion, Group, Prompt, Score, ScoringFailed, TokenChunk, Verdict, are_logprobs
from prl.waits import Wait, loop, waiting

MAX_DEATHS, MAX_STALLS = 8, 1
"""Engines that may die, or stall, under one stream before it is given up."""
MAX_ATTEMPTS = 2
"""A member whose stream comes to nothing is sampled once more."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The rollout made a group."""

    group: Group
    members: list[int]
    """Which members of the rollout are in the group, in its order."""


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """The rollout came to nothing; its slot is refilled."""

    reason: str
    """The counter ``dropped_<reason>`` in the metrics."""
    message: str


Outcome = Done | Dropped
Judged = tuple[Completion, Score] | Dropped


ScoreGroup = Callable[[list[Completion], list[Score], Prompt], Awaitable[list[Verdict]]]


def _judged(completion: Completion, verdict: Verdict) -> Judged:
    match verdict:
        case Score():
            return completion, verdict
        case Abstained(reason=reason):
            return Dropped(reason="abstained", message=reason)
        case ScoringFailed(reason=reason, message=message):
            return Dropped(reason=reason, message=message)


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


Sample = Callable[[Prompt, Decoding, Callable[[TokenChunk], None]], Awaitable[Completion | Dropped]]
"""Samples one stream behind a prompt, as ``decoding`` says, and tells its chunks."""
Play = Callable[[Prompt, Decoding, Sample], Awaitable[Completion | Dropped]]
"""Plays one episode; every stream of it is sampled by the last argument."""


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
        record: Callable[[Sampled | Played], None] = lambda _: None,
        deadlines: Deadlines | None = None,
        play: Play | None = None,
        score_group: ScoreGroup | None = None,
    ) -> None:
        """See the module.

        ``record`` is told of every chunk of a training rollout, or of every episode; ``deadlines`` are held while no
        stream can go on; without ``play`` a completion is one stream behind its prompt. ``score_group`` gives the
        members that have a score their last verdict, all together.
        """
        self._play, self._score_group = play, score_group
        self._record, self._deadlines = record, deadlines or Deadlines()
        self._streams, self._score, self.decode = streams, score, decode
        self._decoding, self._group_size, self._timeout_s = decoding, group_size, timeout_s
        self._failure, self._seed = failure, seed
        self.under_way: dict[int, Wait | None] = {}
        """What each rollout waits for, by its prompt's id."""
        self.num_moved = 0
        """Streams that went on with another engine because theirs died or stalled."""
        self.num_handed_over = 0
        """Streams that did because theirs was removed, as often as that was asked for."""
        self.members_dropped: Counter[str] = Counter()
        """Members that came to nothing, by reason, in groups that went on or not."""

    async def __call__(
        self,
        prompt: Prompt,
        so_far: Mapping[int, Member] = MappingProxyType({}),
        stream_ended: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Roll out one prompt; members of which something is known go on from there.

        Args:
            prompt: what is continued.
            so_far: what is known of its members, by index.
            stream_ended: called once for each member, when it needs no engine any more.
        """
        with loop(f"group {prompt.id}") as self.under_way[prompt.id]:
            try:
                return await self._roll_out(prompt, so_far, stream_ended)
            finally:
                del self.under_way[prompt.id]

    async def _roll_out(
        self, prompt: Prompt, so_far: Mapping[int, Member], stream_ended: Callable[[], None]
    ) -> Outcome:
        members: list[Judged] = []
        try:
            async with self._deadlines.timeout(self._timeout_s):
                members = await self._all_members(prompt, so_far, stream_ended)
                if self._score_group is not None:
                    members = await self._guarded_group(prompt, members, self._score_group)
        except TimeoutError:
            return self._drop("timeout", f"prompt {prompt.id}: pipeline.rollout_timeout_s = {self._timeout_s:g} passed")
        return self._assemble(prompt, members)

    async def _all_members(
        self, prompt: Prompt, so_far: Mapping[int, Member], stream_ended: Callable[[], None]
    ) -> list[Judged]:
        if self._group_size == 1:  # it has this task
            return [await self._guarded_member(prompt, 0, so_far.get(0, Member()), stream_ended)]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._guarded_member(prompt, index, so_far.get(index, Member()), stream_ended))
                for index in range(self._group_size)
            ]
        return [task.result() for task in tasks]

    def _assemble(self, prompt: Prompt, members: list[Judged]) -> Outcome:
        survivors = [member for member in members if not isinstance(member, Dropped)]
        lost = [member for member in members if isinstance(member, Dropped)]
        self.members_dropped.update(member.reason for member in lost)
        if len(survivors) >= min(2, self._group_size):
            return Done(
                group=Group(
                    prompt=prompt,
                    completions=[completion for completion, _ in survivors],
                    scores=[score for _, score in survivors],
                ),
                members=[index for index, member in enumerate(members) if not isinstance(member, Dropped)],
            )
        reason, _ = Counter(member.reason for member in lost).most_common(1)[0]
        example = next(member.message for member in lost if member.reason == reason)
        return Dropped(reason=reason, message=f"prompt {prompt.id}: {len(lost)} of {len(members)} members: {example}")

    def _drop(self, reason: str, message: str) -> Dropped:
        self.members_dropped[reason] += self._group_size
        return Dropped(reason=reason, message=message)

    async def _guarded_member(
        self, prompt: Prompt, index: int, so_far: Member, stream_ended: Callable[[], None]
    ) -> Judged:
        """One member; a failure that must end the run is reported at once and not raised into the task group."""
        what = f"the rollout of prompt {prompt.id}"
        with failures_to(self._failure.set, what), waiting(f"member {index}", aside=True):
            sample = self._sampled if self._play is None else self._played
            sampled = await sample(prompt, index, so_far)
            stream_ended()
            return sampled if isinstance(sampled, Dropped) else _judged(sampled, await self._score(sampled, prompt))
        return Dropped(reason="error", message="it ends the run")

    async def _sampled(self, prompt: Prompt, index: int, so_far: Member) -> Completion | Dropped:
        sampled: Completion | Dropped = Dropped(reason="aborted", message="no attempt was made")
        for attempt in range(so_far.attempt, so_far.attempt + MAX_ATTEMPTS):
            member = so_far.copy() if attempt == so_far.attempt else Member(attempt=attempt)
            record = partial(self._record_chunk, prompt.id, index, attempt)
            sampled = await self.sample(prompt, self._seeded(prompt, index, attempt), member, record)
            if isinstance(sampled, Completion):
                break
        return sampled

    async def _played(self, prompt: Prompt, index: int, so_far: Member) -> Completion | Dropped:
        """One episode, or the one that the journal has."""
        if so_far.finish is not None:
            return completion_of(so_far, self.decode)
        played: Completion | Dropped = Dropped(reason="aborted", message="no attempt was made")
        for attempt in range(MAX_ATTEMPTS):
            played = await self.answer(prompt, self._seeded(prompt, index, attempt))
            if isinstance(played, Completion):
                self._record(Played(prompt_id=prompt.id, member=index, episode=member_of(played)))
                break
        return played

    async def answer(self, prompt: Prompt, decoding: Decoding) -> Completion | Dropped:
        """One completion that is not recorded: a stream, or an episode all of whose streams are sampled like that."""
        if self._play is None:
            return await self.sample(prompt, decoding)
        return await self._play(prompt, decoding, lambda behind, how, record: self.sample(behind, how, record=record))

    async def _guarded_group(self, prompt: Prompt, members: list[Judged], score_group: ScoreGroup) -> list[Judged]:
        """The members with what is judged of all that have a score; a bug is reported as one of a member is."""
        scored = [member for member in members if not isinstance(member, Dropped)]
        if not scored:
            return members
        with failures_to(self._failure.set, f"the rollout of prompt {prompt.id}"):
            verdicts = await score_group([done for done, _ in scored], [score for _, score in scored], prompt)
            judged = iter([_judged(done, verdict) for (done, _), verdict in zip(scored, verdicts, strict=True)])
            return [member if isinstance(member, Dropped) else next(judged) for member in members]
        return [Dropped(reason="error", message="it ends the run")] * len(members)

    def _record_chunk(self, prompt_id: int, index: int, attempt: int, chunk: TokenChunk) -> None:
        self._record(Sampled(prompt_id=prompt_id, member=index, attempt=attempt, chunk=chunk))

    def _seeded(self, prompt: Prompt, member: int, attempt: int) -> Decoding:
        """The decoding of one attempt; its seed depends on the run's seed and on what is sampled, not on when."""
        if self._seed is None:
            return self._decoding
        return msgspec.structs.replace(self._decoding, seed=stream_seed(self._seed, prompt.id, member, attempt))

    async def sample(
        self,
        prompt: Prompt,
        decoding: Decoding,
        member: Member | None = None,
        record: Callable[[TokenChunk], None] = lambda _: None,
    ) -> Completion | Dropped:
        """Fold one stream into a completion, or say why it is none.

        Args:
            prompt: what is continued.
            decoding: how to sample; its ``max_tokens`` are those of the whole completion.
            member: what is known of it; the stream goes on behind its tokens, which keep their versions.
            record: told of every chunk.
        """
        member = Member() if member is None else member
        if member.finish is None and len(member.token_ids) >= decoding.max_tokens:
            member.finish = "length"
        if member.finish is None:
            try:
                await self._stream_on(prompt, decoding, member, record)
            except EngineDeadError:
                raise
            except EngineError as error:
                if being_cancelled():  # the stream failed to close: no reason to go on with another
                    raise asyncio.CancelledError from error
                return Dropped(reason="engine_error", message=str(error))
        if member.finish not in {"stop", "length"} or not member.token_ids:
            message = f"the stream ended with {member.finish} after {len(member.token_ids)} tokens"
            return Dropped(reason="aborted", message=message)
        if not are_logprobs(member.logprobs):
            return Dropped(reason="bad_logprobs", message="the engine reported a log-probability that is none")
        return completion_of(member, self.decode)

    async def _stream_on(
        self, prompt: Prompt, decoding: Decoding, member: Member, record: Callable[[TokenChunk], None]
    ) -> None:
        """Sample to the end; an engine that is gone or stalls leaves the rest to another, behind the tokens it gave."""
        deaths = stalls = 0
        first: EngineError | None = None
        while True:
            try:
                return await self._stream(prompt, decoding, member, record)
            except (EngineDeadError, EngineStalledError, EngineLeftError) as error:
                if being_cancelled():
                    raise asyncio.CancelledError from error
                if isinstance(error, EngineLeftError):
                    self.num_handed_over += 1
                    continue
                died = isinstance(error, EngineDeadError)
                deaths, stalls = deaths + died, stalls + (not died)
                first = first or error
                if deaths > MAX_DEATHS or stalls > MAX_STALLS:
                    raise_as_it_was(first)
                self.num_moved += 1

    async def _stream(
        self, prompt: Prompt, decoding: Decoding, member: Member, record: Callable[[TokenChunk], None]
    ) -> None:
        """Sample behind what ``member`` has, into it."""
        known, at_least = len(member.token_ids), member.versions[-1] if member.versions else 0
        if known:
            decoding = msgspec.structs.replace(decoding, max_tokens=decoding.max_tokens - known, num_known=known)
        behind = prompt.token_ids + member.token_ids
        chunks = self._streams.generate(behind, decoding, group=prompt.id, at_least=at_least)
        async with aclosing(chunks):
            async for chunk in chunks:
                member.add(chunk)
                record(chunk)
