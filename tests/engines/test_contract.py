"""The engine protocol, asserted on every kind of engine in the same words. ``contract.py`` says how a kind takes part.

One engine per kind serves all tests of this module, for real ones start slowly; so each test leaves it open, resumed
and with good weights, until the last two end it.
"""

from __future__ import annotations

import asyncio
import importlib
import math
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from prl.engines.base import Decoding
from prl.errors import EngineDeadError, EngineError, WeightSyncError
from prl.types import WeightUpdate
from tests.engines.contract import DEADLINE_S, Stream, Subject

KINDS = ["simulated", "transformers", "vllm", "server"]
TOKENS_BETWEEN_PUSHES = 8
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Subject]:
    """An open engine of each kind that can run here."""
    module = f"tests.engines.{request.param}_factory"
    try:
        factory = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"prl", "tests"}:
            raise  # a slip of ours, no missing package
        pytest.skip(f"{request.param}: {error}")
    async with factory.subject(tmp_path_factory.mktemp(request.param)) as made:
        yield made


def sampling(max_tokens: int, stop_token_ids: list[int] | None = None) -> Decoding:
    """Temperature 1."""
    return Decoding(temperature=1.0, max_tokens=max_tokens, stop_token_ids=stop_token_ids or [])


def assert_whole(stream: Stream, num_tokens: int) -> None:
    """One finish, on the last chunk; three lists of the length asked for; versions that never decrease."""
    assert [chunk.finish for chunk in stream.chunks[:-1]] == [None] * (len(stream.chunks) - 1)
    assert stream.chunks[-1].finish == "length"
    assert len(stream.token_ids) == len(stream.logprobs) == len(stream.versions) == num_tokens
    assert stream.versions == sorted(stream.versions)


async def settled(subject: Subject) -> None:
    """Wait until the engine holds no stream."""
    async with asyncio.timeout(DEADLINE_S):
        while subject.engine.statistics().running:  # noqa: ASYNC110 - a counter is all that the protocol offers
            await asyncio.sleep(0.01)


async def test_stream_ends_with_exactly_one_finish(subject: Subject) -> None:
    """Every chunk but the last goes on; each token has its log-probability and the version served."""
    stream = await subject.sample(sampling(20))
    assert_whole(stream, 20)
    assert stream.versions == [subject.version] * 20
    assert all(math.isfinite(logprob) and logprob <= 1e-3 for logprob in stream.logprobs)


async def test_max_tokens_is_exact(subject: Subject) -> None:
    """A stream without stop tokens has as many tokens as were asked for, one included."""
    assert_whole(await subject.sample(sampling(1)), 1)
    assert_whole(await subject.sample(sampling(33)), 33)


async def test_stop_token_is_kept(subject: Subject) -> None:
    """The sampled stop token ends its stream with ``stop`` and is the last of its tokens."""
    decoding = await subject.stopping()
    stream = await subject.sample(decoding)
    assert stream.chunks[-1].finish == "stop"
    assert stream.token_ids[-1] in decoding.stop_token_ids
    assert not set(stream.token_ids[:-1]) & set(decoding.stop_token_ids)
    assert len(stream.logprobs) == len(stream.token_ids)


async def test_greedy_is_deterministic(subject: Subject) -> None:
    """Temperature 0 gives the same tokens twice."""
    greedy = Decoding(temperature=0, max_tokens=24, stop_token_ids=[])
    first, second = await subject.sample(greedy), await subject.sample(greedy)
    assert first.token_ids == second.token_ids


async def test_score_agrees_with_sampling(subject: Subject) -> None:
    """``score`` gives L - 1 numbers; those of sampled tokens are what sampling them said at temperature 1."""
    stream = await subject.sample(sampling(12))
    for scores in await subject.scores(subject.prompt + stream.token_ids):
        assert len(scores) == len(subject.prompt) + 12 - 1
        assert scores[-12:] == pytest.approx(stream.logprobs, abs=1e-3)


async def test_more_streams_than_run_at_once(subject: Subject) -> None:
    """Streams beyond ``max_num_seqs`` wait for their turn and complete."""
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        tasks = [group.create_task(subject.sample(sampling(16))) for _ in range(3 * subject.max_num_seqs)]
    for task in tasks:
        assert_whole(task.result(), 16)
    assert subject.engine.statistics().running == 0


async def test_streams_are_spread_over_the_copies(subject: Subject) -> None:
    """Where several copies of the model sample behind an engine, all of them do; what they sample is counted once."""
    before = await subject.sampled_by_copy()
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        for _ in range(subject.max_num_seqs):
            group.create_task(subject.sample(sampling(40)))
    sampled = [now - then for now, then in zip(await subject.sampled_by_copy(), before, strict=True)]
    assert len(sampled) == subject.num_copies
    assert sum(sampled) == 40 * subject.max_num_seqs
    assert min(sampled) > 0


async def test_pushes_in_flight_lose_nothing(subject: Subject) -> None:
    """Streams stay open across five pushes: no token is lost, each has its version's stamp, versions never decrease."""
    streams = [Stream() for _ in range(4)]
    first = subject.version

    async def consume(stream: Stream) -> None:
        async with aclosing(subject.engine.generate(subject.prompt, sampling(subject.long))) as chunks:
            await stream.consume(chunks)

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        for stream in streams:
            group.create_task(consume(stream))
        for number in range(1, 6):
            for stream in streams:
                await stream.has(number * TOKENS_BETWEEN_PUSHES)
            await subject.push(first + number)
    for stream in streams:
        assert_whole(stream, subject.long)
        assert sorted(set(stream.versions)) == list(range(first, first + 6))
        read = [subject.version_of(token) for token in stream.token_ids]
        assert read in ([None] * subject.long, stream.versions)


async def test_new_stream_has_the_new_version_only(subject: Subject) -> None:
    """After a push a new stream is sampled by the new version from its first token on, whichever copy samples it."""
    before = await subject.scores(subject.prompt)
    await subject.push(subject.version + 1)
    stream = await subject.sample(sampling(8))
    assert stream.versions == [subject.version] * 8
    assert subject.engine.statistics().version == subject.version
    for now, then in zip(await subject.scores(subject.prompt), before, strict=True):
        assert now != then


async def test_pause_stops_tokens_and_resume_goes_on(subject: Subject) -> None:
    """No token comes between pause and resume, and none is lost; both may be called twice."""
    stream = Stream()

    async def consume() -> None:
        async with aclosing(subject.engine.generate(subject.prompt, sampling(subject.long))) as chunks:
            await stream.consume(chunks)

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        group.create_task(consume())
        await stream.has(4)
        await subject.engine.pause()
        await subject.engine.pause()
        assert subject.engine.statistics().paused
        # Only time can show that nothing comes: first for what was under way to arrive, then for what must not.
        await asyncio.sleep(0.2)
        num_tokens = len(stream.token_ids)
        await asyncio.sleep(0.2)
        assert len(stream.token_ids) == num_tokens < subject.long
        await subject.engine.resume()
        await subject.engine.resume()
    assert_whole(stream, subject.long)
    assert not subject.engine.statistics().paused


async def test_request_while_paused_waits_for_resume(subject: Subject) -> None:
    """A request that reaches a paused engine is served after the resume."""
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        await subject.engine.pause()
        waiting = group.create_task(subject.sample(sampling(5)))
        await asyncio.sleep(0)
        await subject.engine.resume()
    assert_whole(waiting.result(), 5)


async def test_load_needs_a_pause(subject: Subject) -> None:
    """A load of an engine that is not paused is refused, and the engine serves on."""
    with pytest.raises((EngineError, WeightSyncError), match="paused"):
        await subject.engine.load(WeightUpdate(version=subject.version + 1, transport="gloo", manifest=[]))
    assert_whole(await subject.sample(sampling(4)), 4)


async def test_failed_load_refuses_until_a_good_one(subject: Subject) -> None:
    """After a load that failed no stream is served, until a load has succeeded; nor does it go on."""
    await subject.engine.pause()
    with pytest.raises((EngineError, WeightSyncError)):
        await subject.failing_transfer(subject.version + 1)
    with pytest.raises(EngineError):
        await subject.sample(sampling(4))
    with pytest.raises(EngineError):
        await subject.engine.resume()
    assert subject.engine.statistics().paused
    await subject.push(subject.version + 1)
    stream = await subject.sample(sampling(4))
    assert stream.versions == [subject.version] * 4


async def test_a_swap_is_between_two_tokens(subject: Subject) -> None:
    """What was staged is not served before it is swapped in, from the next token on it is, and no stream notices."""
    before, stream = subject.version, Stream()
    update = await subject.stage(before + 1)

    async def consume() -> None:
        async with aclosing(subject.engine.generate(subject.prompt, sampling(subject.long))) as chunks:
            await stream.consume(chunks)

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        group.create_task(consume())
        await stream.has(TOKENS_BETWEEN_PUSHES)
        stood = await subject.engine.swap(update)
    subject.version = before + 1
    assert_whole(stream, subject.long)
    assert set(stream.versions) == {before, before + 1}
    read = [subject.version_of(token) for token in stream.token_ids]
    assert read in (stream.versions, [None] * subject.long)
    assert min(stood.drain_s, stood.still_s) >= 0
    assert not subject.engine.statistics().paused


async def test_a_transfer_that_breaks_off_is_dropped_whole(subject: Subject) -> None:
    """The trainer is killed between two buckets: the engine goes on with the old weights, all of them, and says so."""
    probe = [*subject.prompt, *subject.prompt]
    before = await subject.scores(probe)
    await subject.break_off(subject.version + 1)
    stream = await subject.sample(sampling(TOKENS_BETWEEN_PUSHES))
    assert stream.versions == [subject.version] * TOKENS_BETWEEN_PUSHES
    for now, then in zip(await subject.scores(probe), before, strict=True):
        assert now == pytest.approx(then, abs=1e-6)
    assert not subject.engine.statistics().paused
    await subject.reconnect()
    await subject.push(subject.version + 1)
    for now, then in zip(await subject.scores(probe), before, strict=True):
        assert now != pytest.approx(then, abs=1e-6)


async def test_early_close_frees_the_stream(subject: Subject) -> None:
    """A consumer that has enough closes its stream, and the engine holds it no longer."""
    async with aclosing(subject.engine.generate(subject.prompt, sampling(subject.long))) as chunks:
        await anext(chunks)
        assert subject.engine.statistics().running == 1
    await settled(subject)


async def test_cancelled_consumer_frees_the_stream(subject: Subject) -> None:
    """A consumer that is cancelled leaves nothing behind, and the engine serves the next one."""
    stream = Stream()

    async def consume() -> None:
        async with aclosing(subject.engine.generate(subject.prompt, sampling(subject.long))) as chunks:
            await stream.consume(chunks)

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        task = group.create_task(consume())
        await stream.has(2)
        task.cancel()
    await settled(subject)
    assert_whole(await subject.sample(sampling(4)), 4)


async def test_slow_consumer_gets_everything(subject: Subject) -> None:
    """A consumer that does not look while another stream runs to its end holds up nobody and loses nothing."""
    slow = Stream()
    async with aclosing(subject.engine.generate(subject.prompt, sampling(subject.long))) as chunks:
        slow.chunks.append(await anext(chunks))
        async with asyncio.timeout(DEADLINE_S):
            assert_whole(await subject.sample(sampling(subject.long)), subject.long)
        await slow.consume(chunks)
    assert_whole(slow, subject.long)


async def test_counters_grow(subject: Subject) -> None:
    """Tokens are counted, and so is the time in which streams were open: the engine's, and that of each stream."""
    before = subject.engine.statistics()
    await subject.sample(sampling(10))
    after = subject.engine.statistics()
    assert after.tokens_generated == before.tokens_generated + 10
    assert after.busy_s > before.busy_s
    assert after.stream_s - before.stream_s == pytest.approx(after.busy_s - before.busy_s)
    assert after.running == 0


async def test_death_ends_every_stream(subject: Subject) -> None:
    """When the engine dies its streams raise instead of hanging, ``failed`` names it, and new streams are refused."""
    stream = Stream()

    async def consume() -> None:
        with pytest.raises(EngineDeadError):
            async with aclosing(subject.engine.generate(subject.prompt, sampling(subject.long))) as chunks:
                await stream.consume(chunks)

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        group.create_task(consume())
        await stream.has(1)
        # Paused, so that the stream is open for sure when the engine dies.
        await subject.engine.pause()
        await subject.kill()
        assert subject.engine.name in await subject.engine.failed()
    assert subject.engine.statistics().dead
    with pytest.raises(EngineDeadError):
        await subject.sample(sampling(4))


async def test_close_is_idempotent(subject: Subject) -> None:
    """An engine may be closed twice, after a failure too."""
    async with asyncio.timeout(DEADLINE_S):
        await subject.engine.close()
        await subject.engine.close()
    with pytest.raises(EngineError):
        await subject.sample(sampling(4))
