"""The engine of which only the pace is simulated, alone, against times and versions counted by hand."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from prl.engines.base import Decoding
from prl.engines.paced import PacedEngine
from prl.errors import EngineDeadError, EngineError
from prl.failure import together
from prl.simulate.machine import Machine
from prl.simulation import CHECKPOINT, Meeting
from prl.types import TokenChunk, WeightGroup, WeightUpdate
from tests.virtual import in_virtual_time

NOW = asyncio.get_running_loop


def engine_of(lengths: dict[int, int], **options: object) -> PacedEngine:
    """An engine whose step takes 1 s and 0.5 s more for each sequence; ``lengths`` are by prompt."""
    share = Machine(num_accelerators=None, per_engine=1, num_ranks=1)
    arguments: dict[str, object] = {"index": 0, "max_num_seqs": 2, "share": share}
    arguments |= {"step_s": lambda count: 1 + 0.5 * count, "length_of": lambda prompt, _: lengths[prompt]}
    return PacedEngine(**{**arguments, **options})  # type: ignore[arg-type]


async def taken(
    engine: PacedEngine, prompt: int, *, max_tokens: int = 1000, known: int = 0
) -> tuple[float, list[TokenChunk]]:
    """When a stream ended, and its chunks."""
    decoding = Decoding(temperature=1.0, max_tokens=max_tokens, stop_token_ids=[0], seed=prompt, num_known=known)
    async with aclosing(engine.generate([prompt], decoding)) as chunks:
        found = [chunk async for chunk in chunks]
    return NOW().time(), found


async def load(engine: PacedEngine, meeting: Meeting, version: int) -> None:
    """One weight update, which takes no time."""
    update = WeightUpdate(version=version, transport="gloo", manifest=[])
    await engine.pause()
    await together({}, "load", engine=lambda: engine.load(update), sender=lambda: meeting.send(version, CHECKPOINT))
    await engine.resume()


async def joined(engine: PacedEngine) -> Meeting:
    """The sending side of a weight group with this engine."""
    group = WeightGroup(transport="gloo", address="here", port=1, world_size=2, timeout_s=1)
    both = await together({}, "join", engine=lambda: engine.connect(group, 1), sender=lambda: Meeting.join(group, 0))
    meeting: Meeting = both["sender"]
    return meeting


@in_virtual_time
async def test_a_token_has_the_version_that_served_when_it_was_sampled() -> None:
    """Three versions in one stream, to the token; a pause stops its clock and nothing is lost."""
    engine = engine_of({1: 10})
    await engine.open()
    meeting = await joined(engine)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(taken(engine, 1))
        await asyncio.sleep(4.5)
        await load(engine, meeting, 1)
        await engine.pause()
        await asyncio.sleep(100)
        await engine.resume()
        await asyncio.sleep(3)
        await load(engine, meeting, 2)
    at, chunks = task.result()
    assert at == pytest.approx(115)
    assert [(chunk.version, len(chunk.token_ids)) for chunk in chunks] == [(0, 3), (1, 2), (2, 5)]
    assert [chunk.finish for chunk in chunks] == [None, None, "stop"]


@in_virtual_time
async def test_a_death_leaves_the_tokens_with_the_stream() -> None:
    """What was sampled by then is given before the error, and what is left of the length is sampled elsewhere."""
    engine, another = engine_of({1: 10}), engine_of({1: 10})
    await engine.open()
    await another.open()
    asyncio.get_running_loop().call_later(6.1, engine.kill)
    chunks = engine.generate([1], Decoding(temperature=1.0, max_tokens=99, stop_token_ids=[0], seed=1))
    first = await anext(chunks)
    with pytest.raises(EngineDeadError):
        await anext(chunks)
    assert (len(first.token_ids), first.finish) == (4, None)
    _, rest = await taken(another, 1, max_tokens=95, known=4)
    assert sum(len(chunk.token_ids) for chunk in rest) == 6


@in_virtual_time
async def test_a_death_reaches_streams_that_have_no_token_yet() -> None:
    """One that waits for a place hears of it as the one that runs does; one that is closed just then harms nobody."""
    engine = engine_of({1: 10, 2: 10, 3: 10}, max_num_seqs=1)
    await engine.open()
    await load(engine, await joined(engine), 1)
    tasks = [asyncio.ensure_future(taken(engine, prompt)) for prompt in (1, 2, 3)]
    await asyncio.sleep(3)
    tasks[2].cancel()
    engine.kill()
    assert await engine.failed() == "engine-0 died"
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EngineDeadError, EngineDeadError, asyncio.CancelledError]


@in_virtual_time
async def test_a_closed_stream_is_freed_and_a_longer_one_is_cut() -> None:
    """The other one is alone from then on; a stream that wants more than it may have ends with length."""
    engine = engine_of({1: 50, 2: 50})
    await engine.open()
    closed = asyncio.ensure_future(taken(engine, 1))
    task = asyncio.ensure_future(taken(engine, 2, max_tokens=4))
    await asyncio.sleep(4)
    closed.cancel()
    at, chunks = await task
    assert at == pytest.approx(4 + 2 * 1.5)
    assert chunks[-1].finish == "length"
    assert engine.statistics().running == 0


@in_virtual_time
async def test_it_may_be_closed_at_any_time() -> None:
    """Before it was opened, and twice; an open stream fails then."""
    engine = engine_of({1: 10})
    await engine.close()
    await engine.open()
    stream = asyncio.ensure_future(taken(engine, 1))
    await asyncio.sleep(1)
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError, match="was closed"):
        await stream


@in_virtual_time
async def test_a_stream_may_fail_half_way() -> None:
    """Its tokens until there are given, and then the error of an engine that goes on."""
    engine = engine_of({1: 10}, fails=lambda _: True)
    await engine.open()
    with pytest.raises(EngineError):
        await taken(engine, 1)
    assert not engine.statistics().dead
