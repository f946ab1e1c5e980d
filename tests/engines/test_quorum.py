"""Whether enough engines are there: who is missed, for how long, and what is said at the end."""

from __future__ import annotations

import asyncio

import pytest

from prl.config import EngineConfig
from prl.engines.quorum import Quorum
from prl.engines.seat import Place
from prl.engines.seats import Seats
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script
from prl.errors import EngineDeadError
from tests.virtual import in_virtual_time

CONFIG = EngineConfig(min_engines=2, recovery_timeout_s=100)


def _remake(index: int, _: Place) -> SimulatedEngine:
    return SimulatedEngine(index=index, max_num_seqs=1, script=Script(), seed=0)


def serving(count: int, *, mended: bool = True, config: EngineConfig = CONFIG) -> tuple[Seats, Quorum]:
    """So many engines that serve."""
    seats = Seats([_remake(index, index) for index in range(count)], config, _remake if mended else None)
    for seat in seats.all:
        seat.enter("serving")
    return seats, Quorum(seats, config)


def now() -> float:
    """Virtual seconds."""
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_too_few_for_too_long_is_told_with_the_losses() -> None:
    """From the loss that left too few, ``engine.recovery_timeout_s`` long; one that serves again in time ends that."""
    seats, quorum = serving(3)
    loop = asyncio.get_running_loop()
    loop.call_later(10, seats.give_up, seats.all[0], "it was one too many")
    loop.call_later(20, seats.give_up, seats.all[1], "no memory")
    loop.call_later(110, lambda: (seats.all[1].enter("joined"), seats.have_loaded([seats.all[1]], 1)))
    loop.call_later(200, seats.give_up, seats.all[1], "no memory again")
    assert await quorum.too_few() == (
        "fewer than 2 engines (engine.min_engines) served for engine.recovery_timeout_s = 100 s:"
        " engine-0 is dead: it was one too many; engine-1 is dead: no memory again"
    )
    assert now() == 300


@in_virtual_time
async def test_who_was_removed_is_not_missed() -> None:
    """Of two that must serve one left on purpose: the other is enough, for not more must serve than there are."""
    seats, quorum = serving(2)
    seats.remove(seats.all[1], force=True)
    seats.leaves(seats.all[1])
    seats.has_left(seats.all[1])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1000):
            await quorum.too_few()
    seats.give_up(seats.all[0], "gone")
    assert "engine-0 is dead: gone" in await quorum.too_few()


@in_virtual_time
async def test_without_another_in_its_place_the_first_death_is_told_at_once() -> None:
    """A pool that was given its engines cannot mend."""
    seats, quorum = serving(3, mended=False)
    asyncio.get_running_loop().call_later(5, seats.give_up, seats.all[2], "gone")
    assert await quorum.too_few() == "engine-2 is dead: gone"
    assert now() == 5
    for seat in seats.all:
        seats.give_up(seat, "gone too")
    with pytest.raises(EngineDeadError, match="every engine is dead"):
        await quorum.one_serves()


@in_virtual_time
async def test_a_stream_waits_for_an_engine_only_so_long_and_not_while_the_trainer_is_away() -> None:
    """The wait ends with its key and the losses; the seconds of a trainer that is started again are not counted."""
    seats, quorum = serving(1)
    await quorum.one_serves()
    seats.give_up(seats.all[0], "gone")
    asyncio.get_running_loop().call_later(50, quorum.deadlines.hold, "the trainer")
    asyncio.get_running_loop().call_later(1050, quorum.deadlines.go_on, "the trainer")
    with pytest.raises(
        EngineDeadError, match=r"waited engine\.recovery_timeout_s = 100 s for .*engine-0 is dead: gone"
    ):
        await quorum.one_serves()
    assert now() == 1100
