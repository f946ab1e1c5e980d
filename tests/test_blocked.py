"""A blocked event loop is named by the function that blocks it: real loops, real threads, real time."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

import prl
from prl.blocked import FILE, Blocked, LoopMonitor, frozen_heap, place_of
from prl.config import EvalConfig, RewardConfig
from prl.errors import StallError
from tests.test_pipeline import simulated

BEAT_S = 0.1
Loops = [asyncio.new_event_loop, uvloop.new_event_loop]


def sluggish(seconds: float) -> None:
    """Block, deep in a call."""
    time.sleep(seconds)


@prl.reward("test-blocks")
async def blocks(completion: prl.Completion, prompt: prl.Prompt) -> float:
    """Is a coroutine, and sleeps in C once."""
    if prompt.id == 1:
        sluggish(0.5)
    return float(len(completion.token_ids))


def on(
    loop: Callable[[], asyncio.AbstractEventLoop], main: Callable[..., Coroutine[Any, Any, None]], *given: Any
) -> None:
    """Run ``main`` on such a loop, which other tests never see: a runner would leave them without one."""
    own = loop()
    try:
        own.run_until_complete(main(*given))
    finally:
        own.close()


def monitor_in(folder: Path, **changes: Any) -> LoopMonitor:
    """A monitor that never interrupts."""
    return LoopMonitor(BEAT_S, folder, **{"stall_s": 1000.0, "on_stall": lambda *_: None} | changes)


async def beat(monitor: LoopMonitor) -> str | None:
    """One heartbeat."""
    await asyncio.sleep(BEAT_S)
    return monitor.beat()


@pytest.mark.parametrize("loop", Loops)
def test_a_blocking_call_is_named(loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path) -> None:
    """Field notes A, blocking code in the event loop: the function, its file and its line, not ``time.sleep``'s."""

    async def main() -> None:
        with monitor_in(tmp_path) as monitor:
            assert await beat(monitor) is None
            asyncio.get_running_loop().call_soon(sluggish, 0.5)
            named = await beat(monitor)
        assert named is not None
        assert named.startswith(f"sluggish ({__file__}:")

    on(loop, main)


@pytest.mark.parametrize("loop", Loops)
def test_an_idle_loop_names_nobody(loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path) -> None:
    """A heartbeat that is late without anything of ours running is nobody's fault: the loop only waits."""

    async def main() -> None:
        with monitor_in(tmp_path) as monitor:
            await asyncio.sleep(5 * BEAT_S)  # no beat for as long
            assert monitor.beat() is None

    on(loop, main)


def test_who_called_a_library_is_named_too() -> None:
    """Code of an installed package that blocks is named with the code that called it."""
    package = compile("def slow(look):\n    return look()\n", sysconfig.get_path("purelib") + "/package.py", "exec")
    names: dict[str, Any] = {}
    exec(package, names)

    def look() -> str | None:
        frames, frame = [], sys._getframe(1)
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back  # type: ignore[assignment]
        return place_of(frames)

    named = names["slow"](look)
    assert named.startswith(f"slow ({sysconfig.get_path('purelib')}/package.py:2), called by test_who_called_a_library")
    assert named.partition(", called by ")[2].partition(" ")[2].startswith(f"({__file__}:")


def test_while_it_is_blocked_a_file_says_in_what(tmp_path: Path) -> None:
    """The loop answers nobody then: the run folder says who blocks it and since when, and no longer when it goes on."""
    seen: list[Blocked] = []

    def look() -> None:
        while not seen:
            if (tmp_path / FILE).exists():
                seen.append(msgspec.json.decode((tmp_path / FILE).read_bytes(), type=Blocked))
            time.sleep(0.02)

    async def main() -> None:
        with monitor_in(tmp_path) as monitor:
            reader = threading.Thread(target=look)
            reader.start()
            await beat(monitor)
            sluggish(2.0)
            await beat(monitor)
            await asyncio.sleep(3 * BEAT_S)
            assert not (tmp_path / FILE).exists()
            reader.join()

    asyncio.run(main())
    assert seen[0].pid == os.getpid()
    assert seen[0].where.startswith("sluggish (")
    assert 1 <= seen[0].seconds <= 2


def test_what_blocks_for_too_long_is_interrupted(tmp_path: Path) -> None:
    """A call that sleeps in C for an hour ends with StallError soon after the limit, and the loop goes on."""
    told: list[str] = []

    def stalled(where: str, _: float) -> StallError:
        told.append(where)
        return StallError("blocked")

    async def main() -> None:
        with monitor_in(tmp_path, stall_s=1.2, on_stall=stalled) as monitor:
            await beat(monitor)
            began = time.monotonic()
            with pytest.raises(StallError, match="blocked"):
                sluggish(3600)
            assert time.monotonic() - began < 5
            await beat(monitor)

    asyncio.run(main())
    assert [where.partition(" ")[0] for where in told] == ["sluggish"]


def test_a_reward_that_blocks_the_loop_is_named_in_the_events(tmp_path: Path) -> None:
    """A run warns of the reward by function and line, and the metrics have the delay."""
    config = simulated(rewards=[RewardConfig(name="test-blocks")], eval=EvalConfig(num_samples=0))

    async def main() -> None:
        async with prl.Pipeline(config, run_dir=tmp_path / "run") as pipeline:
            await pipeline.step()
            await pipeline.step()

    asyncio.run(main())
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_bytes().splitlines()]
    warned = [event for event in events if event.get("where", "").startswith(f"sluggish ({__file__}:")]
    assert {event["level"] for event in warned} == {"warning"}
    assert max(event["seconds"] for event in warned) >= 0.3
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()]
    assert max(line["loop_lag_ms"] for line in metrics) >= 300


def test_a_process_that_was_stopped_has_not_been_blocked(tmp_path: Path) -> None:
    """After SIGSTOP and SIGCONT the monitor blames nobody and interrupts nothing."""
    program = f"""
import asyncio, os, signal, subprocess, sys
from pathlib import Path
from prl.blocked import LoopMonitor
def verdict(where, seconds):
    print("interrupted", where)
async def main():
    with LoopMonitor(0.1, Path({str(tmp_path)!r}), stall_s=0.5, on_stall=verdict) as monitor:
        await asyncio.sleep(0.1)
        monitor.beat()
        subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {{os.getpid()}}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        await asyncio.sleep(0.1)
        print("beat", monitor.beat())
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "beat None\n"


@pytest.mark.parametrize("is_frozen", [False, True])
def test_what_start_up_made_is_left_out_of_collections(is_frozen: bool) -> None:
    """The collector does not look at it while a run goes on, and does afterwards, unless others have frozen it."""
    gc.unfreeze()
    made = [object()]
    if is_frozen:
        gc.freeze()
    before = gc.get_freeze_count()
    with frozen_heap():
        made_later = [made]
        assert any(each is made_later for each in gc.get_objects())
        assert not any(each is made for each in gc.get_objects())
    assert gc.get_freeze_count() == before
    gc.freeze()
