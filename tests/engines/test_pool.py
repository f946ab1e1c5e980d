"""The pool over simulated engines, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl import virtual_time
from prl.config import EngineConfig
from prl.engines.base import Decoding
from prl.engines.lives import CLOSE_TIMEOUT_S, START_MARGIN_S
from prl.engines.pool import EnginePool
from prl.engines.side_by_side import FAILURE_GRACE_S
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script, StreamFault
from prl.errors import EngineDeadError, EngineError
from prl.simulation import CHECKPOINT, MANIFEST, CallFault, Meeting
from prl.types import TokenChunk, WeightGroup, WeightUpdate
from tests.virtual import in_virtual_time

PROMPT = [1, 2, 3]
LONG = Decoding(temperature=1.0, max_tokens=50, stop_token_ids=[])


def make_pool(*scripts: Script, max_num_seqs: int = 4, gate_timeout_s: float = 30.0, **config: Any) -> EnginePool:
    """A pool of one simulated engine per script."""
    engines = [
        SimulatedEngine(index=i, max_num_seqs=max_num_seqs, script=script, seed=0) for i, script in enumerate(scripts)
    ]
    return EnginePool(engines, EngineConfig(**config), gate_timeout_s=gate_timeout_s)


def script(*faults: StreamFault | CallFault, **fields: Any) -> Script:
    """A script with these faults."""
    return Script(
        streams=tuple(fault for fault in faults if isinstance(fault, StreamFault)),
        calls=tuple(fault for fault in faults if isinstance(fault, CallFault)),
        **fields,
    )


async def sample(pool: EnginePool, decoding: Decoding = LONG, *, group: int = 0) -> list[TokenChunk]:
    """One stream to its end."""
    async with aclosing(pool.generate(PROMPT, decoding, group=group)) as chunks:
        return [chunk async for chunk in chunks]


async def opened(pool: EnginePool) -> EnginePool:
    """Open the pool."""
    await pool.open()
    return pool


async def connected(pool: EnginePool) -> Meeting:
    """Open the pool and join it; the trainer's side is returned."""
    await pool.open()
    group = pool.weight_group(transport="simulated", address="pool", port=1, timeout_s=10)
    async with asyncio.TaskGroup() as tasks:
        trainer = tasks.create_task(Meeting.join(group, 0))
        tasks.create_task(pool.connect(group))
    return trainer.result()


async def load(pool: EnginePool, trainer: Meeting, version: int) -> None:
    """Load ``version`` into the paused pool, or raise what the pool raised."""
    update = WeightUpdate(version=version, transport="simulated", manifest=MANIFEST)
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(trainer.send(version, CHECKPOINT))
        try:
            await pool.load(update)
        except EngineError as error:
            failure = error
            sending.cancel()
    if failure is not None:
        raise failure


async def fails_with(pool: EnginePool, message: str) -> None:
    """One stream, which must fail with ``message``."""
    with pytest.raises(EngineError, match=re.escape(message)):
        await sample(pool)


def now() -> float:
    """Virtual seconds."""
    return asyncio.get_running_loop().time()


# ---- opening and closing ---------------------------------------------------------------------------------------------


@in_virtual_time
async def test_engines_open_side_by_side() -> None:
    """Three engines that take 20 s to start are open after 20 s."""
    await opened(make_pool(*[Script(open_s=20)] * 3))
    assert now() == 20


@in_virtual_time
async def test_one_failed_start_closes_all() -> None:
    """The error names the engine that failed, soon, and no engine is left open."""
    pool = make_pool(Script(open_s=5), script(CallFault(call="open", kind="raise")), Script())
    with pytest.raises(EngineError, match="open failed on 1 of 3 engines: engine-1: engine-1 failed in open"):
        await pool.open()
    assert now() == FAILURE_GRACE_S
    for engine in pool.engines:
        with pytest.raises(EngineError, match="closed"):
            await anext(engine.generate(PROMPT, LONG))


@in_virtual_time
async def test_start_has_a_deadline() -> None:
    """An engine that is never ready, and never says so itself, ends the start soon after ``engine.start_timeout_s``."""
    pool = make_pool(Script(), script(CallFault(call="open", kind="hang")), start_timeout_s=60)
    with pytest.raises(EngineError, match=r"engine-1 was not ready within 60 s \(engine.start_timeout_s\)"):
        await pool.open()
    assert now() == 60 + START_MARGIN_S


@in_virtual_time
async def test_cancelled_start_closes_all() -> None:
    """A start that is given up leaves no engine open."""
    pool = make_pool(Script(), Script(open_s=1000))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await pool.open()
    with pytest.raises(EngineError, match="closed"):
        await anext(pool.engines[0].generate(PROMPT, LONG))


@in_virtual_time
async def test_close_is_bounded_and_reaches_all() -> None:
    """An engine that hangs in close holds up neither the others nor the pool for longer than the limit."""
    pool = await opened(make_pool(script(CallFault(call="close", kind="hang")), Script()))
    await pool.close()
    assert now() == CLOSE_TIMEOUT_S
    with pytest.raises(EngineError, match="closed"):
        await anext(pool.engines[1].generate(PROMPT, LONG))


@in_virtual_time
async def test_close_after_a_failure_raises_nothing() -> None:
    """Closing does not stand in for the error that ends the run, and may be done twice."""
    pool = await opened(make_pool(Script(), Script(die_at_s=1)))
    assert await pool.failed() == "engine-1 is dead: engine-1 died 1 s after its start, as scripted"
    await pool.close()
    await pool.close()


# ---- weight groups ---------------------------------------------------------------------------------------------------


class WideEngine(SimulatedEngine):
    """An engine of several workers that notes which ranks it was given."""

    def __init__(self, index: int, num_workers: int) -> None:
        super().__init__(index=index, max_num_seqs=1, script=Script(), seed=0)
        self.num_workers = num_workers
        self.joined: tuple[WeightGroup, int] | None = None

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """Note it."""
        self.joined = (group, rank_offset)


@in_virtual_time
async def test_workers_are_ranked_after_the_trainer() -> None:
    """The trainer is rank 0; each engine's ranks follow those of the engine before it."""
    engines = [WideEngine(0, 2), WideEngine(1, 1), WideEngine(2, 4)]
    pool = await opened(EnginePool(engines, EngineConfig(), gate_timeout_s=1))
    group = pool.weight_group(transport="nccl", address="10.0.0.1", port=5, timeout_s=9)
    await pool.connect(group)
    assert group == WeightGroup(transport="nccl", address="10.0.0.1", port=5, world_size=8, timeout_s=9)
    assert [engine.joined for engine in engines] == [(group, 1), (group, 3), (group, 4)]


@in_virtual_time
async def test_an_engine_that_dies_before_it_joins_fails_the_join() -> None:
    """The group was made for it too: without it the others would wait for a group that is never complete."""
    pool = await opened(make_pool(Script(), Script()))
    group = pool.weight_group(transport="simulated", address="pool", port=1, timeout_s=10)
    pool.engines[1].kill()  # type: ignore[attr-defined]
    async with asyncio.timeout(2):
        with pytest.raises(EngineDeadError, match="connect failed on 1 of 2 engines: engine-1: engine-1 was killed"):
            await pool.connect(group)


# ---- streams ---------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_streams_are_spread_and_counted() -> None:
    """Five streams on two engines run three and two, by the pool's count and the engines', and none at the end."""
    pool = await opened(make_pool(Script(), Script()))
    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(sample(pool, group=number))
        await asyncio.sleep(0.1)
        assert pool.statistics().running == {"engine-0": 3, "engine-1": 2}
        assert [engine.statistics().running for engine in pool.engines] == [3, 2]
    assert pool.statistics().running == {"engine-0": 0, "engine-1": 0}
    assert pool.statistics().tokens_generated == 250


@in_virtual_time
async def test_together_keeps_a_group_on_one_engine() -> None:
    """With ``engine.placement = "together"`` the members of a group share an engine."""
    pool = await opened(make_pool(Script(), Script(), placement="together"))
    async with asyncio.TaskGroup() as tasks:
        for number in range(6):
            tasks.create_task(sample(pool, group=number // 4))
        await asyncio.sleep(0.1)
        assert pool.statistics().running == {"engine-0": 4, "engine-1": 2}


@in_virtual_time
async def test_early_close_frees_the_stream() -> None:
    """When the consumer leaves, neither the pool nor the engine holds the stream any longer."""
    pool = await opened(make_pool(Script()))
    async with aclosing(pool.generate(PROMPT, LONG, group=0)) as chunks:
        await anext(chunks)
    assert pool.statistics().running == {"engine-0": 0}
    assert pool.engines[0].statistics().running == 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "engine-0 failed a stream at token 5"),
        ("end", "engine-0 broke the protocol: a stream ended without a finish"),
        ("babble", "engine-0 broke the protocol: a stream went on after its finish"),
        ("wrong_version", "engine-0 broke the protocol: a stream stamped version -1 after version 0"),
    ],
)
@in_virtual_time
async def test_broken_stream_is_an_error_that_names_the_engine(fault: Any, message: str) -> None:
    """Whatever an engine does to a stream beyond the protocol, the consumer sees one EngineError."""
    pool = await opened(make_pool(script(StreamFault(kind=fault, token=5))))
    with pytest.raises(EngineError, match=message):
        await sample(pool)
    assert pool.engines[0].statistics().running == 0


class TalkativeEngine(SimulatedEngine):
    """An engine that ignores ``max_tokens``."""

    async def generate(self, token_ids: list[int], decoding: Decoding) -> AsyncGenerator[TokenChunk, None]:
        """Three tokens too many."""
        yield TokenChunk(
            token_ids=[1] * (decoding.max_tokens + 3), logprobs=[-1.0] * (decoding.max_tokens + 3), version=0
        )


@in_virtual_time
async def test_too_many_tokens_are_refused() -> None:
    """A stream longer than ``max_tokens`` is an error."""
    engine = TalkativeEngine(index=0, max_num_seqs=1, script=Script(), seed=0)
    pool = await opened(EnginePool([engine], EngineConfig(), gate_timeout_s=1))
    with pytest.raises(EngineError, match="engine-0 broke the protocol: a stream gave more than the 50 tokens"):
        await sample(pool)


@in_virtual_time
async def test_abort_is_passed_on_as_it_is() -> None:
    """An abort with partial tokens is a finish of its own; what to make of it is the consumer's business."""
    pool = await opened(make_pool(script(StreamFault(kind="abort", token=7))))
    chunks = await sample(pool)
    assert chunks[-1].finish == "abort"
    assert sum(len(chunk.token_ids) for chunk in chunks) == 7


@in_virtual_time
async def test_dead_engine_ends_its_streams_and_gets_no_new_ones() -> None:
    """Streams of the engine that died raise EngineDeadError; later ones go elsewhere, or nowhere when all are dead."""
    die = StreamFault(kind="die", token=3)
    pool = await opened(make_pool(script(die), script(die)))
    with pytest.raises(EngineDeadError, match="engine-0 died at token 3"):
        await sample(pool)
    assert pool.statistics().dead == ["engine-0"]
    with pytest.raises(EngineDeadError, match="engine-1 died at token 3"):
        await sample(pool)
    with pytest.raises(EngineDeadError, match="every engine is dead"):
        await sample(pool)


# ---- deadlines of tokens ---------------------------------------------------------------------------------------------


@in_virtual_time
async def test_stalled_stream_meets_the_token_deadline() -> None:
    """A stream without a token for ``engine.token_timeout_s`` is an error although its engine serves others."""
    pool = await opened(make_pool(script(StreamFault(kind="stall", request=0, token=5)), token_timeout_s=60))

    async def serve_others() -> None:
        while True:
            await sample(pool)

    async with asyncio.TaskGroup() as tasks:
        stalled = tasks.create_task(
            fails_with(pool, "engine-0 gave an open stream no token for 60 s (engine.token_time")
        )
        await asyncio.sleep(0)
        others = tasks.create_task(serve_others())
        await stalled
        others.cancel()
    assert now() == pytest.approx(60, abs=0.2)
    assert pool.statistics().tokens_generated > 1000


@in_virtual_time
async def test_a_pause_does_not_count() -> None:
    """A stream outlives a pause that is longer than the token deadline, and has its deadline after it."""
    stall = StreamFault(kind="stall", request=1, token=40)
    pool = await opened(make_pool(script(stall), token_timeout_s=10))
    async with asyncio.TaskGroup() as tasks:
        fine = tasks.create_task(sample(pool))
        stalled = tasks.create_task(fails_with(pool, "no token for 10 s"))
        await asyncio.sleep(0.2)
        await pool.pause()
        await asyncio.sleep(1000)
        await pool.resume()
        await stalled
        assert now() == pytest.approx(1010, abs=1)
    assert fine.result()[-1].finish == "length"


@in_virtual_time
async def test_waiting_for_a_turn_is_not_late() -> None:
    """A stream that queues behind others for longer than the deadline is served; they show that the engine moves."""
    pool = await opened(make_pool(Script(), max_num_seqs=1, token_timeout_s=1))
    async with asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(sample(pool)) for _ in range(6)]
    assert now() > 2
    assert [stream.result()[-1].finish for stream in streams] == ["length"] * 6


@in_virtual_time
async def test_silent_engine_is_late_for_all() -> None:
    """When an engine gives no token at all, streams that wait for their turn fail too, whoever comes and goes."""
    stall = StreamFault(kind="stall", request=0, token=10)
    pool = await opened(make_pool(script(stall), max_num_seqs=1, token_timeout_s=1))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(fails_with(pool, "no token for 1 s"))
        await asyncio.sleep(0.2)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.25):
                    await sample(pool)
    assert now() < 1.5


@in_virtual_time
async def test_cancellation_from_outside_is_not_taken_for_lateness() -> None:
    """When the consumer's own deadline falls on the token's, one of both is raised and no cancellation is left over."""
    pool = await opened(make_pool(script(StreamFault(kind="stall")), token_timeout_s=60))
    with pytest.raises((TimeoutError, EngineError)):
        async with asyncio.timeout(60):
            await sample(pool)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await sample(pool)
    assert pool.statistics().running == {"engine-0": 0}


# ---- pause, load, resume ---------------------------------------------------------------------------------------------


@in_virtual_time
async def test_paused_pool_admits_nobody() -> None:
    """A stream that is asked for during a pause reaches no engine before the resume, and then runs."""
    pool = await opened(make_pool(Script(), Script()))
    async with asyncio.TaskGroup() as tasks:
        await pool.pause()
        stream = tasks.create_task(sample(pool))
        await asyncio.sleep(20)
        assert pool.statistics().waiting == 1
        assert pool.statistics().running == {"engine-0": 0, "engine-1": 0}
        await pool.resume()
    assert stream.result()[-1].finish == "length"
    assert pool.statistics().waiting == 0


@in_virtual_time
async def test_wait_at_the_gate_has_a_deadline() -> None:
    """When nobody resumes, the stream that waits says so in time."""
    pool = await opened(make_pool(Script(), gate_timeout_s=30))
    await pool.pause()
    await fails_with(pool, "a stream waited 30 s (weights.timeout_s) for the engines to resume")
    assert now() == 30
    assert pool.statistics().waiting == 0


@in_virtual_time
async def test_the_deadline_at_the_gate_begins_anew_with_the_update() -> None:
    """While an update that failed is mended and tried again, a stream waits on."""
    pool = await opened(make_pool(Script(), gate_timeout_s=30))
    await pool.pause()
    async with asyncio.TaskGroup() as tasks:
        stream = tasks.create_task(sample(pool))
        for _ in range(3):
            await asyncio.sleep(25)
            assert await pool.weed() is False
            await pool.pause()
        await asyncio.sleep(10)
        await pool.resume()
    assert stream.result()[-1].finish == "length"


@in_virtual_time
async def test_who_is_stuck_in_the_weight_group_is_not_taken_for_dead() -> None:
    """After a failed update an engine may answer as late as the group's timeout; one that never does is given up."""
    late = CallFault(call="pause", kind="delay", delay_s=10)
    engines = [
        SimulatedEngine(index=i, max_num_seqs=4, script=script(fault), seed=0)
        for i, fault in enumerate((late, CallFault(call="pause", kind="hang")))
    ]
    pool = EnginePool(engines, EngineConfig(), gate_timeout_s=30, remake=lambda index, _: engines[index])
    await connected(pool)
    assert await pool.weed() is True
    assert [seat.engine.name for seat in pool.seats.there()] == ["engine-0"]
    assert now() == 15


@in_virtual_time
async def test_open_streams_cross_a_load() -> None:
    """Both engines serve the new version in streams that were open, and no token is lost."""
    pool = make_pool(Script(), Script())
    trainer = await connected(pool)
    async with asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(sample(pool, group=number)) for number in range(4)]
        await asyncio.sleep(0.2)
        await pool.pause()
        await load(pool, trainer, 1)
        await pool.resume()
    for stream in streams:
        versions = [chunk.version for chunk in stream.result() for _ in chunk.token_ids]
        assert len(versions) == 50
        assert versions == sorted(versions)
        assert set(versions) == {0, 1}
    assert pool.statistics().versions == {"engine-0": 1, "engine-1": 1}


@in_virtual_time
async def test_failed_load_names_the_engine_and_bars_the_resume() -> None:
    """If one engine cannot load, nobody resumes until a load has succeeded on all."""
    pool = make_pool(Script(), script(CallFault(call="load", kind="raise")))
    trainer = await connected(pool)
    await pool.pause()
    with pytest.raises(EngineError, match="load of version 1 failed on 1 of 2 engines: engine-1: engine-1 failed in"):
        await load(pool, trainer, 1)
    with pytest.raises(EngineError, match="cannot resume: the load of version 1 did not complete on every engine"):
        await pool.resume()
    await load(pool, trainer, 1)
    await pool.resume()
    assert len(await sample(pool)) == 50


@in_virtual_time
async def test_every_engine_that_failed_is_named() -> None:
    """Two failures at once are one error with both names."""
    failing = script(CallFault(call="pause", kind="raise"))
    pool = await opened(make_pool(failing, Script(), failing))
    with pytest.raises(EngineError, match=r"pause failed on 2 of 3 engines: engine-0: .*; engine-2: "):
        await pool.pause()


@in_virtual_time
async def test_death_during_a_call_is_a_death() -> None:
    """An engine that dies in a pause makes it an EngineDeadError."""
    pool = await opened(make_pool(Script(), script(CallFault(call="pause", kind="die"))))
    with pytest.raises(EngineDeadError, match="engine-1 died in pause"):
        await pool.pause()


class BuggyEngine(SimulatedEngine):
    """An engine with a bug in its pause."""

    async def pause(self) -> None:
        """A bug."""
        raise KeyError("bug")


@in_virtual_time
async def test_bug_stays_what_it_is() -> None:
    """An exception that is no PrlError leaves the pool as it was raised."""
    pool = await opened(
        EnginePool([BuggyEngine(index=0, max_num_seqs=1, script=Script(), seed=0)], EngineConfig(), gate_timeout_s=1)
    )
    with pytest.raises(KeyError, match="bug"):
        await pool.pause()


@in_virtual_time
async def test_a_cancellation_from_within_is_a_failure() -> None:
    """A call that ends as cancelled, though nobody asked for that, is not done: the engine is named."""

    class Leaking(SimulatedEngine):
        async def score(self, token_ids: list[int]) -> list[float]:
            raise asyncio.CancelledError

    engines = [
        kind(index=i, max_num_seqs=1, script=Script(), seed=0) for i, kind in enumerate((SimulatedEngine, Leaking))
    ]
    pool = await opened(EnginePool(engines, EngineConfig(), gate_timeout_s=30))
    with pytest.raises(EngineError, match="score failed on 1 of 2 engines: engine-1: score was cancelled from within"):
        await pool.score(PROMPT)


@in_virtual_time
async def test_who_did_not_answer_is_known_after_the_deadline() -> None:
    """A caller whose deadline ends a call finds in ``pending`` which engine hung, and ``describe`` says it."""
    pool = await opened(make_pool(Script(), script(CallFault(call="pause", kind="hang"))))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(7):
            await pool.pause()
    assert pool.pending == {"engine-1": "pause"}
    assert pool.describe() == "engine-0 (0 streams), engine-1 (0 streams) paused; engine-1 has not answered pause"


@in_virtual_time
async def test_scores_come_from_every_engine() -> None:
    """Engines with the same weights score alike, by name."""
    pool = await opened(make_pool(Script(), Script()))
    scores = await pool.score(PROMPT)
    assert list(scores) == ["engine-0", "engine-1"]
    assert scores["engine-0"] == scores["engine-1"]
    assert len(scores["engine-0"]) == len(PROMPT) - 1


@in_virtual_time
async def test_failed_returns_the_first_to_die() -> None:
    """Of two engines that die, the first is reported, and waiting for it leaves no task."""
    pool = await opened(make_pool(Script(die_at_s=50), Script(die_at_s=20), Script()))
    assert (await pool.failed()).startswith("engine-1 is dead: engine-1 died 20 s after its start")
    assert now() == 20
    assert len(asyncio.all_tasks()) == 1


@in_virtual_time
async def test_busy_fraction_is_the_mean_over_engines() -> None:
    """One of two engines busy all the time is a busy fraction of one half."""
    pool = await opened(make_pool(Script(), Script()))
    await sample(pool)
    assert pool.statistics().busy_fraction == pytest.approx(0.5)
    assert pool.statistics().busy_s == pytest.approx(now() / 2)


@in_virtual_time
async def test_counts_never_fall_when_engines_die() -> None:
    """At no moment of a death, a close and a start do the pool's tokens or busy seconds fall, or count twice."""
    made = [
        SimulatedEngine(index=0, max_num_seqs=4, script=Script(open_s=2, die_at_s=age), seed=0) for age in (3, 4, 1, 99)
    ]
    left = made[1:]
    pool = await opened(EnginePool(made[:1], EngineConfig(), gate_timeout_s=30, remake=lambda *_: left.pop(0)))
    seen = [pool.statistics()]

    async def ask() -> None:
        while True:
            with contextlib.suppress(EngineError):
                await sample(pool)

    async def serve_newcomers() -> None:
        while True:
            await pool.seats.newcomer()
            pool.seats.have_joined(pool.seats.all)
            pool.seats.have_loaded(pool.seats.all, 0)

    async def keep() -> None:
        await pool.failed()

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work()) for work in (keep, ask, serve_newcomers)]
        for _ in range(3000):
            await asyncio.sleep(0.01)
            seen.append(pool.statistics())
        for task in running:
            task.cancel()
    assert left == []
    assert [s.tokens_generated for s in seen] == sorted(s.tokens_generated for s in seen)
    assert [s.busy_s for s in seen] == sorted(s.busy_s for s in seen)
    assert seen[-1].tokens_generated == sum(engine.statistics().tokens_generated for engine in made)
    assert seen[-1].busy_s == pytest.approx(sum(engine.statistics().busy_s for engine in made))


# ---- whatever goes wrong ---------------------------------------------------------------------------------------------

KINDS = ["delay", "stall", "raise", "abort", "nan", "wrong_version", "end", "babble", "die"]
faults = st.builds(
    StreamFault,
    kind=st.sampled_from(KINDS),
    request=st.integers(0, 11),
    token=st.integers(0, 30),
    delay_s=st.floats(0, 20),
)
scripts = st.builds(
    Script,
    streams=st.lists(faults, max_size=6).map(tuple),
    stream_interval=st.integers(1, 4),
    per_seq_s=st.floats(0, 0.01),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(scripts, min_size=1, max_size=3),
    st.sampled_from(["spread", "together"]),
    st.lists(st.tuples(st.floats(0, 2), st.integers(0, 3), st.none() | st.floats(0, 3)), min_size=1, max_size=16),
    st.lists(st.floats(0.01, 1), max_size=4),
)
def test_every_stream_ends_in_exactly_one_way(
    engines: list[Script], placement: str, requests: list[tuple[float, int, float | None]], pauses: list[float]
) -> None:
    """Streams come, are abandoned, fail, stall and cross pauses; each has one end, and nothing is left of any."""
    virtual_time.run(everything_ends(make_pool(*engines, placement=placement, token_timeout_s=5), requests, pauses))


async def everything_ends(
    pool: EnginePool, requests: list[tuple[float, int, float | None]], pauses: list[float]
) -> None:
    """Run it and look at what is left."""
    await pool.open()

    async def consumer(begins_s: float, group: int, patience_s: float | None) -> str:
        await asyncio.sleep(begins_s)
        chunks: list[TokenChunk] = []
        try:
            async with asyncio.timeout(patience_s):
                async with aclosing(pool.generate(PROMPT, LONG, group=group)) as stream:
                    async for chunk in stream:
                        assert not chunks or chunks[-1].finish is None
                        chunks.append(chunk)
        except EngineError as error:
            return "failed" if re.search(r"engine-\d|every engine is dead", str(error)) else f"nameless: {error}"
        except TimeoutError:
            return "abandoned"
        assert sum(len(chunk.token_ids) for chunk in chunks) <= LONG.max_tokens
        assert chunks[-1].finish is not None
        return str(chunks[-1].finish)

    async def pause() -> None:
        for length_s in pauses:
            await asyncio.sleep(length_s)
            if pool.statistics().dead:
                return
            await pool.pause()
            await asyncio.sleep(10 * length_s)
            await pool.resume()

    async with asyncio.timeout(1000), asyncio.TaskGroup() as tasks:
        tasks.create_task(ignoring_death(pause()))
        ends = [tasks.create_task(consumer(*request)) for request in requests]
    assert {end.result() for end in ends} <= {"failed", "abandoned", "length", "stop", "abort"}
    statistics = pool.statistics()
    assert set(statistics.running.values()) == {0}
    assert statistics.waiting == 0
    assert all(engine.statistics().running == 0 for engine in pool.engines)
    assert len(asyncio.all_tasks()) == 1
    await pool.close()


async def ignoring_death(work: Any) -> None:
    """A pause that meets a death ends the run elsewhere; here the streams are what counts."""
    with contextlib.suppress(EngineDeadError):
        await work
