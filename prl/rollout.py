"""One prompt -> n streams -> completions -> scores -> group.

Invariants:

- Every rollout ends in exactly one outcome: a group, or a drop with its reason. It has a deadline of its own, which
  does not run while the engines stand still for a mend.
- A member that comes to nothing (no completion, see ``sampler.py``, or no score) leaves the group; it never counts as a
  reward of 0. A group of several goes on while at least two members remain, so that there is a baseline.
- Each completion is scored as soon as it ends; what judges a whole group is asked once every member has ended.
- With ``play`` a member is an episode, of as many streams as its environment asks for; it is recorded once it is
  finished, and one that came to nothing is played once more.
- A bug, or the end of all engines, is no outcome: it is reported to ``FirstFailure`` and ends the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType

import msgspec

from prl.deadlines import Deadlines
from prl.engines.base import Decoding
from prl.failure import FirstFailure, failures_to
from prl.records import Member, Played, Sampled, completion_of, member_of
from prl.sampler import Dropped, Sample, Sampler, stream_seed
from prl.types import Abstained, Completion, Group, Prompt, Score, ScoringFailed, TokenChunk, Verdict
from prl.waits import Wait, loop, waiting

MAX_ATTEMPTS = 2
"""A member whose stream comes to nothing is sampled once more."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The rollout made a group."""

    group: Group
    members: list[int]
    """Which members of the rollout are in the group, in its order."""


Outcome = Done | Dropped
Judged = tuple[Completion, Score] | Dropped
ScoreGroup = Callable[[list[Completion], list[Score], Prompt], Awaitable[list[Verdict]]]
Play = Callable[[Prompt, Decoding, Sample], Awaitable[Completion | Dropped]]
"""Plays one episode; every stream of it is sampled by the last argument."""


def _judged(completion: Completion, verdict: Verdict) -> Judged:
    match verdict:
        case Score():
            return completion, verdict
        case Abstained(reason=reason):
            return Dropped(reason="abstained", message=reason)
        case ScoringFailed(reason=reason, message=message):
            return Dropped(reason=reason, message=message)


class Rollout:
    """Rolls out prompts, one call each."""

    def __init__(
        self,
        sampler: Sampler,
        score: Callable[[Completion, Prompt], Awaitable[Verdict]],
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
        self.sampler, self._score = sampler, score
        self._decoding, self._group_size, self._timeout_s = decoding, group_size, timeout_s
        self._failure, self._seed = failure, seed
        self.under_way: dict[int, Wait | None] = {}
        """What each rollout waits for, by its prompt's id."""
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
            sampled = await self.sampler.sample(prompt, self._seeded(prompt, index, attempt), record, member)
            if isinstance(sampled, Completion):
                break
        return sampled

    async def _played(self, prompt: Prompt, index: int, so_far: Member) -> Completion | Dropped:
        """One episode, or the one that the journal has."""
        if so_far.finish is not None:
            return completion_of(so_far, self.sampler.decode)
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
            return await self.sampler.sample(prompt, decoding)
        return await self._play(prompt, decoding, self.sampler.sample)

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
