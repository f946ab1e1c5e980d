"""Trackers in processes of their own, beside a run: none holds it up, however it behaves."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import psutil

import prl
from prl.config import EvalConfig, RunConfig, SamplingConfig
from prl.config_trackers import TrackerConfig
from prl.log import configure
from prl.trackers.feed import Feed
from tests.trackers.fakes import notes
from tests.trackers.recorded import add_steps, begin, config_with, end

FAKES = "tests.trackers.fakes"
END_S = 60.0
"""Longer than any process here takes to start."""


class Clock:
    """Seconds since 1970, and those that were added."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time: at least the real one, which the state files have."""
        return time.monotonic() + self.now


def children() -> set[psutil.Process]:
    """Every process below this one: those of other tests' libraries among them, such as a resource tracker."""
    return set(psutil.Process().children(recursive=True))


def events(folder: Path) -> list[dict[str, Any]]:
    """What was logged."""
    return [json.loads(line) for line in (folder / "events.jsonl").read_bytes().splitlines()]


async def test_a_run_that_is_resumed_goes_on_with_its_curves(tmp_path: Path) -> None:
    """A whole run in two parts, with one tracker that works and one that always fails, which costs a warning."""
    good, bad, before = tmp_path / "good", tmp_path / "bad", children()
    config = config_with(
        TrackerConfig(name=f"{FAKES}:Notebook", options={"path": str(good)}, close_timeout_s=END_S),
        TrackerConfig(name=f"{FAKES}:Notebook", options={"path": str(bad), "num_failures": 99}, close_timeout_s=END_S),
        run=RunConfig(num_steps=2),
        sampling=SamplingConfig(max_tokens=4),
        eval=EvalConfig(num_samples=2),
    )
    for resume in (False, True):
        async with prl.Pipeline(config, run_dir=tmp_path / "run", resume=resume) as pipeline:
            await pipeline.step()
    assert pipeline.summary is not None
    assert pipeline.summary.status == "done"
    found = [entry[:2] if entry[0] == "log" else entry for entry in notes(good)]
    second = found.index(["finish", "stopped"]) + 1
    assert found[0] == ["open", "", 0, -1]
    assert sorted(found[1 : second - 1]) == [["log", 0], ["log", 1]]  # an evaluation, and a step
    assert found[second:] == [["open", "notebook-1", 1, 1], ["log", 2], ["log", 2], ["finish", "done"]]
    assert notes(bad)[0] == ["open", "", 0, -1]
    assert {kind for kind, *_ in notes(bad)} == {"open"}
    assert children() - before == set()


async def test_a_tracker_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    """Said once; at the end of the run the wait for it is bounded, and what it lacks is said."""
    pipe, before = tmp_path / "called", children()
    os.mkfifo(pipe)
    hanging = TrackerConfig(name=f"{FAKES}:Hanging", options={"path": str(pipe)}, timeout_s=END_S, close_timeout_s=0.05)
    folder, clock = tmp_path / "run", Clock()
    config = config_with(hanging)
    begin(folder, config)
    with configure(folder):
        feed = Feed(config, folder, clock=clock)
        await feed.open(0)
        (fed,) = feed._fed
        for _ in range(2):
            async with asyncio.timeout(END_S):
                assert await asyncio.to_thread(pipe.read_text) == '["open", ""]\n'
            await fed.look()
            child = fed._child
            assert child is not None
            assert child.returncode is None
            clock.now += END_S + 1
            await fed.look()
            assert child.returncode is not None
            clock.now += 10.0  # the second pause
            await fed.look()
        add_steps(folder, [1, 2, 3])
        end(folder)
        await feed.close(3)
    assert children() - before == set()
    warnings = [event for event in events(folder) if event["level"] == "warning"]
    assert [warning["event"] for warning in warnings] == [
        "a tracker takes nothing now; the run goes on, and tries again",
        "a tracker lacks points; all are in metrics.jsonl",
    ]
    assert warnings[0]["why"] == "open took longer than timeout_s = 60 s"
    assert (warnings[1]["steps_not_sent"], warnings[1]["points_refused"]) == (3, 0)


def test_without_trackers_there_is_nothing(tmp_path: Path) -> None:
    """No process, no folder, and no wait."""

    async def whole_run() -> None:
        feed = Feed(config_with(), tmp_path)
        await feed.open(0)
        await feed.watch()
        await feed.close(3)

    asyncio.run(whole_run())
    assert list(tmp_path.iterdir()) == []
