"""The way of the decode steps alone, against times counted by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from prl.engines.paced_way import Stretch, Way
from prl.errors import EngineError
from prl.simulate.machine import Machine
from tests.virtual import in_virtual_time

GONE = EngineError("gone")


def way_of(max_num_seqs: int = 2) -> Way:
    """A step takes 1 s and 0.5 s more for each sequence."""
    share = Machine(num_accelerators=None, per_engine=1, num_ranks=1)
    return Way(max_num_seqs=max_num_seqs, step_s=lambda count: 1 + 0.5 * count, share=share)


def now() -> float:
    """Virtual seconds."""
    return asyncio.get_running_loop().time()


async def ended(*stretches: Stretch) -> list[float]:
    """When each was over."""
    times = dict.fromkeys(stretches, 0.0)

    def note(stretch: Stretch) -> Callable[[object], None]:
        return lambda _: times.update({stretch: now()})

    for stretch in stretches:
        stretch.over.add_done_callback(note(stretch))
    for stretch in stretches:
        await stretch.over
    await asyncio.sleep(0)  # the callbacks' turn
    return list(times.values())


@in_virtual_time
async def test_streams_share_the_steps_and_queue_for_places() -> None:
    """Two run at 2 s a token, the third waits for the first to end, and the last one alone takes 1.5 s a token."""
    way = way_of()
    assert await ended(*(way.admit(length) for length in (4, 6, 5))) == pytest.approx([8, 12, 16.5])
    way.settle()
    assert (way.sampled, way.num_streams(), way.most_held) == (pytest.approx(15), 0, pytest.approx(8))
    assert way.meter.busy_s() == pytest.approx(16.5)
    assert way.meter.stream_s() == pytest.approx(8 * 3 + 4 * 2 + 4.5)


@in_virtual_time
async def test_a_pause_stops_the_way_and_no_stream_ends_meanwhile() -> None:
    """What comes during a pause begins behind it, and the time of the pause is nobody's work."""
    way = way_of()
    first = way.admit(4)
    await asyncio.sleep(3)
    way.pause()
    second = way.admit(2)
    await asyncio.sleep(100)
    assert (way.position, first.is_over) == (pytest.approx(2), False)
    way.resume()
    assert await ended(first, second) == pytest.approx([107, 107])
    assert way.meter.busy_s() == pytest.approx(7)


@in_virtual_time
async def test_who_is_closed_makes_room() -> None:
    """Whether it ran or waited; another that waits takes its place, and the pace is that of those left."""
    way = way_of(max_num_seqs=1)
    running, waiting, last = (way.admit(length) for length in (50, 50, 2))
    await asyncio.sleep(3)
    way.drop(waiting)
    way.drop(running)
    assert way.num_streams() == 1
    assert await ended(last) == pytest.approx([6])
    way.drop(last)


@in_virtual_time
async def test_stopping_ends_all_with_what_they_have() -> None:
    """Whole tokens of those that run, none of those that wait; a consumer that was cancelled just then harms nobody."""
    way = way_of(max_num_seqs=1)
    running, waiting, given_up = (way.admit(10) for _ in range(3))
    await asyncio.sleep(4)
    given_up.over.cancel()
    way.stop(GONE)
    assert [(each.length, each.is_over) for each in (running, waiting, given_up)] == [(2, True), (0, True), (0, True)]
    assert (await running.over, await waiting.over) == (GONE, GONE)
    assert way.num_streams() == 0
    assert await ended(way.admit(2)) == pytest.approx([7])
