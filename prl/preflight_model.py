"""Is there a model, and room for it, its trainer and its weight updates? Looked at, not tried.

What cannot work is a ConfigError; what works and may surprise is a note.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from prl import memory
from prl.config import Config
from prl.errors import ConfigError
from prl.machinery import is_staged, transport_of
from prl.models import local_folder, resolve_model


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    topic: str
    text: str
    is_note: bool = False
    """Nothing is wrong, and yet it may not be what was meant."""


def look_at_model(config: Config) -> list[Finding]:
    """The model, the memory that the run needs, and how its weights travel. Raises ConfigError: it cannot run here."""
    folder = local_folder(resolve_model(config.model))
    if folder is None:
        text = f"{config.model} is a hub name that is not on this machine: not verified, no memory estimate"
        return [Finding(topic="model", text=text, is_note=True), *_weights(config)]
    shape = check_context(config, folder)
    text = f"{config.model}: {_count(shape.num_parameters)} parameters, context {shape.max_positions or 'not stated'}"
    return [Finding(topic="model", text=text), *_lora(config, shape), *_memory(config, shape)]


def check_context(config: Config, folder: Path) -> memory.ModelShape:
    """The model's shape, if its context is as long as the configuration wants."""
    shape = memory.read_shape(folder)
    if shape.max_positions is not None and config.engine.max_model_len > shape.max_positions:
        raise ConfigError(
            f"engine.max_model_len = {config.engine.max_model_len} is longer than the context of {config.model!r}:"
            f" {folder / 'config.json'} says max_position_embeddings = {shape.max_positions}"
        )
    return shape


def _lora(config: Config, shape: memory.ModelShape) -> list[Finding]:
    lora = config.lora
    if lora.rank == 0:
        return []
    trained = memory.num_adapter_parameters(lora, shape)
    share = f"{_count(trained)} parameters, {trained / shape.num_parameters:.1%} of the model's"
    return [Finding(topic="lora", text=f"rank {lora.rank}, {share}, published {lora.publish}")]


def _memory(config: Config, shape: memory.ModelShape) -> list[Finding]:
    gpus = [] if config.trainer.device == "cpu" else memory.gpu_memory()
    need = need_of(config, shape, on_gpu=bool(gpus))
    return [*(_on_gpus(config, need, gpus) if gpus else [_on_cpu(need)]), *_weights(config, need)]


def need_of(config: Config, shape: memory.ModelShape, *, on_gpu: bool) -> memory.Need:
    """What the run needs, weight updates included."""
    return memory.estimate(config, shape, on_gpu=on_gpu, is_staged=is_staged(config, transport_of(config)))


def _weights(config: Config, need: memory.Need | None = None) -> list[Finding]:
    """How updates reach the engines, and what that costs them."""
    transport, rolling = transport_of(config), config.weights.rolling
    size = "" if need is None else f", {gib(need.staged)}"
    how = "into place, while engines stand still"
    if is_staged(config, transport):
        how = f"staged beside generation, for a second copy of its weights in each engine's main memory{size}"
    turns = f", at most {rolling} engines at once" if rolling else ""
    buckets = f"buckets of {config.weights.bucket_bytes / (1 << 20):g} MiB"
    findings = [Finding(topic="weights", text=f"{transport}, {buckets}, {how}{turns}")]
    if rolling and config.engine.num_engines == 1:
        text = f"weights.rolling = {rolling} and there is one engine: it has nobody to take turns with"
        findings.append(Finding(topic="weights", text=text, is_note=True))
    if transport == "nccl" and config.weights.staged:
        text = "weights.staged is gloo's: vLLM's own nccl backend receives into place"
        findings.append(Finding(topic="weights", text=text))
    return findings


def _on_cpu(need: memory.Need) -> Finding:
    total, available = memory.machine_memory()
    text = f"about {gib(need.total)} in all (engine {gib(need.engine)}, trainer rank {gib(need.rank)})"
    if need.total > total:
        raise ConfigError(
            f"memory: this needs {text}, and the machine has {gib(total)}: lower engine.count, engine.kv_cache_gib,"
            " trainer.max_tokens_per_microbatch, set weights.staged = false, or take a smaller model"
        )
    return Finding(topic="memory", text=f"{text} of {gib(available)} available", is_note=need.total > available)


def _on_gpus(config: Config, need: memory.Need, gpus: list[int]) -> list[Finding]:
    engine, num_ranks = config.engine, config.trainer.num_local_ranks
    wanted = engine.num_local * engine.tensor_parallel_size + num_ranks
    share = int(min(gpus) * engine.gpu_memory_utilization) * engine.tensor_parallel_size
    if engine.num_local and need.engine > share:
        raise ConfigError(
            f"memory: an engine needs at least {gib(need.engine)} and may use {gib(share)} (engine."
            "gpu_memory_utilization, engine.tensor_parallel_size): raise one of them or lower engine.max_model_len"
        )
    if num_ranks and need.rank > min(gpus):
        raise ConfigError(
            f"memory: a trainer rank needs about {gib(need.rank)} and a GPU has {gib(min(gpus))}: raise"
            " trainer.num_ranks, lower trainer.max_tokens_per_microbatch or set trainer.activation_checkpointing"
        )
    text = f"engine {gib(need.engine)} or more, trainer rank about {gib(need.rank)}, GPU {gib(min(gpus))}"
    text = f"{wanted} GPUs wanted, {len(gpus)} found; {text}"
    if wanted > len(gpus) and config.trainer.device == "cuda":
        raise ConfigError(
            f"engine.count x engine.tensor_parallel_size + trainer.num_ranks = {engine.num_local} x"
            f" {engine.tensor_parallel_size} + {num_ranks} = {wanted} GPUs, and {len(gpus)} are visible"
        )
    return [Finding(topic="memory", text=text, is_note=wanted > len(gpus))]


def gib(num_bytes: int) -> str:
    """For people."""
    return f"{num_bytes / memory.GIB:.1f} GiB"


def _count(number: int) -> str:
    for scale, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return str(number)
