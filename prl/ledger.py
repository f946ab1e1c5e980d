"""What becomes of every prompt: the accounts that follow from the records of a run.

``Ledger.append`` is the only way in for the records of a run (``records.py``), for one under way and for one that is
read back, so the accounts of a run that is resumed are those it had (``journal.py`` keeps the records on the disk).

Invariants:

- Each id below ``cursor`` is open, trained or left (one that the source passed over left with that reason); one that is
  none of them is *lost*, and one that two steps trained is trained *twice*. A run that keeps its promises has neither;
  ``prl audit`` looks.
- What was sampled under a version whose proof (``sync.py``) has not come is known as such: no step trains on it, and a
  resume gives it up, whether the proof failed or the run ended before it.
- Open prompts stand in the order of admission, which is the order in which they are admitted again after a resume: the
  lag bound's proof (``buffer.py``) needs no more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from prl.records import (
    Admitted,
    AnyRecord,
    Entry,
    Left,
    Measured,
    Member,
    Open,
    Played,
    Proven,
    Sampled,
    Scored,
    Snapshot,
    Trained,
    Unproven,
)


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
    unproven: int
    """Of both: those with tokens of weights that are not proven (yet)."""
    issued_again: dict[str, int]
    """Times that what was sampled of a prompt was given up at a resume, by reason; the prompt was then sampled anew."""
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
        self.unproven: int | None = None
        """The oldest version that engines may sample with and whose proof has not come."""
        self.open: dict[int, Entry] = {}
        self._trained, self._left = IdSet(), IdSet()
        self._left_by_reason: Counter[str] = Counter()
        self._issued_again: Counter[str] = Counter()
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
            case Trained(step=step, prompt_ids=numbers):
                self._train(step, numbers)
            case Measured() | Unproven() | Proven():
                self._learn(record)
            case Snapshot() | Open():
                self._restore(record)

    def _learn(self, record: Measured | Unproven | Proven) -> None:
        """What is known of rows and of weights, whatever became of the prompts."""
        match record:
            case Measured(row=row, epoch=epoch, solve_rate=solve_rate):
                self.solve_rates[row] = epoch, solve_rate
            case Unproven(version=version):
                self.unproven = version if self.unproven is None else min(version, self.unproven)
            case Proven():
                self.unproven = None

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

    def is_unproven(self, entry: Entry) -> bool:
        """Whether an open prompt has tokens of weights that are not proven."""
        newest = entry.newest_version()
        return self.unproven is not None and newest is not None and newest >= self.unproven

    def forget(self, number: int, reason: str) -> None:
        """Give up what was sampled of an open prompt: it is sampled anew."""
        self._issued_again[reason] += 1
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
                unproven=self.unproven,
                issued_again=dict(self._issued_again),
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
            unproven=sum(map(self.is_unproven, self.open.values())),
            issued_again=dict(self._issued_again),
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
        self._issued_again, self.unproven = Counter(snapshot.issued_again), snapshot.unproven
        self.data = dict(snapshot.data)
        self.solve_rates = {row: (epoch, rate) for row, epoch, rate in snapshot.solve_rates}


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
