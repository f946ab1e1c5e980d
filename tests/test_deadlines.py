"""Deadlines that stand still together."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from prl.deadlines import Deadlines, awake_timeout
from prl.engines.guarded_stream import TokenDeadlines, Wait
from tests.virtual import in_virtual_time


async def waits(deadlines: Deadlines, limit_s: float) -> float:
    """Wait for ever under a deadline; how long that was."""
    clock = asyncio.get_running_loop().time
    began = clock()
    with pytest.raises(TimeoutError):
        async with deadlines.timeout(limit_s):
            await asyncio.get_running_loop().create_future()
    return clock() - began


@in_virtual_time
async def test_a_hold_is_not_counted() -> None:
    """A wait from before the hold has the rest of its time after it, one that began within it has all of it."""
    deadlines = Deadlines()
    async with asyncio.TaskGroup() as group:
        before = group.create_task(waits(deadlines, 5.0))
        await asyncio.sleep(2.0)
        deadlines.hold("one")
        deadlines.hold("another")
        deadlines.go_on("another")
        deadlines.go_on("nobody")
        await asyncio.sleep(50.0)
        within = group.create_task(waits(deadlines, 5.0))
        await asyncio.sleep(50.0)
        deadlines.go_on("one")
        after = group.create_task(waits(deadlines, 5.0))
    assert [before.result(), within.result(), after.result()] == [105.0, 55.0, 5.0]
    assert await waits(deadlines, 1.0) == 1.0


def test_a_wait_may_begin_while_another_is_due_at_once() -> None:
    """On uvloop, as in a run: what is due within half a millisecond has a handle that does not say when."""

    async def main() -> None:
        deadlines = Deadlines()
        async with deadlines.timeout(1e-5), deadlines.timeout(60.0):
            pass
        assert await waits(deadlines, 0.001) > 0

    uvloop.run(main())


@in_virtual_time
async def test_one_timer_serves_limits_of_any_length_in_any_order() -> None:
    """Each passes at its own time, whichever began first or ended early; when none is left, neither is the timer."""
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        long = group.create_task(waits(deadlines, 100.0))
        short = group.create_task(waits(deadlines, 3.0))
        middle = group.create_task(waits(deadlines, 7.0))
        await asyncio.sleep(1.0)
        async with deadlines.timeout(0.5):
            shortest = await waits(deadlines, 0.25)
        late = group.create_task(waits(deadlines, 5.0))
    assert [task.result() for task in (long, short, middle, late)] == [100.0, 3.0, 7.0, 5.0]
    assert (shortest, loop.time()) == (0.25, 100.0)
    async with deadlines.timeout(1e9):
        pass
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await loop.create_future()
    assert [timer for timer in loop._scheduled if not timer.cancelled()] == []  # type: ignore[attr-defined]


@in_virtual_time
async def test_deadlines_that_were_slept_over_begin_anew() -> None:
    """Those that can be held, too: a controller that was stopped drops no rollout for it, unless it hangs on."""
    deadlines = Deadlines()
    asyncio.get_running_loop().call_later(2.0, sleep_over, 30.0)
    assert await waits(deadlines, 5.0) == pytest.approx(37.0)
    asyncio.get_running_loop().call_later(2.0, sleep_over, 2.0)
    assert await waits(deadlines, 5.0) == pytest.approx(5.0)


def sleep_over(seconds: float) -> None:
    """What the clock shows after this process was stopped for so long."""
    asyncio.get_running_loop()._clock.now += seconds  # type: ignore[attr-defined]


@in_virtual_time
async def test_a_limit_that_was_slept_over_begins_anew() -> None:
    """A process that was stopped when its deadline passed has not looked yet; one that ran all the time is late."""
    clock = asyncio.get_running_loop().time
    for slept_s, expected in ((0.0, 5.0), (4.0, 5.0), (30.0, 37.0)):
        began = clock()
        asyncio.get_running_loop().call_later(2.0, sleep_over, slept_s)
        with pytest.raises(TimeoutError):
            async with awake_timeout(5.0):
                await asyncio.get_running_loop().create_future()
        assert clock() - began == pytest.approx(max(expected, 2.0 + slept_s))


@in_virtual_time
async def test_what_came_while_this_process_slept_is_taken() -> None:
    """The body ends with what is there when the process runs again, and no timer is left."""
    there = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(2.0, sleep_over, 30.0)
    asyncio.get_running_loop().call_later(3.0, there.set_result, "it")
    async with awake_timeout(5.0) as wait:
        assert await there == "it"
    assert not wait.expired()


@in_virtual_time
async def test_a_token_that_came_while_this_process_slept_is_in_time() -> None:
    """Streams have their whole limit again when this process runs again; then they are late."""
    deadlines, clock = TokenDeadlines(5.0), asyncio.get_running_loop().time
    deadlines.start()
    wait, began = Wait("engine-0"), clock()
    deadlines.begin(wait)
    asyncio.get_running_loop().call_later(2.0, sleep_over, 30.0)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.get_running_loop().create_future()
    assert deadlines.end(wait, moved=False)
    assert clock() - began == pytest.approx(37.0)
