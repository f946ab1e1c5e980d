"""The ledger on the disk: records appended as things happen, so that a run that was killed goes on where it was.

    journal/step-000000.log   a snapshot of the ledger, then every record until the next segment begins
    journal/step-000010.log   begun when the checkpoint of step 10 was: what a resume from that checkpoint reads first

Invariants:

- Reading a segment (``journal_segment.py``) stops at the first record that is not whole. What lies behind it is lost to
  the ledger until the snapshot of the next segment, if there is one, tells all that it needs.
- What is read is what was written, in type and value: a prompt with a field that msgpack would change is refused on the
  way in (``exact.py``).
- Each start of a run begins a segment, and the snapshot there is what that run went on from, whatever stands before.
- Records are written in the order they were appended, some at a time, each time with one fsync. ``flush`` returns when
  everything appended before it is on the disk; a checkpoint is begun after a flush, so the journal is never behind it.
- A segment is removed only when no checkpoint that is kept needs it. Whoever reads the journal of a run under way and
  meets that begins anew, with the segments that are there now: the snapshot of the first tells what came before.
- The ledger holds what is open. The groups of steps that are to be done again are a reader's and not the ledger's: that
  of a resumed run goes on for days.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from prl.disk import Disk
from prl.errors import JournalError
from prl.exact import check_fields
from prl.failure import FirstFailure, failures_to
from prl.journal_segment import Append, Segment, create, encoded
from prl.ledger import Ledger
from prl.records import Admitted, AnyRecord, Entry, Snapshot, Trained

FLUSH_S = 0.25
"""Records wait at most this long for the disk, so a crash loses at most this much sampling."""


class History(NamedTuple):
    """What a journal says."""

    ledger: Ledger
    damage: list[str]
    """What is there and is not what was written, each with file and place: what followed is lost to the ledger."""
    covered: list[str]
    """The same of older segments, and where a crash left one torn: the next one's snapshot tells all that the ledger
    needs. A torn tail of the newest segment is what a crash leaves, and is not said."""
    batches: dict[int, list[Entry]]
    """The groups of the steps that were to be kept, by the number of steps done before; each in its step's order."""

    @property
    def unread(self) -> list[str]:
        """Both, for people."""
        return [*self.damage, *self.covered]


class Journal:
    """Writes the journal of one run. ``append`` at any time; ``run`` is a task of the caller's group."""

    def __init__(self, folder: Path, disk: Disk, ledger: Ledger) -> None:
        """``ledger`` is the state that the first segment begins with: empty, or that of the run that is resumed."""
        self._folder, self._disk, self.ledger = folder, disk, ledger
        self._pending: list[AnyRecord] = []
        self._segment: Path | None = None
        self._writing = asyncio.Lock()
        self._wake = asyncio.Event()

    def append(self, record: AnyRecord) -> None:
        """Count a record, and write it soon. Raises DataError for a prompt that would not be read back as it is."""
        if isinstance(record, Admitted):
            check_fields(record.prompt)
        self.ledger.append(record)
        self._pending.append(record)
        self._wake.set()

    async def ready(self) -> None:
        """Wait while the disk takes nothing: what is not admitted needs no writing."""
        await self._disk.ready()

    async def run(self, failure: FirstFailure) -> None:
        """Write what was appended, until cancelled, then what is left. A disk that takes nothing is the failure."""
        try:
            await failure.guard("journal", self._write_on())
        finally:
            with failures_to(failure.set, "the end of the journal"):
                if not self._disk.refuses:  # else it was waited for already
                    await self.flush()

    async def _write_on(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Return when everything appended so far is on the disk."""
        async with self._writing:
            await self._write_pending()

    async def begin_segment(self) -> None:
        """Begin the segment of the ledger's step: what is appended from here on goes into it.

        A segment of that name, or of a later step, belongs to a history that was given up: the first is replaced by the
        snapshot of what was read from it, the others are put aside.
        """
        async with self._writing:
            snapshot, target = self.ledger.snapshot(), segment_file(self._folder, self.ledger.step)
            await self._write_pending()  # all of it is in the snapshot too, and the segment before ends with it
            if target == self._segment:
                return
            data = await asyncio.to_thread(encoded, snapshot)
            await self._disk.write("the journal", lambda: create(target, data))
            self._segment = target
            for number, path in segments(self._folder):
                if number > self.ledger.step:
                    await self._disk.write("the journal", partial(path.rename, path.with_suffix(".abandoned")))

    async def _write_pending(self) -> None:
        self._wake.clear()
        segment, records = self._segment, self._pending
        if segment is None or not records:
            return
        self._pending, writing = [], Append(segment)
        try:
            data = await asyncio.to_thread(encoded, records)
            await self._disk.write("the journal", lambda: writing(data))
        except BaseException:
            if not writing.may_be_done:  # twice in the journal is worse than not at all, which a crash does too
                self._pending = records + self._pending
            raise

    async def forget_before(self, step: int) -> None:
        """Remove the segments that a resume from the checkpoint of ``step``, or from a later one, does not read."""
        needed = _first_needed(segments(self._folder), step)
        for number, path in segments(self._folder):
            if number < needed:
                await self._disk.write("the journal", partial(path.unlink, missing_ok=True))


def segment_file(folder: Path, step: int) -> Path:
    """Where the segment that began after ``step`` steps lies."""
    return folder / f"step-{step:06d}.log"


def segments(folder: Path) -> list[tuple[int, Path]]:
    """The segments of a journal, oldest first."""
    names = [(path.stem[5:], path) for path in folder.glob("step-*.log")]
    return sorted((int(number), path) for number, path in names if number.isdecimal())


def read(folder: Path, *, resume_from: int | None = None, until: int | None = None) -> History:
    """Read a journal back. Blocking.

    Args:
        folder: the run folder's ``journal``.
        resume_from: the step of the checkpoint that the run goes on from: the groups of the steps from there on are
            kept in ``batches``. None reads everything there is and keeps none.
        until: stop where more than this many steps are done.

    Raises:
        JournalError: there is no journal, it does not reach back to that step or up to it, or groups to train again
            are missing.
    """
    while True:
        found = segments(folder)
        try:
            return _read(folder, found, resume_from, until)
        except FileNotFoundError:
            if segments(folder) == found:  # none was removed meanwhile
                raise


def _read(folder: Path, found: list[tuple[int, Path]], resume_from: int | None, until: int | None) -> History:
    """What these segments say. Raises FileNotFoundError where one is not there any more."""
    if not found:
        raise JournalError(f"{folder} holds no journal")
    if resume_from is not None:
        if found[0][0] > resume_from:
            raise JournalError(f"{folder} begins after step {found[0][0]}, the checkpoint after step {resume_from}")
        found = [(number, path) for number, path in found if number >= _first_needed(found, resume_from)]
    ledger, batches = Ledger(), dict[int, list[Entry]]()
    history = History(ledger, damage=[], covered=[], batches=batches)
    for record in _records_of(found, history, until):
        if isinstance(record, Trained) and resume_from is not None and record.step >= resume_from:
            batches[record.step] = [ledger.open[number] for number in record.prompt_ids if number in ledger.open]
        ledger.append(record)
        if isinstance(record, Snapshot):
            history.covered.extend(history.damage)
            history.damage.clear()
    if resume_from is not None:
        _check_reaches(folder, history, resume_from)
    return history


def _check_reaches(folder: Path, history: History, step: int) -> None:
    """Raises JournalError where the run cannot go on from the checkpoint of ``step`` with what was read."""
    done = history.ledger.step
    if done < step:
        raise JournalError(f"{folder} ends after step {done}, the checkpoint is of step {step}")
    missing = [number for number in range(step, done) if number not in history.batches]
    if missing:
        raise JournalError(f"{folder} has lost the groups of steps {missing[0] + 1} to {missing[-1] + 1}")


def _records_of(found: list[tuple[int, Path]], history: History, until: int | None) -> Iterator[AnyRecord]:
    """Those of all segments that can be read, in order, up to where more than ``until`` steps are done."""
    for number, path in found:
        segment = Segment(path)
        for record in segment.records():
            if until is not None and _is_beyond(record, until):
                return
            yield record
        if segment.damage is not None:
            history.damage.append(segment.damage)
        if segment.torn is not None and number < found[-1][0]:  # a crash left it when it was the newest
            history.covered.append(segment.torn)


def _is_beyond(record: AnyRecord, until: int) -> bool:
    """Whether more than ``until`` steps are done with this record."""
    match record:
        case Trained(step=step):
            return step >= until
        case Snapshot(step=step):
            return step > until
    return False


def _first_needed(found: list[tuple[int, Path]], step: int) -> int:
    """The newest segment that began no later than the checkpoint of ``step``."""
    return max((number for number, _ in found if number <= step), default=0)
