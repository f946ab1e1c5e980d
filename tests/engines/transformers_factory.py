"""Tiny models, a transformers engine on one, the trainer's side of its weight group, and both as a contract subject."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from prl.adapters import names_of
from prl.config import EngineConfig
from prl.engines.base import Decoding, Engine
from prl.engines.transformers import TransformersEngine
from prl.transfer import GlooGroup
from prl.types import TensorSpec, TokenChunk, WeightGroup, WeightUpdate
from tests.engines.contract import Subject
from tests.engines.killed_sender import break_off

VOCAB_SIZE = 96
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
}


def tiny_model(*, tied: bool, seed: int = 0) -> Any:
    """A Qwen3 with tied embeddings, or a Llama with a head of its own and biases everywhere; far from uniform."""
    torch.manual_seed(seed)
    if tied:
        return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True)).eval()
    config = LlamaConfig(**SIZES, tie_word_embeddings=False, attention_bias=True, mlp_bias=True)
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def make_engine(model_dir: Path, log_dir: Path, *, index: int = 0, **config: Any) -> TransformersEngine:
    """An engine that is not open yet; ``config`` overrides fields of ``[engine]``."""
    settings = EngineConfig(
        **{"max_num_seqs": 8, "max_model_len": 1024, "kv_cache_gib": 0.1, "stream_interval": 1} | config
    )
    return TransformersEngine(index=index, model=str(model_dir), config=settings, seed=0, log_dir=log_dir)


class Publisher:
    """Rank 0 of a weight group with one engine: what the trainer is to it."""

    def __init__(self, engine: Engine, group: GlooGroup) -> None:
        self.engine, self._group = engine, group
        self.version = 0

    @classmethod
    async def connect(cls, engine: Engine, timeout_s: float = 60.0) -> Publisher:
        """Meet the engine."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        group = WeightGroup(transport="gloo", address="127.0.0.1", port=port, world_size=2, timeout_s=timeout_s)
        async with asyncio.TaskGroup() as tasks:
            joined = tasks.create_task(asyncio.to_thread(GlooGroup.join, group, 0))
            tasks.create_task(engine.connect(group, rank_offset=1))
        return cls(engine, joined.result())

    async def send(self, tensors: dict[str, torch.Tensor], manifest: list[TensorSpec] | None = None) -> list[Any]:
        """Send the next version while the paused engine loads it; returns what each side raised, or None."""
        manifest = manifest_of(tensors) if manifest is None else manifest
        update = WeightUpdate(version=self.version + 1, transport="gloo", manifest=manifest)
        failures: list[Any] = [None, None]

        async def side(number: int, work: Any) -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 -- returned
                failures[number] = error

        async with asyncio.TaskGroup() as tasks:
            sending = asyncio.to_thread(self._group.send, update.version, manifest, list(tensors.items()))
            tasks.create_task(side(0, sending))
            tasks.create_task(side(1, self.engine.load(update)))
        if failures == [None, None]:
            self.version = update.version
        return failures

    async def push(self, model: Any) -> int:
        """Pause, load, resume; returns the version that the engine now serves."""
        await self.engine.pause()
        assert await self.send(tensors_of(model)) == [None, None]
        await self.engine.resume()
        return self.version

    async def stage(self, model: Any) -> WeightUpdate:
        """Send the next version to an engine that goes on generating; what it is to load then."""
        tensors = tensors_of(model)
        update = WeightUpdate(version=self.version + 1, transport="gloo", manifest=manifest_of(tensors))
        assert await self.engine.stage(update)
        await asyncio.to_thread(self._group.send, update.version, update.manifest, list(tensors.items()))
        self.version = update.version
        return update

    def close(self) -> None:
        """Leave the group."""
        self._group.close()


def tensors_of(model: Any) -> dict[str, torch.Tensor]:
    """Every parameter once, under its canonical name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@torch.no_grad()
def add_adapters(model: Any, *parts: str) -> dict[str, torch.Tensor]:
    """Add to the weights whose names hold one of ``parts`` a product of rank 2; its halves by the wire's names."""
    halves = {}
    for name in [name for name, p in model.named_parameters() if p.ndim == 2 and any(part in name for part in parts)]:
        weight = model.get_parameter(name)
        down, up = 0.1 * torch.randn(2, weight.shape[1]), 0.5 * torch.randn(weight.shape[0], 2)
        weight += up @ down
        halves |= dict(zip(names_of(name), (down, up), strict=True))
    return halves


def manifest_of(tensors: dict[str, torch.Tensor]) -> list[TensorSpec]:
    """What a trainer would announce."""
    return [
        TensorSpec(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=list(tensor.shape))
        for name, tensor in tensors.items()
    ]


def decoding(
    temperature: float = 1.0, max_tokens: int = 16, stop_token_ids: list[int] | None = None, seed: int | None = None
) -> Decoding:
    """How to sample, with defaults."""
    return Decoding(temperature=temperature, max_tokens=max_tokens, stop_token_ids=stop_token_ids or [], seed=seed)


class Stream:
    """One stream folded up, with an event per token for those who wait."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.finishes: list[str | None] = []
        self._moved = asyncio.Condition()

    async def consume(self, chunks: AsyncIterator[TokenChunk]) -> Stream:
        """Fold every chunk."""
        async for chunk in chunks:
            async with self._moved:
                self.token_ids += chunk.token_ids
                self.logprobs += chunk.logprobs
                self.versions += [chunk.version] * len(chunk.token_ids)
                self.finishes.append(chunk.finish)
                self._moved.notify_all()
        return self

    async def until(self, version: int, count: int = 3) -> None:
        """Wait for ``count`` tokens of a version."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.versions.count(version) >= count)


async def sample(engine: Engine, token_ids: list[int], how: Decoding) -> Stream:
    """One stream to its end."""
    async with closing_stream(engine, token_ids, how) as chunks:
        return await Stream().consume(chunks)


@asynccontextmanager
async def closing_stream(engine: Engine, token_ids: list[int], how: Decoding) -> AsyncIterator[Any]:
    """``contextlib.aclosing`` over ``generate``."""
    chunks = engine.generate(token_ids, how)
    try:
        yield chunks
    finally:
        await chunks.aclose()


@torch.no_grad()
def reference(model: Any, prompt: list[int], sampled: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probability of each sampled token, by one plain forward pass."""
    logits = model(input_ids=torch.tensor([prompt + sampled]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(sampled)[:, None])[:, 0]


class TransformersSubject(Subject):
    """A tied model; every transfer perturbs all of it."""

    def __init__(self, publisher: Publisher, child: Callable[[], int], model: Any) -> None:
        super().__init__(publisher.engine, prompt=[5, 6, 7, 8], max_num_seqs=4, long=700)
        self._publisher, self._child, self._model = publisher, child, model

    async def transfer(self, version: int) -> None:
        """Perturb the model and send it."""
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        await self._send(version, tensors_of(self._model))

    async def failing_transfer(self, version: int) -> None:
        """Leave a tensor out."""
        tensors = tensors_of(self._model)
        del tensors["model.norm.weight"]
        await self._send(version, tensors)

    async def stage(self, version: int) -> WeightUpdate:
        """Perturb the model and send it beside generation."""
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        self._publisher.version = version - 1
        return await self._publisher.stage(self._model)

    async def break_off(self, version: int) -> None:
        """Of a sender in a process of its own, which is killed."""
        await break_off(self.engine, manifest_of(tensors_of(self._model)), version)

    async def reconnect(self) -> None:
        """As at the start."""
        self._publisher.close()
        self._publisher = await Publisher.connect(self.engine)

    async def kill(self) -> None:
        """SIGKILL of the child."""
        os.kill(self._child(), signal.SIGKILL)

    def close(self) -> None:
        """Leave the weight group."""
        self._publisher.close()

    async def _send(self, version: int, tensors: dict[str, torch.Tensor]) -> None:
        if not self.engine.statistics().paused:  # then the engine refuses, and nobody would meet the sender
            await self.engine.load(WeightUpdate(version=version, transport="gloo", manifest=[]))
        self._publisher.version = version - 1
        _, loaded = await self._publisher.send(tensors)
        if loaded is not None:
            raise loaded


@asynccontextmanager
async def subject(folder: Path) -> AsyncIterator[Subject]:
    """An engine on a tiny model, streaming every second step."""
    model = tiny_model(tied=True)
    model.save_pretrained(folder / "model")
    engine = make_engine(folder / "model", folder, max_num_seqs=4, stream_interval=2)
    await engine.open()
    publisher = await Publisher.connect(engine)
    made = TransformersSubject(publisher, lambda: child_pid(engine), model)
    yield made
    made.close()
    await engine.close()


def child_pid(engine: TransformersEngine) -> int:
    """The engine's child."""
    child = engine._link._child
    assert child is not None
    return child.pid
