"""The life of each engine in the pool: restarts, with growing pauses, until they are too many."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from prl.config import EngineConfig
from prl.engines.lives import Lives
from prl.engines.quorum import Quorum
from prl.engines.seats import Seats
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script
from tests.virtual import in_virtual_time


async def kept(seats: Seats, lives: Lives, seconds: float) -> str:
    """Keep the engines of ``seats`` for so long, each serving at once when it is ready; why it ended, if it did."""
    why = ""

    async def serve_newcomers() -> None:
        while True:
            await seats.newcomer()
            ready = seats.there()
            seats.have_joined(ready)
            seats.have_loaded(ready, 0)

    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve_newcomers())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                why = await lives.failed()
        serving.cancel()
    return why


async def seats_of(first: Script, others: Script, **config: Any) -> tuple[Seats, Lives, list[float]]:
    """Two seats, the second of which is quiet; when an engine was made for the first."""
    made = list[float]()

    def remake(index: int, _: int) -> SimulatedEngine:
        made.append(asyncio.get_running_loop().time())
        return SimulatedEngine(index=index, max_num_seqs=1, script=others, seed=0)

    engines = [SimulatedEngine(index=i, max_num_seqs=1, script=s, seed=0) for i, s in enumerate((first, Script()))]
    seats = Seats(engines, EngineConfig(**config), remake)
    lives = Lives(seats, Quorum(seats, EngineConfig(**config)), EngineConfig(**config))
    for engine in engines:
        await lives.open(engine)
    return seats, lives, made


@in_virtual_time
async def test_the_pauses_before_restarts_grow_over_short_lives() -> None:
    """Field notes, crash loop: an engine that comes up and dies within seconds is tried less and less often."""
    seats, lives, made = await seats_of(Script(die_at_s=10), Script(die_at_s=10), max_restarts=8)
    assert await kept(seats, lives, 10_000) == ""
    gaps = [later - earlier - 10 for earlier, later in zip([0, *made], made, strict=False)]
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60]
    assert (seats.serving(), seats.num_restarts) == ([1], 8)


@in_virtual_time
async def test_an_engine_that_served_for_long_is_started_again_at_once() -> None:
    """Deaths that are far apart are not added up."""
    seats, lives, made = await seats_of(Script(die_at_s=700), Script(die_at_s=700), max_restarts=1)
    await kept(seats, lives, 3400)
    assert made == [701, 1402, 2103, 2804]


@in_virtual_time
async def test_too_few_that_may_be_started_again_end_the_run_at_once() -> None:
    """Nobody waits for an engine that is not started any more."""
    seats, lives, made = await seats_of(Script(die_at_s=10), Script(die_at_s=10), max_restarts=2, min_engines=2)
    assert await kept(seats, lives, 1000) == (
        "fewer than 2 engines (engine.min_engines) are left after engine.max_restarts = 2: "
        "engine-0 is dead: engine-0 died 10 s after its start, as scripted"
    )
    assert (asyncio.get_running_loop().time(), made) == (33, [11, 23])
