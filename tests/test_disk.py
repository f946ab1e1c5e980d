"""Writing to a disk that is full or read-only."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from prl.disk import Disk, append
from prl.errors import DiskError
from tests.virtual import in_virtual_time


def full(_: object = None, __: object = None) -> int:
    """What a write says when there is no space."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_failed_append_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field notes G, half-written: a disk that fills up in the middle of a line takes none of it."""
    file = tmp_path / "lines"
    append(file, b"one\n")
    calls, write = [], os.write

    def half(descriptor: int, data: memoryview) -> int:
        calls.append(len(data))
        return write(descriptor, data[:2]) if len(calls) == 1 else full()

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space"):
            append(file, b"second\n")
    assert calls == [7, 5]
    assert file.read_bytes() == b"one\n"
    append(file, b"third\n", sync=True)
    assert file.read_bytes() == b"one\nthird\n"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_write_waits_until_the_disk_takes_it(tmp_path: Path, code: int) -> None:
    """While the disk takes nothing, ``ready`` holds up whoever would make more; then the write is done, once."""

    @in_virtual_time
    async def main() -> None:
        disk, tries = Disk(tmp_path, timeout_s=100), list[str | None]()

        def work() -> str:
            tries.append(disk.blocked)
            if len(tries) < 4:
                raise OSError(code, "mend me")
            return "written"

        async def admit() -> float:
            await asyncio.sleep(0.5)
            await disk.ready()
            return asyncio.get_running_loop().time()

        async with asyncio.TaskGroup() as group:
            admitted = group.create_task(admit())
            assert await disk.write("the journal", work) == "written"
        assert admitted.result() >= 3.0
        assert tries[0] is None
        assert tries[1:] == [f"the journal cannot be written to {tmp_path}: mend me"] * 3
        assert disk.blocked is None

    main()


@in_virtual_time
async def test_a_disk_that_stays_full_ends_the_run(tmp_path: Path) -> None:
    """The message says what, where, why, for how long, and what to do."""
    with pytest.raises(DiskError) as raised:
        await Disk(tmp_path, timeout_s=5).write("metrics.jsonl", full)
    for part in ("metrics.jsonl", str(tmp_path), "No space left", "run.disk_timeout_s = 5 s", "--resume"):
        assert part in str(raised.value)


@in_virtual_time
async def test_a_fault_that_waiting_cannot_mend_is_raised(tmp_path: Path) -> None:
    """A folder that is gone is an error at once."""
    with pytest.raises(FileNotFoundError):
        await Disk(tmp_path, timeout_s=5).write("x", lambda: append(tmp_path / "none" / "x", b"1"))


async def test_a_cancelled_write_is_over_when_the_cancellation_is(tmp_path: Path) -> None:
    """A slow disk: whoever cancels knows afterwards that nothing is written behind their back."""
    disk, begun, go_on, done = Disk(tmp_path, timeout_s=5), asyncio.Event(), threading.Event(), list[bool]()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(10)
        done.append(True)

    async with asyncio.TaskGroup() as group:
        write = group.create_task(disk.write("x", work))
        await begun.wait()
        write.cancel()
        loop.call_later(0.05, go_on.set)
        await asyncio.wait([write])
        assert write.cancelled()
    assert done == [True]


@in_virtual_time
async def test_a_cancelled_write_holds_up_nobody(tmp_path: Path) -> None:
    """Who gave a checkpoint up while the disk took none goes on; that the disk did not take it is still known."""
    disk = Disk(tmp_path, timeout_s=60)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.5):
            await disk.write("the checkpoint of step 7", full)
    assert (disk.blocked, disk.refuses) == (None, True)
    async with asyncio.timeout(1):
        await disk.ready()
    await disk.write("the journal", lambda: None)
    assert not disk.refuses


async def test_a_slow_disk_delays_its_writer_only(tmp_path: Path) -> None:
    """A write that takes long is no fault: the event loop goes on, nobody is held up, and the outcome is its own."""
    disk, taken, released = Disk(tmp_path, 600.0), threading.Event(), threading.Event()
    loop, begun = asyncio.get_running_loop(), asyncio.Event()

    def slow() -> str:
        loop.call_soon_threadsafe(begun.set)
        taken.set()
        assert released.wait(30)
        return "written"

    writing = asyncio.ensure_future(disk.write("metrics.jsonl", slow))
    await begun.wait()
    await disk.ready()
    assert (disk.blocked, writing.done()) == (None, False)
    released.set()
    assert await writing == "written"


@in_virtual_time
async def test_one_writer_does_not_speak_for_another(tmp_path: Path) -> None:
    """What takes a small line may not take a large one: generation waits until nobody waits to write."""
    disk, has_room = Disk(tmp_path, 60.0), asyncio.Event()

    def large() -> None:
        if not has_room.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")

    async with asyncio.TaskGroup() as group:
        group.create_task(disk.write("samples.jsonl", large))
        await asyncio.sleep(0.5)
        await disk.write("timeline.jsonl", lambda: None)
        assert disk.blocked == f"samples.jsonl cannot be written to {tmp_path}: No space left on device"
        has_room.set()
    assert disk.blocked is None
