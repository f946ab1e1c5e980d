"""The journal on a real disk: damaged, given up, full, cancelled."""

from __future__ import annotations

import asyncio
import errno
from datetime import date
from pathlib import Path

import msgspec
import pytest

from prl import disk as disk_module
from prl import journal_segment, virtual_time
from prl.disk import Disk
from prl.errors import DataError, DiskError, JournalError
from prl.failure import FirstFailure, running
from prl.journal import Journal, read, segment_file, segments
from prl.ledger import Ledger
from prl.records import Admitted, Left, Sampled, Trained
from prl.types import TokenChunk
from tests.factories import make_prompt
from tests.virtual import in_virtual_time

CHUNK = TokenChunk(token_ids=[7, 8], logprobs=[-0.25, -1e-7], version=0)


def write_two_segments(folder: Path) -> list[bytes]:
    """Prompts 0 to 7, a step on two of them in each of two segments; the accounts after each record."""

    async def main() -> list[bytes]:
        ledger = Ledger()
        made = Journal(folder, Disk(folder, 5), ledger)
        states = []
        await made.begin_segment()
        for step in (0, 1):
            for number in range(4 * step, 4 * step + 4):
                made.append(Admitted(prompt=make_prompt(number, answer="x" * 20)))
                made.append(Sampled(prompt_id=number, member=0, chunk=CHUNK))
                states.append(state_of(ledger))
            made.append(Left(prompt_id=4 * step, reason="timeout"))
            made.append(Trained(step=step, prompt_ids=[4 * step + 1, 4 * step + 2]))
            states.append(state_of(ledger))
            if step == 0:
                await made.begin_segment()
        await made.flush()
        return states

    return virtual_time.run(main())


def state_of(ledger: Ledger) -> bytes:
    """All of a ledger."""
    return msgspec.msgpack.encode(ledger.snapshot())


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    """The ledger read back is the ledger that was written, to the last bit of each log-probability."""
    states = write_two_segments(tmp_path)
    ledger, damage, *_ = read(tmp_path)
    assert (state_of(ledger), damage) == (states[-1], [])
    assert ledger.open[7].members[0].logprobs == [-0.25, -1e-7]
    assert [step for step, _ in segments(tmp_path)] == [0, 1]


def test_a_torn_tail_is_what_a_crash_leaves(tmp_path: Path) -> None:
    """The newest segment may end anywhere: nothing is said. Of an older one it is, and what follows it is whole."""
    write_two_segments(tmp_path)
    for number, expected in ((1, (1, [], 0)), (0, (2, [], 1))):
        path = segment_file(tmp_path, number)
        whole = path.read_bytes()
        path.write_bytes(whole[:-5])
        ledger, damage, covered, _ = read(tmp_path)
        assert (ledger.step, damage, len(covered)) == expected
        assert (ledger.accounts().admitted, ledger.accounts().lost) == (8, [])
        path.write_bytes(whole)


def test_a_segment_that_a_run_under_way_removes_meanwhile_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader begins anew with those that are there; one that is listed and cannot be read is an error."""
    states = write_two_segments(tmp_path)
    old, whole = segment_file(tmp_path, 0), Path.read_bytes
    others = old.read_bytes()

    def removed_first(path: Path) -> bytes:
        old.unlink(missing_ok=True)
        return whole(path)

    with monkeypatch.context() as racing:
        racing.setattr(Path, "read_bytes", removed_first)
        assert state_of(read(tmp_path).ledger) == states[-1]
    old.write_bytes(others)
    segment_file(tmp_path, 1).unlink()
    segment_file(tmp_path, 1).symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        read(tmp_path)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_damage_is_said_and_what_follows_is_not_trusted(tmp_path: Path, share: float) -> None:
    """A flipped bit ends the reading of its segment, with its name; the next one's snapshot is whole."""
    write_two_segments(tmp_path)
    for number, trained in ((0, 4), (1, 2)):
        path = segment_file(tmp_path, number)
        whole = path.read_bytes()
        broken = bytearray(whole)
        broken[int(len(whole) * share)] ^= 1
        path.write_bytes(bytes(broken))
        ledger, damage, covered, _ = read(tmp_path)
        assert (len(damage), len(covered)) == ((0, 1) if number == 0 else (1, 0)), "a whole snapshot follows the first"
        assert str(path) in [*damage, *covered][0]
        assert ledger.accounts().lost == []
        assert ledger.accounts().trained == trained
        path.write_bytes(whole)


def test_a_prompt_that_would_not_come_back_is_refused(tmp_path: Path) -> None:
    """A field that msgpack changes is an error with prompt id and field when it comes, not a change at the resume."""
    made = Journal(tmp_path, Disk(tmp_path, 5), Ledger())
    prompt = make_prompt(3)
    with pytest.raises(DataError, match=r"prompt 3: the field 'when' is a date; a resumed run could not restore it"):
        made.append(Admitted(prompt=msgspec.structs.replace(prompt, fields={"answer": "4", "when": date(2026, 1, 1)})))
    assert (made.ledger.cursor, made.ledger.open) == (0, {})
    made.append(Admitted(prompt=prompt))
    assert made.ledger.cursor == 4


def test_steps_that_cannot_be_done_again_are_named(tmp_path: Path) -> None:
    """Where the groups of a step are lost, a resume from before it is refused; reading up to it works."""
    write_two_segments(tmp_path)
    path = segment_file(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(JournalError, match="lost the groups of steps 1 to 1"):
        read(tmp_path, resume_from=0)
    assert read(tmp_path, resume_from=0, until=0).ledger.accounts().trained == 0
    assert list(read(tmp_path, resume_from=1).batches) == [1]


def test_groups_are_kept_for_the_steps_that_are_done_again(tmp_path: Path) -> None:
    """From the checkpoint's step on a step's groups are there in its order; before it, and without one, none are."""
    write_two_segments(tmp_path)
    for step, expected in ((0, {0: [1, 2], 1: [5, 6]}), (1, {1: [5, 6]}), (2, {}), (None, {})):
        batches = read(tmp_path, resume_from=step).batches
        assert {done: [entry.prompt.id for entry in entries] for done, entries in batches.items()} == expected
        assert all(entry.members[0].token_ids == CHUNK.token_ids for entries in batches.values() for entry in entries)


def test_a_checkpoint_older_than_the_journal_is_refused(tmp_path: Path) -> None:
    """A journal that begins later than the checkpoint cannot say what lies between."""
    write_two_segments(tmp_path)
    segment_file(tmp_path, 0).unlink()
    with pytest.raises(JournalError, match="begins after step 1, the checkpoint after step 0"):
        read(tmp_path, resume_from=0)
    with pytest.raises(JournalError, match="holds no journal"):
        read(tmp_path / "none")


def test_segments_of_a_history_that_was_given_up_are_put_aside(tmp_path: Path) -> None:
    """A run that goes on at step 0 leaves nothing of the later steps of the life before."""
    write_two_segments(tmp_path)

    async def main() -> None:
        ledger = read(tmp_path, resume_from=0, until=0).ledger
        await Journal(tmp_path, Disk(tmp_path, 5), ledger).begin_segment()

    virtual_time.run(main())
    assert [step for step, _ in segments(tmp_path)] == [0]
    assert (tmp_path / "step-000001.abandoned").exists()
    accounts = read(tmp_path).ledger.accounts()
    assert (accounts.admitted, accounts.trained, accounts.lost) == (4, 0, [])


def test_no_segment_goes_that_a_checkpoint_needs(tmp_path: Path) -> None:
    """What is kept reaches back to the given step, whether a segment began there or before."""
    write_two_segments(tmp_path)
    for step, left in ((0, [0, 1]), (1, [1]), (5, [1])):
        virtual_time.run(Journal(tmp_path, Disk(tmp_path, 5), Ledger()).forget_before(step))
        assert [number for number, _ in segments(tmp_path)] == left


@in_virtual_time
async def test_a_full_disk_loses_and_repeats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disk full: records wait, in order, and are written once there is room; ``ready`` waits meanwhile."""
    failures, append = [0], disk_module.append

    def sometimes_full(path: Path, data: bytes, *, sync: bool = False) -> None:
        failures[0] += 1
        if 2 <= failures[0] <= 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(path, data, sync=sync)

    monkeypatch.setattr(journal_segment, "append", sometimes_full)
    made, failure = Journal(tmp_path, Disk(tmp_path, 60), Ledger()), FirstFailure()
    await made.begin_segment()
    async with running(made.run(failure)):
        for number in range(20):
            made.append(Admitted(prompt=make_prompt(number)))
            await asyncio.sleep(0.2)
            await made.ready()
    assert failure.error is None
    assert failures[0] > 4
    assert state_of(read(tmp_path).ledger) == state_of(made.ledger)


@in_virtual_time
async def test_a_disk_that_stays_full_is_the_runs_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop that writes ends the run with the disk's error, in time."""
    made, failure = Journal(tmp_path, Disk(tmp_path, 5), Ledger()), FirstFailure()
    await made.begin_segment()

    def full(path: Path, data: bytes, *, sync: bool = False) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal_segment, "append", full)

    async def wait_for_failure() -> None:
        async with asyncio.timeout(20):
            with failure.interrupts():
                await asyncio.Event().wait()

    async with running(made.run(failure)):
        made.append(Admitted(prompt=make_prompt(0)))
        with pytest.raises(DiskError, match=r"run.disk_timeout_s = 5 s"):
            await wait_for_failure()


async def test_a_cancelled_flush_writes_nothing_twice(tmp_path: Path) -> None:
    """Cancelled at any moment of a write, the records are on the disk once after the last flush."""
    made = Journal(tmp_path, Disk(tmp_path, 5), Ledger())
    await made.begin_segment()
    for number in range(60):
        made.append(Admitted(prompt=make_prompt(number)))
        async with asyncio.TaskGroup() as group:
            flush = group.create_task(made.flush())
            for _ in range(number % 7):
                await asyncio.sleep(0.0002)
            flush.cancel()
    await made.flush()
    assert state_of(read(tmp_path).ledger) == state_of(made.ledger)
