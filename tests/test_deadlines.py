"""Deadlines that stand still together."""

from __future__ import annotations

import asyncio

import pytest

from prl.deadlines import Deadlines
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
