"""What happens to a prompt, as it is written down: the records of a run, and what they say of one open prompt.

A prompt is *admitted*, its members are *sampled* chunk by chunk or *played* as whole episodes, its group is *scored*,
and a step has *trained* it; or it *left* for a stated reason. ``ledger.py`` counts them, ``journal.py`` keeps them on
the disk.

Invariants:

- A record never changes once it is written: a field that is added has a default, which older journals are read with.
- What was sampled of an open prompt is kept token by token, with versions and log-probabilities. A resumed run goes on
  from these tokens: sampling anew what was unfinished would favour short answers, since long ones are cut off. An
  episode is kept once it is finished: what its environment was doing cannot be gone on with, so one that was under way
  begins anew, and the few of them that a crash meets are the shorter for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from prl.types import Completion, Finish, Group, Prompt, Score, TokenChunk, Turn, by_turn


class Record(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Something that happened to a prompt."""


class Admitted(Record, frozen=True, kw_only=True, tag="admitted"):
    """The source gave a prompt out."""

    prompt: Prompt


class Sampled(Record, frozen=True, kw_only=True, tag="sampled"):
    """An engine gave some tokens of one member."""

    prompt_id: int
    member: int
    chunk: TokenChunk
    attempt: int = 0
    """A new attempt begins at its first token; the tokens of the one before are given up."""


class Played(Record, frozen=True, kw_only=True, tag="played"):
    """An episode of one member is finished."""

    prompt_id: int
    member: int
    episode: Member


class Scored(Record, frozen=True, kw_only=True, tag="scored"):
    """The group is complete: the members that are in it, and their scores."""

    prompt_id: int
    members: list[int]
    scores: list[Score]


class Left(Record, frozen=True, kw_only=True, tag="left"):
    """The prompt came to nothing and is not issued again."""

    prompt_id: int
    reason: str
    """Such as ``timeout`` or ``zero_variance``."""


class Trained(Record, frozen=True, kw_only=True, tag="trained"):
    """A step was done on these prompts, in this order: version ``step`` became ``step + 1``."""

    step: int
    prompt_ids: list[int]


class Measured(Record, frozen=True, kw_only=True, tag="measured"):
    """A scored group says how difficult its row is (``data/curriculum.py``)."""

    prompt_id: int
    row: int
    """The row's number among those of all sources."""
    epoch: int
    solve_rate: float


class Unproven(Record, frozen=True, kw_only=True, tag="unproven"):
    """From here on engines may sample with this version, whose proof is still to come."""

    version: int


class Proven(Record, frozen=True, kw_only=True, tag="proven"):
    """The engines serve this version: it is the trainer's."""

    version: int


class Member(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One stream of a prompt as far as it is known, or a finished episode."""

    attempt: int = 0
    token_ids: list[int] = msgspec.field(default_factory=list)
    logprobs: list[float] = msgspec.field(default_factory=list)
    versions: list[int] = msgspec.field(default_factory=list)
    finish: Finish | None = None
    turns: list[Turn] = msgspec.field(default_factory=list)
    """Of an episode, as in ``Completion``."""
    rewards: dict[str, float] = msgspec.field(default_factory=dict)
    messages: list[dict[str, Any]] = msgspec.field(default_factory=list)
    noted: dict[str, float] = msgspec.field(default_factory=dict)

    def copy(self) -> Member:
        """The same, with lists of its own."""
        return Member(
            attempt=self.attempt,
            token_ids=list(self.token_ids),
            logprobs=list(self.logprobs),
            versions=list(self.versions),
            finish=self.finish,
            turns=self.turns,
            rewards=self.rewards,
            messages=self.messages,
            noted=self.noted,
        )

    def add(self, chunk: TokenChunk) -> None:
        """Append a chunk's tokens."""
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.versions += [chunk.version] * len(chunk.token_ids)
        self.finish = chunk.finish


class Entry(msgspec.Struct, kw_only=True):
    """One open prompt: what was sampled of it, and its scores once it has them."""

    prompt: Prompt
    members: dict[int, Member] = msgspec.field(default_factory=dict)
    scored: Scored | None = None

    def copy(self) -> Entry:
        """The same, with token lists of its own."""
        members = {index: member.copy() for index, member in self.members.items()}
        return Entry(prompt=self.prompt, members=members, scored=self.scored)

    def oldest_version(self) -> int | None:
        """The version of the oldest token; None before the first one."""
        return min((min(member.versions) for member in self.members.values() if member.versions), default=None)

    def newest_version(self) -> int | None:
        """The version of the newest token; None before the first one."""
        return max((max(member.versions) for member in self.members.values() if member.versions), default=None)


class Snapshot(Record, frozen=True, kw_only=True, tag="snapshot"):
    """The whole ledger, but for its open prompts, which follow as ``Open``: how every segment of the journal begins."""

    step: int
    cursor: int
    trained: list[tuple[int, int]]
    """Half-open ranges of ids."""
    left: list[tuple[int, int]]
    left_by_reason: dict[str, int]
    trained_twice: list[int]
    num_open: int
    data: dict[str, str] = {}
    solve_rates: list[tuple[int, int, float]] = []
    """Row, epoch, solve rate."""
    unproven: int | None = None
    issued_again: dict[str, int] = {}


class Open(Record, frozen=True, kw_only=True, tag="open"):
    """One open prompt of a snapshot."""

    entry: Entry


AnyRecord = Snapshot | Open | Admitted | Sampled | Played | Scored | Left | Trained | Measured | Unproven | Proven


def completion_of(member: Member, text_of: Callable[[list[int]], str]) -> Completion:
    """The completion of a member that ended with ``stop`` or ``length``; ``text_of`` decodes token ids."""
    return Completion(
        token_ids=member.token_ids,
        logprobs=member.logprobs,
        versions=member.versions,
        text=text_of(by_turn(member.turns, member.token_ids)[-1]),
        finish="stop" if member.finish == "stop" else "length",
        turns=member.turns,
        rewards=member.rewards,
        messages=member.messages,
        noted=member.noted,
    )


def member_of(episode: Completion) -> Member:
    """A finished episode as it is recorded."""
    return Member(
        token_ids=episode.token_ids,
        logprobs=episode.logprobs,
        versions=episode.versions,
        finish=episode.finish,
        turns=episode.turns,
        rewards=episode.rewards,
        messages=episode.messages,
        noted=episode.noted,
    )


def group_of(entry: Entry, text_of: Callable[[list[int]], str]) -> Group:
    """The group of a scored entry."""
    assert entry.scored is not None
    completions = [completion_of(entry.members[index], text_of) for index in entry.scored.members]
    return Group(prompt=entry.prompt, completions=completions, scores=entry.scored.scores)
