"""The files of the timeline and the gauges."""

from __future__ import annotations

import asyncio
import errno
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from prl import chronicle
from prl.chronicle import GAUGES, TIMELINE, Chronicle, cut_torn_line, thin
from prl.disk import Disk
from prl.errors import DiskError
from prl.failure import FirstFailure, running
from prl.timeline import Timeline
from tests.virtual import in_virtual_time


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def write_spans(path: Path, count: int, *, lanes: int = 1) -> None:
    """So many seconds of a lane, each of another step."""
    spans = [
        {"lane": f"engine-{lane}", "state": "training", "start": at, "end": at + 1, "step": at}
        for at in range(count)
        for lane in range(lanes)
    ]
    path.write_text("".join(json.dumps(span) + "\n" for span in spans))


@in_virtual_time
async def test_a_run_is_written_each_second(tmp_path: Path) -> None:
    """Spans as they end, a line of gauges a second, and the rest when it ends; nothing before there are numbers."""
    timeline, failure, numbers = Timeline(is_kept=True), FirstFailure(), list[dict[str, Any]]()
    gauges = iter([None, {"streams": 1}, {"streams": 2}, {"streams": 3}])
    made = Chronicle(tmp_path, Disk(tmp_path, 60), timeline, lambda: next(gauges))
    async with running(made.run(failure)):
        timeline.enter("engine-0", "starts")
        await asyncio.sleep(1.5)
        timeline.enter("engine-0", "generating")
        await asyncio.sleep(1)
        numbers = lines(tmp_path / TIMELINE)
        await asyncio.sleep(1)
    assert [line["state"] for line in numbers] == ["starts"]
    assert [line["state"] for line in lines(tmp_path / TIMELINE)] == ["starts", "generating"]
    assert [line["streams"] for line in lines(tmp_path / GAUGES)] == [1, 2, 3]
    assert lines(tmp_path / GAUGES)[0]["at"] == pytest.approx(2.0, abs=0.1)


@in_virtual_time
async def test_a_disk_that_takes_nothing_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of every other file; what was to be written is named."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(chronicle, "append", full)
    failure = FirstFailure()
    made = Chronicle(tmp_path, Disk(tmp_path, 3), Timeline(), lambda: {"streams": 1})

    async def run() -> None:
        async with running(made.run(failure)):
            with failure.interrupts():
                await asyncio.sleep(60)

    with pytest.raises(DiskError, match=r"gauges.jsonl cannot be written .* run.disk_timeout_s = 3 s"):
        await run()
    assert asyncio.get_running_loop().time() < 6


@in_virtual_time
async def test_a_resumed_run_goes_on_in_the_same_files(tmp_path: Path) -> None:
    """Behind what is whole: half a line, which a crash leaves, is cut off."""
    write_spans(tmp_path / TIMELINE, 2)
    with (tmp_path / TIMELINE).open("a") as file:
        file.write('{"lane":"engine-0","sta')
    timeline = Timeline(is_kept=True)
    async with running(Chronicle(tmp_path, Disk(tmp_path, 60), timeline, lambda: None).run(FirstFailure())):
        timeline.enter("controller", "waiting")
        await asyncio.sleep(0.5)
    assert [line["lane"] for line in lines(tmp_path / TIMELINE)] == ["engine-0", "engine-0", "controller"]


@pytest.mark.parametrize(("text", "kept"), [("", ""), ("a\n", "a\n"), ("a\nb", "a\n"), ("b", ""), ("a\n\n", "a\n\n")])
def test_only_a_torn_line_is_cut(tmp_path: Path, text: str, kept: str) -> None:
    """Whole lines stay as they are."""
    (tmp_path / "x").write_text(text)
    cut_torn_line(tmp_path / "x")
    assert (tmp_path / "x").read_text() == kept


def test_a_timeline_is_thinned_in_its_older_half(tmp_path: Path) -> None:
    """Pairs become one that covers both; the newer half stays line by line, and all of the time stays covered."""
    path = tmp_path / TIMELINE
    write_spans(path, 400, lanes=2)
    before = path.stat().st_size
    thin(path)
    found = [line for line in lines(path) if line["lane"] == "engine-1"]
    assert path.stat().st_size < 0.8 * before
    assert [found[0][key] for key in ("start", "end", "n")] == [0, 2, 2]
    assert all("n" not in line for line in found[-150:])
    assert sum(line["end"] - line["start"] for line in found) == 400
    assert all(first["end"] == second["start"] for first, second in pairwise(found))
    thin(path)
    assert [lines(path)[0][key] for key in ("start", "end", "n")] == [0, 4, 4]


def test_a_merged_span_is_what_it_was_mostly(tmp_path: Path) -> None:
    """And over a gap, in which nobody watched, nothing is merged."""
    spans = [("waiting", 0, 1), ("training", 1, 4), ("waiting", 100, 101), ("training", 101, 104)] * 8
    for number, (state, start, end) in enumerate(spans):
        offset = 1000 * (number // 4)
        line = {"lane": "a", "state": state, "start": offset + start, "end": offset + end}
        with (tmp_path / TIMELINE).open("a") as file:
            file.write(json.dumps(line) + "\n")
    thin(tmp_path / TIMELINE)
    first, second, *_ = lines(tmp_path / TIMELINE)
    assert first == {"lane": "a", "state": "training", "start": 0, "end": 4, "n": 2}
    assert (second["start"], second["end"]) == (100, 104)


def test_of_gauges_every_other_line_goes(tmp_path: Path) -> None:
    """In the older half."""
    path = tmp_path / GAUGES
    path.write_text("".join(f'{{"at":{at}}}\n' for at in range(1000, 1200)))
    thin(path)
    found = [line["at"] for line in lines(path)]
    assert (found[:3], found[-3:], len(found)) == ([1000, 1002, 1004], [1197, 1198, 1199], 150)


@in_virtual_time
async def test_no_file_grows_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is thinned when it is too large, as often as it takes."""
    monkeypatch.setattr(chronicle, "MAX_BYTES", {TIMELINE: 20_000, GAUGES: 20_000})
    timeline = Timeline(is_kept=True)
    async with running(Chronicle(tmp_path, Disk(tmp_path, 60), timeline, lambda: {"x": 1}).run(FirstFailure())):
        for step in range(600):
            timeline.enter("trainer rank 0", "training", step=step)
            timeline.enter("engine-0", "paused", version=step)
            await asyncio.sleep(1)
    assert (tmp_path / TIMELINE).stat().st_size <= 20_000
    found = [line for line in lines(tmp_path / TIMELINE) if line["lane"] == "engine-0"]
    assert (found[0]["start"], found[-1]["end"]) == (0, pytest.approx(600, abs=1))
