"""The simulated engine: its time, its determinism, and its switchboard. For the protocol see ``test_contract.py``."""

from __future__ import annotations

import asyncio
import math
import statistics
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from prl import virtual_time
from prl.engines.base import Decoding
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script, StreamFault
from prl.errors import EngineDeadError, EngineError
from prl.simulation import CHECKPOINT, MANIFEST, CallFault, Meeting
from prl.types import TokenChunk, WeightGroup, WeightUpdate
from tests.virtual import in_virtual_time

PROMPT = [1, 2, 3]
STOPS = [9, 11]
GROUP = WeightGroup(transport="simulated", address="engine", port=1, world_size=2, timeout_s=10)
UPDATE = WeightUpdate(version=1, transport="simulated", manifest=MANIFEST)


def decoding(**fields: Any) -> Decoding:
    """A decoding with defaults."""
    return Decoding(**{"temperature": 1.0, "max_tokens": 50, "stop_token_ids": []} | fields)


async def engine_of(script: Script | None = None, *, max_num_seqs: int = 4, index: int = 0) -> SimulatedEngine:
    """An open engine."""
    engine = SimulatedEngine(index=index, max_num_seqs=max_num_seqs, script=script or Script(), seed=3)
    await engine.open()
    return engine


async def sample(engine: SimulatedEngine, how: Decoding, prompt: list[int] | None = None) -> list[TokenChunk]:
    """One stream to its end."""
    async with aclosing(engine.generate(prompt or PROMPT, how)) as chunks:
        return [chunk async for chunk in chunks]


def tokens(chunks: list[TokenChunk]) -> list[int]:
    """All its tokens."""
    return [token for chunk in chunks for token in chunk.token_ids]


async def side_by_side(engine: SimulatedEngine, *decodings: Decoding) -> list[list[TokenChunk]]:
    """Several streams at once."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(sample(engine, how)) for how in decodings]
    return [task.result() for task in tasks]


def now() -> float:
    """Virtual seconds."""
    return asyncio.get_running_loop().time()


# ---- time ------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_step_takes_a_base_and_a_share_per_stream() -> None:
    """Steps last ``base_s + per_seq_s * running``; a stream that comes during a step runs from the next one on."""
    engine = await engine_of(Script(base_s=1.0, per_seq_s=0.25))
    await side_by_side(engine, *[decoding(max_tokens=10)] * 4)
    assert now() == 1.25 + 9 * 2.0 + 1.75
    assert engine.statistics().busy_s == now()
    assert engine.statistics().tokens_generated == 40


@in_virtual_time
async def test_streams_beyond_max_num_seqs_queue_in_order() -> None:
    """With room for one, the streams end one after the other in the order of their requests."""
    engine = await engine_of(Script(base_s=1.0, per_seq_s=0.0), max_num_seqs=1)
    ends: list[tuple[int, float]] = []

    async def one(number: int) -> None:
        await sample(engine, decoding(max_tokens=5))
        ends.append((number, now()))

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(one(number))
        await asyncio.sleep(0.5)
        assert engine.statistics().running == 3
    assert ends == [(0, 5.0), (1, 10.0), (2, 15.0)]


@in_virtual_time
async def test_idle_and_paused_time_is_not_busy() -> None:
    """Only time with an open stream, not paused, counts."""
    engine = await engine_of(Script(base_s=1.0, per_seq_s=0.0))
    await asyncio.sleep(100)
    async with asyncio.TaskGroup() as group:
        group.create_task(sample(engine, decoding(max_tokens=4)))
        await asyncio.sleep(1.5)
        await engine.pause()
        assert now() == 102  # the step under way ends first
        await asyncio.sleep(50)
        await engine.resume()
    assert engine.statistics().busy_s == pytest.approx(4.0)


# ---- what is sampled -------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_seeded_streams_depend_on_prompt_and_seed_only() -> None:
    """Another engine, another load and another order give the same tokens; another seed or prompt gives others."""
    one, other = await engine_of(), await engine_of(Script(base_s=2.0, stream_interval=5), max_num_seqs=2, index=1)
    seeds = [decoding(seed=seed, stop_token_ids=STOPS) for seed in range(6)]
    forwards = await side_by_side(one, *seeds)
    backwards = await side_by_side(other, *reversed(seeds))
    assert [tokens(chunks) for chunks in forwards] == [tokens(chunks) for chunks in reversed(backwards)]
    assert len({tuple(tokens(chunks)) for chunks in forwards}) == 6
    assert tokens(await sample(one, seeds[0], [4, 5])) != tokens(forwards[0])


@in_virtual_time
async def test_streams_without_a_seed_differ() -> None:
    """Members of a group get completions of their own, on one engine and across engines."""
    engines = [await engine_of(index=index) for index in range(2)]
    completions = [tokens(await sample(engine, decoding())) for engine in engines for _ in range(4)]
    assert len({tuple(completion) for completion in completions}) == 8


def test_a_run_repeats_itself() -> None:
    """Two runs of one program see the same chunks at the same times."""

    async def main() -> list[tuple[float, TokenChunk]]:
        engine = await engine_of(Script(stream_interval=3))
        seen = []

        async def one() -> None:
            async with aclosing(engine.generate(PROMPT, decoding(stop_token_ids=STOPS, max_tokens=300))) as chunks:
                seen.extend([(now(), chunk) async for chunk in chunks])

        async with asyncio.TaskGroup() as group:
            for _ in range(9):
                group.create_task(one())
        return seen

    assert virtual_time.run(main()) == virtual_time.run(main())


@in_virtual_time
async def test_lengths_are_long_tailed() -> None:
    """Half the streams stop within the median, and a few need many times as much."""
    engine = await engine_of(Script(length_median=20, length_sigma=1.0), max_num_seqs=400)
    streams = await side_by_side(engine, *[decoding(stop_token_ids=STOPS, max_tokens=10_000)] * 400)
    lengths = [len(tokens(chunks)) for chunks in streams]
    assert 16 <= statistics.median(lengths) <= 25
    assert max(lengths) > 120
    assert all(chunks[-1].finish == "stop" and tokens(chunks)[-1] in STOPS for chunks in streams)
    assert not any(set(tokens(chunks)[:-1]) & set(STOPS) for chunks in streams)


@in_virtual_time
async def test_chunks_have_the_stream_interval() -> None:
    """Tokens come in chunks of ``stream_interval``; the last has the rest and the finish."""
    chunks = await sample(await engine_of(Script(stream_interval=4)), decoding(max_tokens=10))
    assert [(len(chunk.token_ids), chunk.finish) for chunk in chunks] == [(4, None), (4, None), (2, "length")]


@in_virtual_time
async def test_new_weights_change_tokens_and_scores() -> None:
    """What is sampled and scored depends on the weights that were sent, not on their number only."""
    engine = await engine_of()
    before = tokens(await sample(engine, decoding(seed=1))), await engine.score(PROMPT)
    async with asyncio.TaskGroup() as group:
        trainer = group.create_task(Meeting.join(GROUP, 0))
        group.create_task(engine.connect(GROUP, 1))
    await engine.pause()
    async with asyncio.TaskGroup() as group:
        group.create_task(trainer.result().send(1, b"other weights"))
        group.create_task(engine.load(UPDATE))
    await engine.resume()
    after = tokens(await sample(engine, decoding(seed=1))), await engine.score(PROMPT)
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert all(abs(a - b) < 0.2 for a, b in zip(before[1], after[1], strict=True))


# ---- the switchboard -------------------------------------------------------------------------------------------------


async def faulty(kind: Any, **fields: Any) -> SimulatedEngine:
    """An engine whose second request has a fault at its fifth token."""
    fault = StreamFault(kind=kind, **{"request": 1, "token": 5} | fields)
    engine = await engine_of(Script(base_s=1.0, per_seq_s=0.0, streams=(fault,)))
    assert len(tokens(await sample(engine, decoding(max_tokens=10)))) == 10
    return engine


@in_virtual_time
async def test_delay_holds_up_one_stream_once() -> None:
    """The stream is silent for ``delay_s`` and then goes on; it loses nothing."""
    engine = await faulty("delay", delay_s=7.5)
    assert len(tokens(await sample(engine, decoding(max_tokens=10)))) == 10
    # The step that should sample its sixth token ends at 16; the first one after the delay ends at 24.
    assert now() == 10 + 5 + (24 - 15) + 4


@in_virtual_time
async def test_stall_gives_no_token_again() -> None:
    """A stalled stream hangs until its consumer gives up; others go on."""
    engine = await faulty("stall")
    async with aclosing(engine.generate(PROMPT, decoding())) as chunks:
        for _ in range(5):
            await anext(chunks)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(chunks), 1000)
    assert len(tokens(await sample(engine, decoding(max_tokens=10)))) == 10
    assert engine.statistics().running == 0


@in_virtual_time
async def test_raise_fails_one_stream() -> None:
    """The stream raises EngineError; the next one is served."""
    engine = await faulty("raise")
    with pytest.raises(EngineError, match="engine-0 failed a stream at token 5"):
        await sample(engine, decoding())
    assert len(tokens(await sample(engine, decoding()))) == 50


@in_virtual_time
async def test_abort_keeps_the_tokens_so_far() -> None:
    """An abort is a finish with what there is, which may be nothing."""
    chunks = await sample(await faulty("abort"), decoding())
    assert (chunks[-1].finish, len(tokens(chunks))) == ("abort", 5)
    chunks = await sample(await faulty("abort", token=0), decoding())
    assert (chunks[-1].finish, len(tokens(chunks))) == ("abort", 0)


@in_virtual_time
async def test_nan_is_one_logprob() -> None:
    """Exactly the token after the fifth has no usable log-probability."""
    chunks = await sample(await faulty("nan"), decoding(max_tokens=10))
    assert [math.isnan(logprob) for chunk in chunks for logprob in chunk.logprobs] == [i == 5 for i in range(10)]


@in_virtual_time
async def test_wrong_version_is_one_stamp() -> None:
    """Exactly the token after the fifth is stamped with a version before the one served."""
    chunks = await sample(await faulty("wrong_version"), decoding(max_tokens=10))
    assert [chunk.version for chunk in chunks for _ in chunk.token_ids] == [0] * 5 + [-1] + [0] * 4


@in_virtual_time
async def test_end_and_babble_break_the_protocol() -> None:
    """One ends without a finish, the other goes on after it."""
    chunks = await sample(await faulty("end"), decoding())
    assert ([chunk.finish for chunk in chunks], len(tokens(chunks))) == ([None] * 5, 5)
    chunks = await sample(await faulty("babble"), decoding(max_tokens=10))
    assert [chunk.finish for chunk in chunks].count(None) == len(chunks) - 2


@in_virtual_time
async def test_die_ends_everything() -> None:
    """Every stream raises, waiting ones too, and no token is sampled after it; every call is refused."""
    engine = await faulty("die")
    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(dies(engine))
    assert engine.statistics().dead
    assert engine.statistics().running == 0
    # The three streams that ran beside it came one step later.
    assert engine.statistics().tokens_generated == 10 + 5 + 3 * 4
    assert await engine.failed() == "engine-0 died at token 5 of a stream, as scripted"
    for call in (engine.pause, engine.resume, lambda: engine.score(PROMPT)):
        with pytest.raises(EngineDeadError):
            await call()


async def dies(engine: SimulatedEngine) -> None:
    """A stream that ends with the engine."""
    with pytest.raises(EngineDeadError, match="engine-0 died at token 5"):
        await sample(engine, decoding())


@in_virtual_time
async def test_fault_at_a_time_strikes_every_request() -> None:
    """Without a request number a fault strikes all streams, each once, when the engine is old enough."""
    fault = StreamFault(kind="abort", at_s=20.0)
    engine = await engine_of(Script(base_s=1.0, per_seq_s=0.0, streams=(fault,)))
    streams = await side_by_side(engine, decoding(), decoding(max_tokens=10))
    assert [(chunks[-1].finish, len(tokens(chunks))) for chunks in streams] == [("abort", 19), ("length", 10)]


@in_virtual_time
async def test_die_at_kills_an_idle_engine() -> None:
    """A scripted death needs no stream."""
    engine = await engine_of(Script(die_at_s=30.0))
    assert await engine.failed() == "engine-0 died 30 s after its start, as scripted"
    assert now() == 30


@in_virtual_time
async def test_bug_in_a_step_kills_the_engine() -> None:
    """A timer has no caller, so an exception in it reaches the streams and ``failed``."""
    engine = await engine_of()
    engine._advance_streams = lambda: 1 / 0  # type: ignore[assignment,return-value]
    with pytest.raises(EngineDeadError, match="died of a bug: ZeroDivisionError"):
        await sample(engine, decoding())
    assert "ZeroDivisionError" in await engine.failed()


@pytest.mark.parametrize("call", ["open", "pause", "resume", "score", "load", "connect"])
@in_virtual_time
async def test_any_call_may_fail_late_or_never_end(call: str) -> None:
    """The first call is late, the second hangs, the third fails."""
    calls = (
        CallFault(call=call, kind="delay", delay_s=5.0, nth=0),
        CallFault(call=call, kind="hang", nth=1),
        CallFault(call=call, kind="raise", nth=2),
    )
    engine = SimulatedEngine(index=0, max_num_seqs=1, script=Script(calls=calls), seed=0)
    if call != "open":
        await engine.open()
    if call == "load":
        await engine.pause()
    alone = msgspec.structs.replace(GROUP, world_size=1)
    work = {
        "open": engine.open,
        "pause": engine.pause,
        "resume": engine.resume,
        "score": lambda: engine.score(PROMPT),
        "load": lambda: engine.load(UPDATE),
        "connect": lambda: engine.connect(alone, 0),
    }[call]
    if call == "load":  # in no weight group, so it fails, but late
        with pytest.raises(EngineError, match="weight group"):
            await work()
    else:
        await work()
    assert now() == 5
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1000):
            await work()
    with pytest.raises(EngineError, match=f"engine-0 failed in {call}, as scripted"):
        await work()


@in_virtual_time
async def test_dropped_load_reports_success_and_moves_nothing() -> None:
    """The engine says that it serves the new version and has the old weights, for a verification to find."""
    engine = await engine_of(Script(calls=(CallFault(call="load", kind="drop"),)))
    before = await engine.score(PROMPT)
    async with asyncio.TaskGroup() as group:
        trainer = group.create_task(Meeting.join(GROUP, 0))
        group.create_task(engine.connect(GROUP, 1))
    await engine.pause()
    async with asyncio.TaskGroup() as group:
        group.create_task(trainer.result().send(1, CHECKPOINT[::-1]))
        group.create_task(engine.load(UPDATE))
    assert engine.statistics().version == 1
    assert await engine.score(PROMPT) == before


@in_virtual_time
async def test_closed_engine_fails_its_streams() -> None:
    """Closing with a stream open ends the stream with an error and leaves no timer."""
    engine = await engine_of(Script(die_at_s=1e9))
    async with aclosing(engine.generate(PROMPT, decoding())) as chunks:
        await anext(chunks)
        await engine.close()
        with pytest.raises(EngineError, match="engine-0 was closed while the stream was open"):
            await anext(chunks)
    assert engine._timers == {}
