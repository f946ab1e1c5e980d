"""What becomes of every prompt: the records of a run, and the accounts that follow from them.

A prompt is *admitted*, its members are *sampled* chunk by chunk or *played* as whole episodes, its group is *scored*,
and a step has *trained* it; or it *left* for a stated reason. ``Ledger.append`` is the only way in, for a run under way
and for one that is read back, so the accounts of a run that is resumed are those it had (``journal.py`` keeps the
records on the disk).

Invariants:

- Each id below ``cursor`` is open, trained or left (one that the source passed over left with that reason); one that is
  none of them is *lost*, and one that two steps trained is trained *twice*. A run that keeps its promises has neither;
  ``prl audit`` looks.
- Open prompts stand in the order of admission, which is the order in which they are admitted again after a resume: the
  lag bound's proof (``buffer.py``) needs no more.
- What was sampled of an open prompt is kept token by token, with versions and log-probabilities. A resumed run goes on
  from these tokens: sampling anew what was unfinished would favour short answers, since long ones are cut off. An
  episode is kept once it is finished: what its environment was doing cannot be gone on with, so one that was under way
  begins anew, and the few of them that a crash meets are the shorter for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

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


class Open(Record, frozen=True, kw_only=True, tag="open"):
    """One open prompt of a snapshot."""

    entry: Entry


AnyRecord = Snapshot | Open | Admitted | Sampled | Played | Scored | Left | Trained | Measured


class Accounts(msgspec.Struct, frozen=True, kw_only=True):
    """Where every prompt is."""

    steps: int
    admitted: int
    trained: int
    left: dict[str, int]
    """Prompts that came to nothing, by reason."""
    running: int
    scored: int
    """Complete and not trained yet."""
    lost: list[int]
    """Ids that are nowhere: there must be none."""
    trained_twice: list[int]
    """There must be none."""


class IdSet:
    """A set of ids as half-open ranges: ids come nearly in order, so a million of them are a few ranges."""

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self.ranges: list[tuple[int, int]] = [(start, end) for start, end in ranges]

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self.ranges, (number, float("inf"))) - 1
        return at >= 0 and number < self.ranges[at][1]

    def __len__(self) -> int:
        return sum(end - start for start, end in self.ranges)

    def add(self, number: int) -> bool:
        """Put ``number`` in; False if it was."""
        if number in self:
            return False
        start, end = number, number + 1
        at = bisect_right(self.ranges, (number, float("inf")))
        if at < len(self.ranges) and self.ranges[at][0] == end:
            end = self.ranges.pop(at)[1]
        if at and self.ranges[at - 1][1] == start:
            at -= 1
            start = self.ranges.pop(at)[0]
        self.ranges.insert(at, (start, end))
        return True


class Records(Protocol):
    """Where it is written down what becomes of every prompt: the journal, or a ledger in memory."""

    def append(self, record: AnyRecord) -> None:
        """Write down one thing that happened."""
        ...

    async def ready(self) -> None:
        """Wait until more may happen: a full disk holds up admission."""
        ...


class Ledger:
    """The accounts of one run, in memory: what is done with leaves a number behind, and no token."""

    def __init__(self) -> None:
        self.step = 0
        """Completed optimiser steps."""
        self.cursor = 0
        """Id of the next prompt to be admitted."""
        self.data: dict[str, str] = {}
        """Fingerprint of the data that ids are positions of."""
        self.solve_rates: dict[int, tuple[int, float]] = {}
        """By row: the epoch it was last measured in, and its solve rate."""
        self.open: dict[int, Entry] = {}
        self._trained, self._left = IdSet(), IdSet()
        self._left_by_reason: Counter[str] = Counter()
        self._trained_twice: list[int] = []

    def append(self, record: AnyRecord) -> None:
        """Count one record."""
        match record:
            case Sampled(prompt_id=number, member=index, attempt=attempt, chunk=chunk):
                members = self.open[number].members
                member = members.get(index)
                if member is None or member.attempt != attempt:
                    member = members[index] = Member(attempt=attempt)
                member.add(chunk)
            case Played(prompt_id=number, member=index, episode=episode):
                self.open[number].members[index] = episode
            case Admitted(prompt=prompt):
                self.open[prompt.id] = Entry(prompt=prompt)
                self.cursor = max(self.cursor, prompt.id + 1)
            case Scored(prompt_id=number):
                self.open[number].scored = record
            case Left(prompt_id=number, reason=reason):
                self._leave(number, reason)
            case Measured(row=row, epoch=epoch, solve_rate=solve_rate):
                self.solve_rates[row] = epoch, solve_rate
            case Trained(step=step, prompt_ids=numbers):
                self._train(step, numbers)
            case Snapshot() | Open():
                self._restore(record)

    def _leave(self, number: int, reason: str) -> None:
        self.open.pop(number, None)
        if self._left.add(number):  # one that was passed over may be so again after a crash
            self._left_by_reason[reason] += 1

    async def ready(self) -> None:
        """Return at once: memory takes every record (``Journal.ready`` waits for the disk)."""

    def begin(self, *, step: int, cursor: int, open_ids: list[int]) -> None:
        """Start at a step where all prompts below ``cursor`` but ``open_ids`` are trained: what a checkpoint tells."""
        self.step, self.cursor = step, cursor
        ends = sorted({*open_ids, cursor})
        starts = [0, *(number + 1 for number in ends[:-1])]
        self._trained = IdSet((start, end) for start, end in zip(starts, ends, strict=True) if start < end)

    def forget(self, number: int) -> None:
        """Give up what was sampled of an open prompt: it is sampled anew."""
        self.open[number] = Entry(prompt=self.open[number].prompt)

    def facts(self) -> dict[str, Any]:
        """What is known of the data, for a checkpoint: it must do without the journal."""
        rates = [(row, epoch, rate) for row, (epoch, rate) in self.solve_rates.items()]
        return {"data": self.data, "solve_rates": rates}

    def forget_unfinished(self, *, of_version: int) -> None:
        """Give up streams that are not at their end and have tokens of this version only."""
        for entry in self.open.values():
            for index, member in list(entry.members.items()):
                if member.finish is None and set(member.versions) == {of_version}:
                    del entry.members[index]

    def snapshot(self) -> list[Snapshot | Open]:
        """The whole ledger as records that later ones do not change."""
        return [
            Snapshot(
                step=self.step,
                cursor=self.cursor,
                trained=list(self._trained.ranges),
                left=list(self._left.ranges),
                left_by_reason=dict(self._left_by_reason),
                trained_twice=list(self._trained_twice),
                num_open=len(self.open),
                data=dict(self.data),
                solve_rates=[(row, epoch, rate) for row, (epoch, rate) in self.solve_rates.items()],
            ),
            *(Open(entry=entry.copy()) for entry in self.open.values()),
        ]

    def accounts(self) -> Accounts:
        """Where every prompt is."""
        scored = sum(entry.scored is not None for entry in self.open.values())
        settled = _union(self._trained, self._left)
        return Accounts(
            steps=self.step,
            admitted=self.cursor,
            trained=len(self._trained),
            left=dict(self._left_by_reason),
            running=len(self.open) - scored,
            scored=scored,
            lost=[number for number in _gaps(settled, self.cursor) if number not in self.open],
            trained_twice=list(self._trained_twice),
        )

    def _train(self, step: int, numbers: list[int]) -> None:
        for number in numbers:
            self.open.pop(number, None)
        self._trained_twice += [number for number in numbers if not self._trained.add(number)]
        self.step = step + 1

    def _restore(self, snapshot: Snapshot | Open) -> None:
        if isinstance(snapshot, Open):
            self.open[snapshot.entry.prompt.id] = snapshot.entry
            return
        self.step, self.cursor = snapshot.step, snapshot.cursor
        self.open = {}
        self._trained, self._left = IdSet(snapshot.trained), IdSet(snapshot.left)
        self._left_by_reason = Counter(snapshot.left_by_reason)
        self._trained_twice = list(snapshot.trained_twice)
        self.data = dict(snapshot.data)
        self.solve_rates = {row: (epoch, rate) for row, epoch, rate in snapshot.solve_rates}


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


def _union(first: IdSet, second: IdSet) -> IdSet:
    merged: list[tuple[int, int]] = []
    for start, end in sorted([*first.ranges, *second.ranges]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return IdSet(merged)


def _gaps(known: IdSet, end: int) -> Iterable[int]:
    """The ids below ``end`` that are not in ``known``."""
    at = 0
    for start, stop in known.ranges:
        yield from range(at, min(start, end))
        at = stop
    yield from range(at, end)
