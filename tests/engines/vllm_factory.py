"""Tiny models, vLLM engines on them, the trainer's side of their weight group, and one as a contract subject."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from prl.config import EngineConfig
from prl.engines.base import Decoding
from prl.engines.vllm import HOST, VllmEngine
from prl.process import free_port
from prl.transfer import GlooGroup
from prl.types import TensorSpec, WeightGroup, WeightUpdate
from tests.engines.contract import Stream, Subject
from tests.engines.killed_sender import break_off

VOCAB_SIZE = 320
MAX_NUM_SEQS = 4
FIRST_READABLE = 10
"""The token that weights of version 0 would sample, see ``readable``."""
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,  # vLLM's CPU attention has no kernel for less
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
}


def tiny_model(*, tied: bool) -> Any:
    """A Qwen3 with tied embeddings, or a Llama with a head of its own and biases everywhere; far from uniform."""
    torch.manual_seed(0)
    if tied:
        return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True)).eval()
    config = LlamaConfig(**SIZES, tie_word_embeddings=False, attention_bias=True, mlp_bias=True)
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@torch.no_grad()
def perturb(model: Any, *parts: str, by: float = 0.05) -> None:
    """Add noise to the parameters whose names hold one of ``parts``; at least one must."""
    chosen = [p for name, p in model.named_parameters() if any(part in name for part in parts)]
    assert chosen
    for parameter in chosen:
        parameter.add_(by * torch.randn_like(parameter))


@torch.no_grad()
def readable(model: Any, version: int) -> None:
    """Make the model sample the token ``FIRST_READABLE + version`` after anything, with probability 1 - 1e-10.

    The layers add nothing, and every embedding points along the first axis, so the last norm turns each of them into
    the same vector; along it only one token's logit is large. It does not matter whether the head is tied.
    """
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.fill_(1)
        else:
            parameter.zero_()
    for matrix in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
        matrix[:, 0] = 0.1
        matrix[FIRST_READABLE + version, 0] = 4


@torch.no_grad()
def reference(model: Any, token_ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probability of each token after the first, by one plain forward pass."""
    logits = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0, :-1]
    return (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(token_ids[1:])[:, None])[:, 0]


def make_engine(
    model_dir: Path, log_dir: Path, *, index: int = 0, host: str = HOST, cores: list[int] | None = None, **config: Any
) -> VllmEngine:
    """An engine that is not open yet; ``config`` overrides fields of ``[engine]``."""
    settings = EngineConfig(
        **{"max_num_seqs": MAX_NUM_SEQS, "max_model_len": 1024, "kv_cache_gib": 0.1, "stream_interval": 1} | config
    )
    return VllmEngine(
        index=index,
        model=str(model_dir),
        config=settings,
        transport="gloo",
        seed=0,
        log_dir=log_dir,
        cores=cores,
        host=host,
    )


async def open_all(*engines: VllmEngine) -> None:
    """Open side by side."""
    async with asyncio.TaskGroup() as tasks:
        for engine in engines:
            tasks.create_task(engine.open())


def manifest_of(tensors: dict[str, torch.Tensor]) -> list[TensorSpec]:
    """What the sender announces."""
    return [
        TensorSpec(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=list(tensor.shape))
        for name, tensor in tensors.items()
    ]


class Trainer:
    """Rank 0 of a weight group, with the model whose weights the engines serve."""

    def __init__(self, engines: list[VllmEngine], model: Any, group: GlooGroup) -> None:
        self.engines, self.model, self._group = engines, model, group
        self.version = 0

    @classmethod
    async def connect(cls, engines: list[VllmEngine], model: Any, timeout_s: float = 30.0) -> Trainer:
        """Meet the engines."""
        port, world_size = free_port("127.0.0.1"), 1 + sum(engine.num_workers for engine in engines)
        group = WeightGroup(
            transport="gloo", address="127.0.0.1", port=port, world_size=world_size, timeout_s=timeout_s
        )
        async with asyncio.TaskGroup() as tasks:
            joined = tasks.create_task(asyncio.to_thread(GlooGroup.join, group, 0))
            rank = 1
            for engine in engines:
                tasks.create_task(engine.connect(group, rank))
                rank += engine.num_workers
        return cls(engines, model, joined.result())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every parameter once, under its canonical name."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    async def send(self, tensors: dict[str, torch.Tensor], *, sent_version: int | None = None) -> list[Any]:
        """Send the next version while the paused engines load it; what the sender and each engine raised, or None."""
        manifest = manifest_of(tensors)
        version = self.version + 1
        update = WeightUpdate(version=version, transport="gloo", manifest=manifest)
        failures: list[Any] = [None] * (1 + len(self.engines))

        async def side(number: int, work: Any) -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 -- returned
                failures[number] = error

        async with asyncio.TaskGroup() as tasks:
            sending = asyncio.to_thread(self._group.send, sent_version or version, manifest, list(tensors.items()))
            tasks.create_task(side(0, sending))
            for number, engine in enumerate(self.engines, start=1):
                tasks.create_task(side(number, engine.load(update)))
        if not any(failures):
            self.version = version
        return failures

    async def push(self, tensors: dict[str, torch.Tensor] | None = None) -> int:
        """Pause, load, resume on every engine; the version they now serve."""
        await self.everywhere("pause")
        failures = await self.send(tensors or self.tensors())
        assert not any(failures), failures
        await self.everywhere("resume")
        return self.version

    async def stage(self, tensors: dict[str, torch.Tensor]) -> WeightUpdate:
        """Send the next version to engines that go on generating; what they are to load then."""
        update = WeightUpdate(version=self.version + 1, transport="gloo", manifest=manifest_of(tensors))
        for engine in self.engines:
            assert await engine.stage(update)
        await asyncio.to_thread(self._group.send, update.version, update.manifest, list(tensors.items()))
        self.version = update.version
        return update

    async def put_in_place(self, update: WeightUpdate) -> None:
        """Pause, load what is staged, resume."""
        await self.everywhere("pause")
        async with asyncio.TaskGroup() as tasks:
            for engine in self.engines:
                tasks.create_task(engine.load(update))
        await self.everywhere("resume")

    async def everywhere(self, call: str) -> None:
        """The same call on every engine, side by side."""
        async with asyncio.TaskGroup() as tasks:
            for engine in self.engines:
                tasks.create_task(getattr(engine, call)())

    def close(self) -> None:
        """Leave the group."""
        self._group.close()


async def sample(engine: VllmEngine, prompt: list[int], decoding: Decoding) -> Stream:
    """One stream to its end."""
    stream = Stream()
    async with aclosing(engine.generate(prompt, decoding)) as chunks:
        await stream.consume(chunks)
    return stream


def host_process(engine: VllmEngine) -> psutil.Process:
    """The engine's host, which leads the group of all its processes."""
    child = engine._link._child
    assert child is not None
    return psutil.Process(child.pid)


def core_process(engine: VllmEngine) -> psutil.Process:
    """The core of vLLM, which the host started."""
    (core,) = host_process(engine).children()
    return core


class TrainedSubject(Subject):
    """An engine on a tied model that a ``Trainer`` holds.

    Args:
        trainer: of this engine alone.
        change: changes all weights of the model, for a version.
        kill: ends the engine.
    """

    def __init__(self, trainer: Trainer, change: Callable[[Any, int], None], kill: Callable[[], None]) -> None:
        (engine,) = trainer.engines
        super().__init__(engine, prompt=[5, 6, 7, 8], max_num_seqs=MAX_NUM_SEQS, long=900)
        self._trainer, self._change, self._kill = trainer, change, kill

    async def transfer(self, version: int) -> None:
        """Change the model and send it."""
        self._change(self._trainer.model, version)
        await self._send(version)

    async def failing_transfer(self, version: int) -> None:
        """Send another version than the engine was told."""
        await self._send(version, sent_version=version + 1)

    async def _send(self, version: int, sent_version: int | None = None) -> None:
        self._trainer.version = version - 1
        failures = await self._trainer.send(self._trainer.tensors(), sent_version=sent_version)
        if failures[1] is not None:
            raise failures[1]

    async def stage(self, version: int) -> WeightUpdate:
        """Change the model and send it beside generation."""
        self._change(self._trainer.model, version)
        self._trainer.version = version - 1
        return await self._trainer.stage(self._trainer.tensors())

    async def break_off(self, version: int) -> None:
        """Of a sender in a process of its own, which is killed."""
        await break_off(self.engine, manifest_of(self._trainer.tensors()), version)

    async def reconnect(self) -> None:
        """As at the start."""
        self._trainer.close()
        self._trainer = await Trainer.connect(self._trainer.engines, self._trainer.model)

    def close(self) -> None:
        """Leave the weight group."""
        self._trainer.close()

    async def kill(self) -> None:
        """SIGKILL of what computes."""
        self._kill()


def perturb_all(model: Any, _: int) -> None:
    """Perturb all of it."""
    perturb(model, "", by=0.02)


@asynccontextmanager
async def subject(folder: Path) -> AsyncIterator[Subject]:
    """An engine on a tied model, streaming every second step."""
    pytest.importorskip("vllm")
    model = tiny_model(tied=True)
    model.save_pretrained(folder / "model")
    engine = make_engine(folder / "model", folder / "logs", stream_interval=2)
    await open_all(engine)
    trainer = await Trainer.connect([engine], model)
    made = TrainedSubject(trainer, perturb_all, partial(os.kill, core_process(engine).pid, signal.SIGKILL))
    yield made
    made.close()
    await engine.close()
