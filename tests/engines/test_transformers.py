from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import torch
from transformers import DynamicCache

from prl.errors import EngineDeadError, EngineError, WeightSyncError
from prl.types import TensorSpec, WeightUpdate
from tests.engines.transformers_factory import (
    VOCAB_SIZE,
    Publisher,
    Stream,
    add_adapters,
    child_pid,
    closing_stream,
    decoding,
    make_engine,
    manifest_of,
    reference,
    sample,
    tensors_of,
    tiny_model,
)

PROMPT = [1 + i % 90 for i in range(70)]  # longer than two pages of KV cache
TOLERANCE = 1e-4
module_loop = pytest.mark.asyncio(loop_scope="module")


class Setup:
    """An open engine, the model that it serves, and the trainer's side."""

    def __init__(self, model: Any, publisher: Publisher) -> None:
        self.model, self.publisher, self.engine = model, publisher, publisher.engine

    async def renew(self, seed: int) -> Any:
        """Serve fresh random weights, so that no test depends on another."""
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        await self.publisher.push(self.model)
        return self.model


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["tied", "untied"])
async def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Setup]:
    """Tied and streaming each token, untied and streaming every third step."""
    tied = request.param == "tied"
    folder = tmp_path_factory.mktemp(request.param)
    model = tiny_model(tied=tied)
    model.save_pretrained(folder / "model")
    engine = make_engine(folder / "model", folder, stream_interval=1 if tied else 3)
    await engine.open()
    publisher = await Publisher.connect(engine)
    yield Setup(model, publisher)
    publisher.close()
    await engine.close()


def gap(expected: torch.Tensor, actual: list[float]) -> float:
    """The largest difference."""
    return float((expected - torch.tensor(actual)).abs().max())


@module_loop
async def test_checkpoint_is_version_0(setup: Setup) -> None:
    """Before any load the checkpoint's weights are served and stamped 0."""
    assert setup.publisher.version == 0
    stream = await sample(setup.engine, PROMPT, decoding())
    assert stream.versions == [0] * 16
    assert gap(reference(setup.model, PROMPT, stream.token_ids), stream.logprobs) < TOLERANCE


@module_loop
async def test_logprobs_are_those_of_the_tempered_distribution(setup: Setup) -> None:
    """Streams of several temperatures at once each report log_softmax(logits / T), also after an update."""
    temperatures = [0.5, 1.0, 2.0]
    for seed in (1, 2):
        model = await setup.renew(seed)
        streams = await asyncio.gather(*(sample(setup.engine, PROMPT, decoding(t, 40)) for t in temperatures))
        for temperature, stream in zip(temperatures, streams, strict=True):
            assert len(stream.token_ids) == 40
            assert gap(reference(model, PROMPT, stream.token_ids, temperature), stream.logprobs) < TOLERANCE


@module_loop
async def test_greedy_beside_sampled(setup: Setup) -> None:
    """Temperature 0 takes the most likely token, with its log-probability at 1, while other streams are sampled."""
    model = await setup.renew(3)
    greedy, _ = await asyncio.gather(
        sample(setup.engine, PROMPT, decoding(0.0, 20)), sample(setup.engine, PROMPT, decoding(1.0, 20))
    )
    expected = list(PROMPT)
    with torch.no_grad():
        for _ in range(20):
            expected.append(int(model(input_ids=torch.tensor([expected])).logits[0, -1].argmax()))
    assert greedy.token_ids == expected[len(PROMPT) :]
    assert gap(reference(model, PROMPT, greedy.token_ids), greedy.logprobs) < TOLERANCE


@module_loop
async def test_seeded_stream_repeats(setup: Setup) -> None:
    """A stream with a seed gives the same tokens alone and in company, another seed gives others."""
    await setup.renew(13)
    alone = await sample(setup.engine, PROMPT, decoding(seed=7))
    crowd = [sample(setup.engine, PROMPT[number:], decoding(seed=number % 9)) for number in range(12)]
    again, *_, other = await asyncio.gather(sample(setup.engine, PROMPT, decoding(seed=7)), *crowd)
    assert again.token_ids == alone.token_ids
    assert other.token_ids != alone.token_ids
    unseeded = await asyncio.gather(*(sample(setup.engine, PROMPT, decoding()) for _ in range(2)))
    assert unseeded[0].token_ids != unseeded[1].token_ids


@module_loop
async def test_prompts_longer_than_a_step(setup: Setup) -> None:
    """A prompt that takes several steps to read is continued rightly, and so are the streams beside it."""
    model = await setup.renew(14)
    long = [1 + i % 89 for i in range(900)]
    prompts = [PROMPT, long, PROMPT[:9], long[1:]]
    streams = await asyncio.gather(*(sample(setup.engine, prompt, decoding(max_tokens=30)) for prompt in prompts))
    for prompt, stream in zip(prompts, streams, strict=True):
        assert gap(reference(model, prompt, stream.token_ids), stream.logprobs) < TOLERANCE


@module_loop
async def test_stop_tokens(setup: Setup) -> None:
    """Any of several stop tokens ends the stream, is kept, and counts as stop even on the last allowed token."""
    await setup.renew(4)
    whole = (await sample(setup.engine, PROMPT, decoding(0.0, 12))).token_ids
    last = whole.index(whole[-1])
    stopped = await sample(setup.engine, PROMPT, decoding(0.0, 12, [VOCAB_SIZE - 1, whole[-1]]))
    assert stopped.token_ids == whole[: last + 1]
    assert stopped.finishes[-1] == "stop"
    at_the_limit = await sample(setup.engine, PROMPT, decoding(0.0, last + 1, [whole[-1]]))
    assert at_the_limit.finishes[-1] == "stop"
    assert (await sample(setup.engine, PROMPT, decoding(0.0, 12))).finishes[-1] == "length"


@module_loop
async def test_chunks_follow_the_stream_interval(setup: Setup) -> None:
    """A lone stream gets stream_interval tokens at a time, more where they were late; only its last chunk ends it."""
    chunks = []
    async with closing_stream(setup.engine, PROMPT, decoding(max_tokens=10)) as stream:
        async for chunk in stream:
            chunks.append(chunk)  # noqa: PERF401 -- an async comprehension reads worse
    interval = setup.engine._config.stream_interval
    assert sum(len(chunk.token_ids) for chunk in chunks) == 10
    assert len(chunks) <= 10 // interval + 2
    assert [chunk.finish for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


@module_loop
async def test_prompts_that_cannot_be_served(setup: Setup) -> None:
    """A prompt one short of the context gets one token; one that fills it, has no or unknown tokens, is refused."""
    stream = await sample(setup.engine, [5] * 1023, decoding(max_tokens=100))
    assert (len(stream.token_ids), stream.finishes) == (1, ["length"])
    for prompt, message in [([5] * 1024, "max_model_len"), ([], "no tokens"), ([VOCAB_SIZE], "tokenizer")]:
        with pytest.raises(EngineError, match=message):
            await sample(setup.engine, prompt, decoding())
    assert setup.engine.statistics().running == 0


@module_loop
async def test_closing_a_stream_early_frees_it(setup: Setup) -> None:
    """With every slot taken, streams that wait are served once others are closed, not when those would have ended."""
    engine, clock = setup.engine, Stream()
    before = engine.statistics()
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        held = [
            await stack.enter_async_context(closing_stream(engine, PROMPT, decoding(max_tokens=900))) for _ in range(8)
        ]
        for chunks in held:
            await anext(chunks)
        clocking = tasks.create_task(clock.consume(held[0]))
        waiting = [tasks.create_task(sample(engine, PROMPT, decoding(max_tokens=5))) for _ in range(7)]
        for chunks in held[1:]:
            await chunks.aclose()
        assert [len((await task).token_ids) for task in waiting] == [5] * 7
        assert set(clock.finishes) <= {None}
        assert engine.statistics().running == 1
        clocking.cancel()
    after = engine.statistics()
    assert after.running == 0
    assert after.busy_s > before.busy_s


def legible(model: Any, token: int) -> dict[str, torch.Tensor]:
    """Weights that sample ``token`` whatever came before: the residual stream is constant and the head reads it."""
    tensors = {name: torch.zeros_like(tensor) for name, tensor in tensors_of(model).items()}
    tensors["model.norm.weight"] += 1
    tensors["model.embed_tokens.weight"][:, 0] = 1
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    head[token, 0] = 1000
    return tensors


@module_loop
async def test_version_stamps_are_exact(setup: Setup) -> None:
    """Across six updates in flight every token's stamp is the version whose weights sampled it; none is lost."""
    engine, publisher = setup.engine, setup.publisher

    async def push() -> None:
        await engine.pause()
        assert await publisher.send(legible(setup.model, (publisher.version + 1) % VOCAB_SIZE)) == [None, None]
        await engine.resume()

    await push()
    first, watched, slow = publisher.version, Stream(), Stream()
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        how = decoding(max_tokens=2000)
        slow_chunks = await stack.enter_async_context(closing_stream(engine, [7, 8], how))
        first_slow = await anext(slow_chunks)  # and then nothing is read of it until all updates are done
        chunks = await stack.enter_async_context(closing_stream(engine, [9], how))
        tasks.create_task(watched.consume(chunks))
        for _ in range(6):
            await watched.until(publisher.version)
            await push()
        await slow.consume(slow_chunks)
    slow.token_ids[:0], slow.versions[:0] = first_slow.token_ids, [first_slow.version] * len(first_slow.token_ids)
    for stream, prompt_length in ((watched, 1), (slow, 2)):
        assert stream.token_ids == [version % VOCAB_SIZE for version in stream.versions]
        assert set(stream.versions) == set(range(first, first + 7))
        assert stream.versions == sorted(stream.versions)
        assert len(stream.token_ids) == 1024 - prompt_length


@module_loop
async def test_sequences_in_flight_keep_their_cache(setup: Setup) -> None:
    """After an update, a stream goes on with the new weights over the keys and values that the old ones wrote."""
    old = await setup.renew(5)
    old_state = {name: tensor.clone() for name, tensor in old.state_dict().items()}
    stream = Stream()
    async with asyncio.TaskGroup() as tasks, closing_stream(setup.engine, PROMPT, decoding(max_tokens=400)) as chunks:
        consumer = tasks.create_task(stream.consume(chunks))
        await stream.until(setup.publisher.version)
        new = await setup.renew(6)
        await consumer
    cut = stream.versions.index(setup.publisher.version)
    before, after = stream.token_ids[:cut], stream.token_ids[cut:]
    written_by_old = tiny_model(tied=setup.model.config.tie_word_embeddings)
    written_by_old.load_state_dict(old_state)
    with torch.no_grad():
        cache = DynamicCache(config=new.config)
        written_by_old(input_ids=torch.tensor([PROMPT + before[:-1]]), past_key_values=cache, use_cache=True)
        ids = torch.tensor([[before[-1], *after[:-1]]])
        logits = new(input_ids=ids, past_key_values=cache, use_cache=True).logits[0]
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(after)[:, None])[:, 0]
    assert gap(expected, stream.logprobs[cut:]) < TOLERANCE
    assert gap(reference(new, PROMPT, stream.token_ids)[cut:], stream.logprobs[cut:]) > 10 * TOLERANCE


@module_loop
async def test_new_requests_never_use_an_older_versions_cache(setup: Setup) -> None:
    """While a stream with the same prompt is open across an update, a new request computes the prompt anew."""
    await setup.renew(7)
    async with closing_stream(setup.engine, PROMPT, decoding(max_tokens=900)) as open_stream:
        await anext(open_stream)
        new = await setup.renew(8)
        stream = await sample(setup.engine, PROMPT, decoding())
    assert gap(reference(new, PROMPT, stream.token_ids), stream.logprobs) < TOLERANCE


def parameter_groups(model: Any) -> dict[str, list[Any]]:
    """Parameters by role: ``layers.0.mlp.up_proj.weight`` belongs to ``mlp.up_proj.weight``."""
    groups: dict[str, list[Any]] = {}
    for name, parameter in model.named_parameters():
        role = name.removeprefix("model.")
        groups.setdefault(role.split(".", 2)[2] if role.startswith("layers.") else role, []).append(parameter)
    return groups


@module_loop
async def test_each_group_of_parameters_arrives(setup: Setup) -> None:
    """Perturbing one group at a time changes the model, and the engine scores and samples as the trainer's does."""
    model = await setup.renew(9)
    groups = parameter_groups(model)
    assert len(groups) == (13 if model.config.tie_word_embeddings else 19)
    score = reference(model, PROMPT[:1], PROMPT[1:])
    for name, parameters in groups.items():
        for parameter in parameters:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
        previous, score = score, reference(model, PROMPT[:1], PROMPT[1:])
        # A bias on the keys shifts all scores of a query alike, were it not for the rotation: small, not zero.
        assert (previous - score).abs().max() > TOLERANCE, f"{name} makes no difference"
        await setup.publisher.push(model)
        assert gap(score, await setup.engine.score(PROMPT)) < TOLERANCE, name
        stream = await sample(setup.engine, PROMPT, decoding(max_tokens=6))
        assert gap(reference(model, PROMPT, stream.token_ids), stream.logprobs) < TOLERANCE, name


@module_loop
async def test_adapters_alone_are_added_to_the_models_files(setup: Setup) -> None:
    """Updates of two halves a weight give base + B A, each from the files anew; halves that do not fit are refused."""
    base = tiny_model(tied=setup.model.config.tie_word_embeddings)
    setup.model.load_state_dict(base.state_dict())
    await setup.publisher.push(setup.model)
    for parts in (["proj"], ["proj"]):
        setup.model.load_state_dict(base.state_dict())
        halves = add_adapters(setup.model, *parts)
        assert gap(reference(setup.model, PROMPT[:1], PROMPT[1:]), await setup.engine.score(PROMPT)) > TOLERANCE
        await setup.engine.pause()
        assert await setup.publisher.send(halves) == [None, None]
        await setup.engine.resume()
        assert gap(reference(setup.model, PROMPT[:1], PROMPT[1:]), await setup.engine.score(PROMPT)) < TOLERANCE
    await setup.engine.pause()
    _, failure = await setup.publisher.send(dict(list(halves.items())[1:]))
    assert "has no other" in str(failure)
    _, failure = await setup.publisher.send({name: half * torch.inf for name, half in halves.items()})
    assert "not finite" in str(failure)
    await setup.publisher.push(setup.model)


@module_loop
async def test_what_is_staged_is_served_after_its_load(setup: Setup) -> None:
    """New weights that have arrived beside generation change nothing until they are loaded, and then everything."""
    model = await setup.renew(11)
    before = reference(model, PROMPT[:1], PROMPT[1:])
    for parameter in model.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    after = reference(model, PROMPT[:1], PROMPT[1:])
    assert gap(before, after.tolist()) > 10 * TOLERANCE
    update = await setup.publisher.stage(model)
    assert gap(before, await setup.engine.score(PROMPT)) < TOLERANCE
    await setup.engine.pause()
    await setup.engine.load(update)
    await setup.engine.resume()
    assert gap(after, await setup.engine.score(PROMPT)) < TOLERANCE


@module_loop
@pytest.mark.parametrize("setup", ["tied"], indirect=True)
async def test_tied_head_may_go_by_either_name(setup: Setup) -> None:
    """A manifest that calls the tied matrix lm_head.weight is the same manifest; both names at once are refused."""
    model = await setup.renew(10)
    tensors = tensors_of(model)
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight") + 0.1
    await setup.engine.pause()
    assert await setup.publisher.send(tensors) == [None, None]
    await setup.engine.resume()
    model.model.embed_tokens.weight.data.add_(0.1)
    assert gap(reference(model, PROMPT[:1], PROMPT[1:]), await setup.engine.score(PROMPT)) < TOLERANCE
    await setup.engine.pause()
    tensors["model.embed_tokens.weight"] = tensors["lm_head.weight"]
    failures = await setup.publisher.send(tensors)
    assert "tied" in str(failures[1])
    await setup.publisher.push(model)


def unfit(case: str, tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], list[TensorSpec]]:
    """Tensors and a manifest that the engine must refuse."""
    name = "model.norm.weight"
    match case:
        case "lacks":
            del tensors[name]
        case "does not have":
            tensors["model.extra.weight"] = torch.zeros(3)
        case "shape":
            tensors[name] = torch.zeros(31)
        case "finite":
            tensors[name] = tensors[name] * torch.nan
    return tensors, manifest_of(tensors)


@module_loop
@pytest.mark.parametrize("case", ["lacks", "does not have", "shape", "finite"])
async def test_failed_load_serves_nothing_until_a_load_succeeds(setup: Setup, case: str) -> None:
    """An unfit update fails on both sides at once; new streams are refused and open ones wait for a good load."""
    await setup.renew(11)
    engine, publisher, stream = setup.engine, setup.publisher, Stream()
    async with asyncio.TaskGroup() as tasks, closing_stream(engine, PROMPT, decoding(max_tokens=300)) as chunks:
        consumer = tasks.create_task(stream.consume(chunks))
        await stream.until(publisher.version)
        await engine.pause()
        tensors, manifest = unfit(case, tensors_of(setup.model))
        async with asyncio.timeout(5):
            sent, loaded = await publisher.send(tensors, manifest)
        assert isinstance(loaded, WeightSyncError)
        assert case in str(loaded)
        assert case == "finite" or isinstance(sent, WeightSyncError)
        with pytest.raises(EngineError, match=case):
            await engine.resume()
        sampled = engine.statistics().tokens_generated
        with pytest.raises(EngineError, match=case):
            await sample(engine, PROMPT, decoding())
        for _ in range(3):  # were the child not kept paused, it would take a step between two of these
            await engine.score(PROMPT)
        assert engine.statistics().tokens_generated == sampled
        assert engine.statistics().paused
        refused = publisher.version
        new = await setup.renew(12)
        await consumer
    assert set(stream.versions) == {refused, publisher.version}
    assert gap(reference(new, PROMPT[:1], PROMPT[1:]), await engine.score(PROMPT)) < TOLERANCE


@module_loop
async def test_pause_is_idempotent_and_load_needs_it(setup: Setup) -> None:
    """Nothing is sampled between pause and resume, however often each is called; a load without a pause is refused."""
    engine, stream = setup.engine, Stream()
    async with asyncio.TaskGroup() as tasks, closing_stream(engine, PROMPT, decoding(max_tokens=300)) as chunks:
        consumer = tasks.create_task(stream.consume(chunks))
        await stream.until(setup.publisher.version)
        await engine.pause()
        await engine.pause()
        sampled = engine.statistics().tokens_generated
        await engine.score(PROMPT)  # an exchange with the child: tokens sent before its answer would have been counted
        assert engine.statistics().tokens_generated == sampled
        await engine.resume()
        await engine.resume()
        await consumer
    assert len(stream.token_ids) == 300
    with pytest.raises(EngineError, match="must be paused"):
        await engine.load(WeightUpdate(version=99, transport="gloo", manifest=[]))


async def test_more_sequences_than_the_cache_holds(tmp_path: Path) -> None:
    """With memory for two full sequences, eight still run to their ends, and their log-probabilities are right."""
    model = tiny_model(tied=True)
    model.save_pretrained(tmp_path / "model")
    bytes_per_token = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, their size, float32
    engine = make_engine(
        tmp_path / "model", tmp_path, max_model_len=256, kv_cache_gib=2 * 256 * bytes_per_token / 2**30
    )
    try:
        await engine.open()
        streams = await asyncio.gather(*(sample(engine, PROMPT, decoding(max_tokens=120)) for _ in range(8)))
    finally:
        await engine.close()
    for stream in streams:
        assert len(stream.token_ids) == 120
        assert gap(reference(model, PROMPT, stream.token_ids), stream.logprobs) < TOLERANCE


async def test_killed_child_ends_every_stream_with_its_log(tmp_path: Path) -> None:
    """SIGKILL of the child: open streams, calls and failed() end within 5 s with the log's last lines."""
    tiny_model(tied=True).save_pretrained(tmp_path / "model")
    engine = make_engine(tmp_path / "model", tmp_path)
    await engine.open()
    try:
        with engine._log.open("a") as log:
            log.write("the last words of the child\n")
        streams = [Stream(), Stream()]
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            consumers = [
                tasks.create_task(failure_of(stream.consume(engine.generate(PROMPT, decoding(max_tokens=900)))))
                for stream in streams
            ]
            for stream in streams:
                await stream.until(0, count=1)
            await engine.pause()
            os.kill(child_pid(engine), signal.SIGKILL)
            async with asyncio.timeout(5):
                failures = [await consumer for consumer in consumers]
                reason = await engine.failed()
        for failure in [*failures, await failure_of(engine.score(PROMPT)), await failure_of(engine.pause())]:
            assert isinstance(failure, EngineDeadError)
            assert "SIGKILL" in str(failure)
            assert "the last words of the child" in str(failure)
        assert "SIGKILL" in reason
        assert engine.statistics().dead
    finally:
        await engine.close()
    await engine.close()


async def failure_of(work: Any) -> Exception | None:
    """What ``work`` raised."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 -- returned
        return error
    return None


async def test_child_that_does_not_move_is_killed(tmp_path: Path) -> None:
    """A stopped child sends no token for engine.token_timeout_s: its streams raise and it is gone."""
    tiny_model(tied=True).save_pretrained(tmp_path / "model")
    engine = make_engine(tmp_path / "model", tmp_path, token_timeout_s=1.0)
    await engine.open()
    try:
        child = psutil.Process(child_pid(engine))
        child.suspend()
        async with asyncio.timeout(10):
            with pytest.raises(EngineDeadError, match="token_timeout_s"):
                await sample(engine, PROMPT, decoding())
        assert not child.is_running()
    finally:
        await engine.close()


async def test_killed_controller_leaves_no_child(tmp_path: Path) -> None:
    """SIGKILL of the controller, with a stream open: the child is gone within 5 s."""
    tiny_model(tied=True).save_pretrained(tmp_path / "model")
    script = f"""
        import asyncio
        from pathlib import Path
        from prl.config import EngineConfig
        from prl.engines.base import Decoding
        from prl.engines.transformers import TransformersEngine

        async def main():
            model, log_dir = {str(tmp_path / "model")!r}, Path({str(tmp_path)!r})
            engine = TransformersEngine(index=0, model=model, config=EngineConfig(), seed=0, log_dir=log_dir)
            await engine.open()
            async for _ in engine.generate([1], Decoding(temperature=1, max_tokens=1000, stop_token_ids=[])):
                print(engine._link._child.pid, flush=True)
                await asyncio.Event().wait()

        asyncio.run(main())
    """
    controller = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", textwrap.dedent(script)), stdout=subprocess.PIPE
    )
    assert controller.stdout is not None
    async with asyncio.timeout(90):
        child = psutil.Process(int(await controller.stdout.readline()))
    controller.kill()
    await controller.wait()
    await asyncio.to_thread(child.wait, 5)
    assert not child.is_running()


async def test_child_that_cannot_start(tmp_path: Path) -> None:
    """What the child died of at its start is in the error; a child that is late is ended."""
    tiny_model(tied=True).save_pretrained(tmp_path / "model")
    engine = make_engine(tmp_path / "model", tmp_path, kv_cache_gib=1e-5)
    with pytest.raises(EngineDeadError, match=r"raise engine\.kv_cache_gib"):
        await engine.open()
    late = make_engine(tmp_path / "model", tmp_path, index=1, start_timeout_s=0.3)
    with pytest.raises(EngineError, match="start_timeout_s"):
        await late.open()
    assert late._link._child is not None
    assert late._link._child.returncode is not None
    with pytest.raises(EngineDeadError):
        await sample(late, PROMPT, decoding())


def test_controller_side_is_light() -> None:
    """Importing the engine reaches neither torch nor transformers."""
    code = "import sys, prl.engines.transformers; assert not {'torch', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
