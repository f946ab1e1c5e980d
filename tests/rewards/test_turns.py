"""Whose turn it is among the questions of many groups."""

from __future__ import annotations

import asyncio

import pytest

from prl.chain import quiet_s
from prl.deadlines import awake_timeout
from prl.rewards.turns import Turns
from prl.waits import Waits, waiting
from tests.virtual import in_virtual_time


async def served(turns: Turns, order: list[str], name: str, *, bomb: bool = False, seconds: float = 1.0) -> None:
    """One question of the group that its name begins with; it ends after some time with a worker."""
    async with turns.turn(ord(name[0])) as standing:
        order.append(name)
        await asyncio.sleep(seconds)
        standing.num_exhausted += bomb


@in_virtual_time
async def test_a_group_of_bombs_comes_behind_those_that_exhaust_nothing() -> None:
    """One limit is what it delays the next group by: what it has under way. Its others are judged afterwards."""
    turns, order = Turns(2), list[str]()
    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(served(turns, order, f"a{number}", bomb=True, seconds=6.0))
        await asyncio.sleep(1.0)
        for number in range(4):
            group.create_task(served(turns, order, f"b{number}", seconds=0.01))
    assert order == ["a0", "a1", "b0", "b1", "b2", "b3", "a2", "a3", "a4", "a5"]


@in_virtual_time
async def test_groups_that_exhaust_nothing_are_served_as_they_come() -> None:
    """However long they take."""
    turns, order = Turns(1), list[str]()
    async with asyncio.TaskGroup() as group:
        for name in ("a0", "a1", "b0", "a2", "b1"):
            group.create_task(served(turns, order, name))
    assert order == ["a0", "a1", "b0", "a2", "b1"]


@in_virtual_time
async def test_waiting_for_a_turn_is_no_lateness() -> None:
    """The deadline of a call stands still until its turn has come, and runs then."""
    turns, order = Turns(1), list[str]()

    async def call(name: str, seconds: float) -> None:
        async with awake_timeout(2.0):
            await served(turns, order, name, seconds=seconds)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call(f"a{number}", 1.5)) for number in range(4)]
    assert [task.exception() for task in tasks] == [None] * 4
    with pytest.raises(TimeoutError):
        await call("b", 3.0)


@in_virtual_time
async def test_a_queue_that_moves_is_no_stall() -> None:
    """However long it is: whoever is judged has been so for as long as it has a place, not since it was asked for."""
    waits, turns, loudest = Waits(), Turns(1), 0.0

    async def call() -> None:
        with waiting("reward r", limit_s=10.0):
            await served(turns, [], "a", seconds=6.0)

    with waits.doing("the run"):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call()) for _ in range(50)]
            while not all(task.done() for task in tasks):
                await asyncio.sleep(1.0)
                if not all(task.done() for task in tasks):
                    loudest = max(loudest, quiet_s(waits.run_at(asyncio.get_running_loop().time())))
    assert loudest <= 6.0


@pytest.mark.parametrize("is_early", [True, False])
async def test_who_gives_up_takes_no_place_along(*, is_early: bool) -> None:
    """Neither while it waits nor in the moment in which its turn comes."""
    turns, order, leave = Turns(1), list[str](), asyncio.Event()

    async def holds() -> None:
        async with turns.turn(1):
            await leave.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(holds())
        await asyncio.sleep(0)
        waits = group.create_task(served(turns, order, "a", seconds=0))
        await asyncio.sleep(0)
        if is_early:
            waits.cancel()
        leave.set()
        await asyncio.sleep(0)  # the place is handed over
        waits.cancel()
        await asyncio.wait([waits])
        await served(turns, order, "b", seconds=0)
    assert order == ["b"]
