"""The vLLM engine, real, on tiny models: what it serves after an update, whose version a token has, how it ends.

Three engines serve all tests of this module, for each takes long to start: two on one tied model, in one weight group
with the test as the trainer, and one on a model with a head of its own and biases.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import pytest_asyncio
import torch

pytest.importorskip("vllm", reason="the vLLM engine needs vLLM")

from prl.engines.base import Decoding
from prl.engines.vllm import VllmEngine
from prl.errors import EngineDeadError, EngineError, WeightSyncError
from tests.engines import vllm_probes
from tests.engines.contract import Stream
from tests.engines.transformers_factory import add_adapters
from tests.engines.vllm_factory import (
    FIRST_READABLE,
    MAX_NUM_SEQS,
    VOCAB_SIZE,
    Trainer,
    core_process,
    host_process,
    make_engine,
    open_all,
    perturb,
    readable,
    reference,
    sample,
    tiny_model,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]
MAX_TRIES = 5
DEADLINE_S = 60.0
PROMPT = [5, 6, 7, 8]
TEXT = list(range(20, 60))
TOLERANCE = 1e-4
LONG = 900


class Fleet(NamedTuple):
    """What the tests share."""

    tied: Trainer
    """Two engines: one streams every token, the other every fourth."""
    untied: Trainer
    folder: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """All engines, started side by side."""
    folder = tmp_path_factory.mktemp("vllm")
    tied, untied = tiny_model(tied=True), tiny_model(tied=False)
    tied.save_pretrained(folder / "tied")
    untied.save_pretrained(folder / "untied")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(vllm_probes.FOLDER, str(folder))
        engines = [
            make_engine(folder / "tied", folder, index=0, host=vllm_probes.HOST),
            make_engine(folder / "tied", folder, index=1, host=vllm_probes.HOST, stream_interval=4),
            make_engine(folder / "untied", folder, index=2, host=vllm_probes.HOST),
        ]
        try:
            await open_all(*engines)
            pair, alone = await Trainer.connect(engines[:2], tied), await Trainer.connect(engines[2:], untied)
            yield Fleet(pair, alone, folder)
            pair.close()
            alone.close()
        finally:
            async with asyncio.TaskGroup() as tasks:
                for engine in engines:
                    tasks.create_task(engine.close())


def decoding(max_tokens: int, temperature: float = 1.0, stop_token_ids: list[int] | None = None) -> Decoding:
    """How to sample."""
    return Decoding(temperature=temperature, max_tokens=max_tokens, stop_token_ids=stop_token_ids or [])


async def gap(trainer: Trainer, engine: VllmEngine) -> float:
    """How far the engine's log-probabilities are from the trainer's model's."""
    scores = torch.tensor(await engine.score(TEXT))
    return float((scores - reference(trainer.model, TEXT)).abs().max())


# The weights that are served -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tied", "parts"),
    [
        (True, ["embed_tokens"]),
        (True, ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]),
        (True, ["mlp"]),
        (True, ["norm"]),
        (False, ["embed_tokens"]),
        (False, ["lm_head"]),
        (False, ["self_attn"]),
        (False, ["mlp"]),
        (False, ["norm"]),
        (False, ["bias"]),
    ],
    ids=lambda value: ("tied" if value else "untied") if isinstance(value, bool) else value[0],
)
async def test_each_group_of_parameters_arrives(fleet: Fleet, tied: bool, parts: list[str]) -> None:
    """After a push that changes one group of parameters every engine computes with the changed ones, at its next token.

    So it is when the update was staged beside generation, when it was received into place while the engines stood
    still, and when vLLM reloaded what was staged, as it does for models that have no twin.
    """
    trainer = fleet.tied if tied else fleet.untied

    async def stage() -> None:
        await trainer.put_in_place(await trainer.stage(trainer.tensors()))

    for push in (stage, trainer.push, partial(reloading, fleet, stage)):
        perturb(trainer.model, *parts)
        before = [await gap(trainer, engine) for engine in trainer.engines]
        assert min(before) > 10 * TOLERANCE
        await push()
        after = [await gap(trainer, engine) for engine in trainer.engines]
        assert max(after) < TOLERANCE


async def reloading(fleet: Fleet, push: Any) -> None:
    """``push`` with vLLM's own reload, in place."""
    order = fleet.folder / vllm_probes.DENY_TWINS
    order.touch()
    await push()
    order.unlink()


@pytest.mark.parametrize(
    ("tied", "parts"),
    [
        (True, ["proj"]),
        (True, ["q_proj"]),
        (True, ["gate_proj", "v_proj"]),
        (False, ["proj"]),
        (False, ["lm_head", "down_proj"]),
    ],
    ids=lambda value: ("tied" if value else "untied") if isinstance(value, bool) else value[0],
)
async def test_adapters_alone_are_added_to_the_models_files(fleet: Fleet, tied: bool, parts: list[str]) -> None:
    """After updates of two halves a weight the engines compute with base + B A, parts of fused layers and biases too.

    Each update starts from the files again: nothing of the weights that were served before is left. It may be staged,
    and where the model has no twin, vLLM reloads it.
    """
    trainer = fleet.tied if tied else fleet.untied
    perturb(trainer.model, "")
    await trainer.push()
    base = tiny_model(tied=tied).state_dict()

    async def stage(halves: dict[str, torch.Tensor]) -> None:
        await trainer.put_in_place(await trainer.stage(halves))

    async def reload(halves: dict[str, torch.Tensor]) -> None:
        await reloading(fleet, partial(stage, halves))

    for push in (stage, reload, trainer.push):
        trainer.model.load_state_dict(base)
        halves = add_adapters(trainer.model, *parts)
        before = [await gap(trainer, engine) for engine in trainer.engines]
        assert min(before) > 10 * TOLERANCE
        await push(halves)
        assert max([await gap(trainer, engine) for engine in trainer.engines]) < TOLERANCE


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda halves: dict(list(halves.items())[1:]), "has no other"),
        (lambda halves: {name.replace("q_proj", "w_proj"): half for name, half in halves.items()}, "w_proj"),
        (lambda halves: {name: half * torch.inf for name, half in halves.items()}, "not finite"),
    ],
    ids=["half", "unknown", "inf"],
)
async def test_adapters_that_do_not_fit_are_refused(fleet: Fleet, spoil: Any, told: str) -> None:
    """The load fails with the reason, and the next one is whole."""
    trainer = fleet.untied
    (engine,) = trainer.engines
    trainer.model.load_state_dict(tiny_model(tied=False).state_dict())
    halves = add_adapters(trainer.model, "q_proj")
    await engine.pause()
    _, failure = await trainer.send(spoil(halves))
    assert told in str(failure)
    await trainer.push(halves)
    assert await gap(trainer, engine) < TOLERANCE


async def test_tied_head_is_stale_without_repacking(fleet: Fleet) -> None:
    """What the re-packing is for: a reload without it reports success and the tied head keeps the old weights.

    A twin does without: both packed copies are made of its one tensor.
    """
    trainer, order = fleet.tied, fleet.folder / vllm_probes.FORGET_REPACKING
    order.touch()
    perturb(trainer.model, "embed_tokens")
    await trainer.push()
    stale = [await gap(trainer, engine) for engine in trainer.engines]
    await trainer.put_in_place(await trainer.stage(trainer.tensors()))
    twins = [await gap(trainer, engine) for engine in trainer.engines]
    order.unlink()
    await trainer.push()
    whole = [await gap(trainer, engine) for engine in trainer.engines]
    assert min(stale) > 10 * TOLERANCE
    assert max(twins + whole) < TOLERANCE


async def test_what_is_staged_is_not_served_before_its_load(fleet: Fleet) -> None:
    """Engines go on sampling with the old weights while new ones arrive and wait, and with the new ones after."""
    trainer = fleet.tied
    readable(trainer.model, 0)
    first = await trainer.push()
    streams = [Stream() for _ in trainer.engines]
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        for engine, stream in zip(trainer.engines, streams, strict=True):
            tasks.create_task(consume(engine, PROMPT, LONG, stream))
            await stream.has(1)
        readable(trainer.model, 1)
        update = await trainer.stage(trainer.tensors())
        arrived = [len(stream.token_ids) for stream in streams]
        for stream, num_tokens in zip(streams, arrived, strict=True):
            await stream.has(num_tokens + 4)
        await trainer.put_in_place(update)
    for stream, num_tokens in zip(streams, arrived, strict=True):
        assert stream.versions == [first + token - FIRST_READABLE for token in stream.token_ids]
        assert set(stream.versions[: num_tokens + 4]) == {first}
        assert stream.versions[-1] == first + 1


async def test_staged_update_that_does_not_fit_fails_its_load(fleet: Fleet) -> None:
    """The transfer of an update that lacks a tensor succeeds; its load fails and says why, and the next is whole."""
    trainer = fleet.untied
    (engine,) = trainer.engines
    tensors = trainer.tensors()
    update = await trainer.stage({name: tensor for name, tensor in tensors.items() if "k_proj" not in name})
    await engine.pause()
    with pytest.raises(WeightSyncError, match="qkv_proj"):
        await engine.load(update)
    perturb(trainer.model, "")
    await trainer.put_in_place(await trainer.stage(trainer.tensors()))
    assert await gap(trainer, engine) < TOLERANCE


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda tensors: tensors | {"model.surprise.weight": torch.ones(3)}, "surprise"),
        (lambda tensors: {n: t for n, t in tensors.items() if n != "model.norm.weight"}, "model.norm.weight"),
        (lambda tensors: {n: t for n, t in tensors.items() if "layers.1.self_attn.k_proj" not in n}, "qkv_proj"),
        (lambda tensors: tensors | {"model.norm.weight": torch.full((64,), torch.nan)}, "not finite"),
        (lambda tensors: tensors | {"model.norm.weight": torch.ones(63)}, ""),
    ],
    ids=["unknown", "missing", "half of a fused one", "nan", "shape"],
)
async def test_update_that_does_not_fit_is_refused_and_the_next_one_is_whole(
    fleet: Fleet, spoil: Any, told: str
) -> None:
    """A bad update fails the load and says why; nothing is served until a good one, which leaves no trace of it."""
    trainer = fleet.untied
    (engine,) = trainer.engines
    await engine.pause()
    _, failure = await trainer.send(spoil(trainer.tensors()))
    assert failure is not None
    assert told in str(failure)
    with pytest.raises(EngineError, match="serves nothing until a load succeeds"):
        await sample(engine, PROMPT, decoding(1))
    perturb(trainer.model, "")
    await trainer.push()
    assert await gap(trainer, engine) < TOLERANCE


# The log-probabilities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
async def test_sampled_logprobs_are_the_models(fleet: Fleet, temperature: float) -> None:
    """A sampled token's log-probability is log_softmax(logits / T) of the weights served, before and after a push."""
    for trainer in (fleet.tied, fleet.untied):
        for _ in range(2):
            for engine in trainer.engines:
                stream = await sample(engine, PROMPT, decoding(40, temperature))
                expected = reference(trainer.model, PROMPT + stream.token_ids, temperature)[len(PROMPT) - 1 :]
                assert float((torch.tensor(stream.logprobs) - expected).abs().max()) < TOLERANCE
            perturb(trainer.model, "")
            await trainer.push()


async def test_score_does_not_wait_for_streams(fleet: Fleet) -> None:
    """A score is computed while as many streams as the engine runs, and more, are under way."""
    engine = fleet.tied.engines[0]
    streams = [Stream() for _ in range(2 * MAX_NUM_SEQS)]
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(consume(engine, PROMPT, LONG, stream)) for stream in streams]
        await streams[0].has(1)
        await engine.score(TEXT)
        assert not any(task.done() for task in running)
        for task in running:
            task.cancel()


# The versions ---------------------------------------------------------------------------------------------------------


class SlowConsumer:
    """Takes a chunk and does not look again until it is told to."""

    def __init__(self, engine: VllmEngine) -> None:
        self.stream = Stream()
        self._engine = engine
        self._looks = asyncio.Semaphore(1)

    async def consume(self) -> None:
        """Until the stream ends."""
        async with aclosing(self._engine.generate(PROMPT, decoding(LONG))) as chunks:
            async for chunk in chunks:
                self.stream.chunks.append(chunk)
                await self._looks.acquire()

    def look(self, times: int = 1) -> None:
        """Take so many chunks more."""
        for _ in range(times):
            self._looks.release()


async def consume(engine: VllmEngine, prompt: list[int], max_tokens: int, stream: Stream) -> None:
    """One stream to its end, watched from outside."""
    async with aclosing(engine.generate(prompt, decoding(max_tokens))) as chunks:
        await stream.consume(chunks)


async def test_every_token_has_the_version_that_sampled_it(fleet: Fleet) -> None:
    """Each token says by itself which version sampled it, and is stamped so.

    Over six pushes into running streams, with quick and slow consumers, on an engine that streams every token and one
    that streams every fourth. The slow ones look at every second push only, so that versions pile up in one output.
    """
    trainer = fleet.tied
    readable(trainer.model, 0)
    first = await trainer.push()
    quick = [(engine, Stream()) for engine in trainer.engines]
    slow = [SlowConsumer(engine) for engine in trainer.engines]

    async def pause_after(engine: VllmEngine, stream: Stream, num_tokens: int) -> None:
        await stream.has(num_tokens)
        await engine.pause()

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        for engine, stream in quick:
            tasks.create_task(consume(engine, PROMPT, LONG, stream))
        for consumer in slow:
            tasks.create_task(consumer.consume())
        for number in range(1, 7):
            async with asyncio.TaskGroup() as pauses:
                for engine, stream in quick:
                    pauses.create_task(pause_after(engine, stream, number * 12))
            readable(trainer.model, number)
            await trainer.push()
            for consumer in slow:
                consumer.look(number % 2)
        for consumer in slow:
            consumer.look(LONG)
    for stream in [stream for _, stream in quick] + [consumer.stream for consumer in slow]:
        assert stream.versions == [first + token - FIRST_READABLE for token in stream.token_ids]
        assert len(stream.token_ids) == LONG
        assert sorted(set(stream.versions)) == list(range(first, first + 7))
        assert [chunk.finish for chunk in stream.chunks] == [None] * (len(stream.chunks) - 1) + ["length"]


@torch.no_grad()
def replayed(model: Any, weights: dict[int, Any], prompt: list[int], stream: Stream) -> torch.Tensor:
    """Log-probabilities of the stream's tokens where each version read what it read, and the cache was kept."""
    from transformers import DynamicCache

    cache, read, logprobs = DynamicCache(config=model.config), prompt, []
    for token, version in zip(stream.token_ids, stream.versions, strict=True):
        model.load_state_dict(weights[version])
        logits = model(input_ids=torch.tensor([read]), past_key_values=cache, use_cache=True).logits[0, -1]
        logprobs.append(logits.log_softmax(-1)[token])
        read = [token]
    return torch.stack(logprobs)


async def test_kept_cache_is_that_of_the_versions_that_read(fleet: Fleet) -> None:
    """After in-flight pushes a token is sampled from the new weights over the keys and values of the old ones.

    The recorded log-probabilities are those of a replay that keeps the cache, and not those that any one version gives.
    """
    trainer = fleet.tied
    trainer.model.load_state_dict(tiny_model(tied=True).state_dict())
    weights = {await trainer.push(): deepcopy(trainer.model.state_dict())}
    streams = [Stream() for _ in trainer.engines]
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        for engine, stream in zip(trainer.engines, streams, strict=True):
            tasks.create_task(consume(engine, TEXT, 500, stream))
            await stream.has(1)
        for _ in range(3):
            perturb(trainer.model, "")
            weights[trainer.version + 1] = deepcopy(trainer.model.state_dict())
            await trainer.put_in_place(await trainer.stage(trainer.tensors()))
    scratch = tiny_model(tied=True)
    for stream in streams:
        recorded = torch.tensor(stream.logprobs)
        assert len(set(stream.versions)) > 1
        assert float((recorded - replayed(scratch, weights, TEXT, stream)).abs().max()) < TOLERANCE
        fresh = reference(trainer.model, TEXT + stream.token_ids)[len(TEXT) - 1 :]
        last = torch.tensor(stream.versions) == trainer.version
        assert float((recorded - fresh)[last].abs().max()) > 10 * TOLERANCE, "the cache was not recomputed"


async def test_request_that_sampled_nothing_is_computed_anew(fleet: Fleet) -> None:
    """A request that reached vLLM right before a pause, with a prompt that is cached, reads no KV of an old version."""
    trainer = fleet.tied
    prompt = [17 + number % 200 for number in range(300)]
    for _ in range(MAX_TRIES):
        trainer.model.load_state_dict(tiny_model(tied=True).state_dict())
        version = await trainer.push()
        await sample(trainer.engines[0], prompt, decoding(1))
        stream = await requested_before_a_pause(fleet, prompt, 20)
        if stream.versions[0] > version:  # else the core took it a step before the pause, so it had sampled something
            break
    assert stream.versions == [version + 1] * 20
    expected = reference(trainer.model, prompt + stream.token_ids)[len(prompt) - 1 :]
    assert float((torch.tensor(stream.logprobs) - expected).abs().max()) < TOLERANCE


async def requested_before_a_pause(fleet: Fleet, prompt: list[int], max_tokens: int) -> Stream:
    """A request and a pause that wait before a stopped core together, in this order; then other weights."""
    trainer, stream = fleet.tied, Stream()
    engine = trainer.engines[0]
    core, asked = core_process(engine), fleet.folder / vllm_probes.PAUSE_ASKED
    asked.unlink()
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        core.suspend()
        tasks.create_task(consume(engine, prompt, max_tokens, stream))
        await asyncio.sleep(0)
        pausing = tasks.create_task(engine.pause())
        while not asked.exists():  # noqa: ASYNC110 -- the host says it by a file
            await asyncio.sleep(0.01)
        core.resume()
        await pausing
        perturb(trainer.model, "")
        await trainer.push()
    return stream


async def test_new_request_reads_no_older_prefix_cache(fleet: Fleet) -> None:
    """A prompt that older weights have cached is computed anew after a push, and is cached again for the next.

    So it is too when a trainer that was started again makes other weights of the same version.
    """
    trainer = fleet.tied
    engine = trainer.engines[0]
    prompt = [30 + number % 100 for number in range(300)]
    for version in (trainer.version + 1, trainer.version + 2, trainer.version + 2):
        await sample(engine, prompt, decoding(1))
        perturb(trainer.model, "")
        trainer.version = version - 1
        await trainer.push()
        for _ in range(2):
            stream = await sample(engine, prompt, decoding(20))
            expected = reference(trainer.model, prompt + stream.token_ids)[len(prompt) - 1 :]
            assert float((torch.tensor(stream.logprobs) - expected).abs().max()) < TOLERANCE


# Requests -------------------------------------------------------------------------------------------------------------


async def test_only_the_given_stop_tokens_stop(fleet: Fleet) -> None:
    """A stream ends at a stop token and keeps it; the model's own end token, if not among them, does not stop it."""
    trainer = fleet.untied
    (engine,) = trainer.engines
    readable(trainer.model, 0)
    await trainer.push()
    stopped = await sample(engine, PROMPT, decoding(8, stop_token_ids=[3, FIRST_READABLE]))
    assert stopped.token_ids == [FIRST_READABLE]
    assert stopped.chunks[-1].finish == "stop"
    trainer.model.get_output_embeddings().weight.data[FIRST_READABLE, 0] = 0.1
    trainer.model.get_output_embeddings().weight.data[trainer.model.config.eos_token_id, 0] = 4
    await trainer.push()
    ends = await sample(engine, PROMPT, decoding(8))
    assert ends.token_ids == [trainer.model.config.eos_token_id] * 8
    assert ends.chunks[-1].finish == "length"


async def test_context_bounds_a_stream(fleet: Fleet) -> None:
    """A stream ends with ``length`` where the context does; a prompt that leaves no room is refused."""
    (engine,) = fleet.untied.engines
    stream = await sample(engine, [7] * 1020, decoding(50))
    assert len(stream.token_ids) == 4
    assert stream.chunks[-1].finish == "length"
    with pytest.raises(EngineError, match="1024 tokens leaves no room"):
        await sample(engine, [7] * 1024, decoding(1))


@pytest.mark.parametrize("prompt", [[], [VOCAB_SIZE], [-1]])
async def test_tokens_that_the_model_does_not_know_are_refused(fleet: Fleet, prompt: list[int]) -> None:
    """An empty prompt, or an id outside the vocabulary, is one request's error and not the end of the core."""
    (engine,) = fleet.untied.engines
    with pytest.raises(EngineError, match="token"):
        await sample(engine, prompt, decoding(1))
    with pytest.raises(EngineError, match="token"):
        await engine.score(prompt)
    assert len((await sample(engine, PROMPT, decoding(3))).token_ids) == 3


async def test_closed_streams_leave_the_workers(fleet: Fleet) -> None:
    """Streams that are closed early, or whose consumer is cancelled while it submits, are not computed any further."""
    (engine,) = fleet.untied.engines
    for _ in range(MAX_NUM_SEQS):
        async with aclosing(engine.generate(PROMPT, decoding(LONG))) as chunks:
            await anext(chunks)
    for num_steps in range(MAX_NUM_SEQS):
        task = asyncio.ensure_future(sample(engine, PROMPT, decoding(LONG)))
        for _ in range(num_steps):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert engine.statistics().running == 0
    await sample(engine, PROMPT, decoding(3))  # a step in which the workers forget what has ended
    assert int((fleet.folder / vllm_probes.NUM_REQUESTS).read_text()) <= 1


# Processes ------------------------------------------------------------------------------------------------------------


async def test_output_of_the_processes_is_in_the_log(fleet: Fleet) -> None:
    """What the core prints stands in the engine's log; the host leads the group that all its processes are in."""
    for index, engine in enumerate([*fleet.tied.engines, *fleet.untied.engines]):
        text = (fleet.folder / f"engine-{index}.log").read_text()
        assert "EngineCore" in text
        host = host_process(engine)
        assert {os.getpgid(process.pid) for process in [host, *host.children(recursive=True)]} == {host.pid}


async def test_controller_reaches_no_vllm(fleet: Fleet) -> None:
    """The process that holds open engines has imported none of vLLM's modules."""
    assert len(fleet.tied.engines) == 2
    code = "import sys, prl.engines.vllm; assert not {'torch', 'vllm', 'transformers'} & sys.modules.keys()"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], check=True, timeout=DEADLINE_S)


async def test_killed_core_ends_its_streams_and_no_other(fleet: Fleet) -> None:
    """SIGKILL of a core: its open stream raises with the log's last lines, nothing of it is left, the other serves."""
    killed, other = fleet.tied.engines[1], fleet.tied.engines[0]
    host, core = host_process(killed), core_process(killed)
    family = [host, *host.children(recursive=True)]
    stream = Stream()

    async def consume_until_killed() -> None:
        with pytest.raises(EngineDeadError, match=r"last lines of .*engine-1\.log"):
            await consume(killed, PROMPT, LONG, stream)

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(consume_until_killed())
        await stream.has(1)
        await killed.pause()  # so that the stream is open for sure
        core.send_signal(signal.SIGKILL)
        assert "engine-1" in await killed.failed()
    assert killed.statistics().dead
    assert psutil.wait_procs(family, timeout=10)[1] == []
    assert len((await sample(other, PROMPT, decoding(5))).token_ids) == 5
    with pytest.raises(EngineDeadError):
        await killed.resume()
