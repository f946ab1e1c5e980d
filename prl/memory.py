"""How much memory a run needs, from the model's files alone, and how much the machine has.

The estimate is a sum of terms that can be checked by hand; it reads the headers of the weights, never the weights, and
imports neither torch nor vLLM. It is good to a third or so: enough to refuse what cannot fit and to show what will.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from prl.config import Config
from prl.config_lora import LoraConfig
from prl.errors import ConfigError
from prl.plugins import nearest

GIB = 1 << 30
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
STATE_BYTES = 16
"""Per parameter in the trainer: float32 master weight, gradient and Adam's two moments."""
REFERENCE_BYTES = 4
"""Per parameter in the trainer where there is a reference model: a frozen float32 copy. Under LoRA there is none."""
PROCESS_GIB = {"engine": 1.0, "rank": 0.8, "controller": 0.5}
"""What a process holds before any model: mostly the libraries."""
ACTIVATIONS_PER_LAYER = 17
"""Values of size ``hidden`` that a layer keeps per token for its backward pass (2 with checkpointing)."""
_MAX_HEADER_BYTES = 100 << 20
_NO_ADAPTER = re.compile(r"embed|wte|wpe|norm")
"""Matrices that are no layer with an input."""
_HEAD = "lm_head"
_Raw = dict[str, msgspec.Raw]


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the memory of a model depends on."""

    num_parameters: int
    num_layers: int
    hidden: int
    vocabulary: int
    kv_width: int
    """Values that a layer caches per token for keys; as many for values."""
    max_positions: int | None
    """Longest context that the model was made for; None where it does not say."""
    linears: dict[str, list[int]] = {}
    """Out and in of every weight that ``lora.target_modules`` may name, by the layer's name."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate in bytes."""

    engine: int
    """One engine: weights and KV cache."""
    staged: int
    """The second copy of an engine's weights, in main memory, while a staged update is under way; 0: it has none."""
    rank: int
    """One trainer rank: its share of the state, activations and logits."""
    total: int
    """All processes together, libraries included."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ConfigError with the place."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


def read_shape(folder: Path) -> ModelShape:
    """The shape of the model in a Hugging Face folder, from ``config.json`` and the headers of its weights.

    Raises:
        ConfigError: a file that is missing, unreadable or without what is needed.
    """
    path = folder / "config.json"
    raw = read_json(path)
    raw = raw.get("text_config", raw)
    shapes = _shapes(folder)
    try:
        heads = int(raw["num_attention_heads"])
        hidden = int(raw["hidden_size"])
        head_dim = int(raw.get("head_dim") or hidden // heads)
        return ModelShape(
            num_parameters=sum(prod(shape) for _, shape in shapes),
            num_layers=int(raw["num_hidden_layers"]),
            hidden=hidden,
            vocabulary=int(raw["vocab_size"]),
            kv_width=int(raw.get("num_key_value_heads") or heads) * head_dim,
            max_positions=_max_positions(raw),
            linears={
                name.removesuffix(".weight"): shape
                for name, shape in shapes
                if name.endswith(".weight") and len(shape) == 2 and not _NO_ADAPTER.search(name)  # noqa: PLR2004 -- a matrix
            },
        )
    except KeyError as error:
        raise ConfigError(f"{path} has no {error.args[0]!r}: it does not describe a causal language model") from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"{path} does not describe a causal language model: {error}") from error


def _max_positions(raw: dict[str, Any]) -> int | None:
    """None where the model says nothing, or says that its rotary positions are stretched."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    stated = raw.get("max_position_embeddings")
    return int(stated) if stated and "factor" not in rope else None


def _shapes(folder: Path) -> list[tuple[str, list[int]]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{folder} has no *.safetensors: convert the model's weights to safetensors")
    return [(name, tensor.shape) for file in files for name, tensor in _header(file).items()]


class _Tensor(msgspec.Struct):
    shape: list[int]
    data_offsets: tuple[int, int]


def _header(path: Path) -> dict[str, _Tensor]:
    """The tensors that a safetensors file says it holds. The file must be as long as it says."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header: dict[str, msgspec.Raw] = msgspec.json.decode(file.read(min(length, _MAX_HEADER_BYTES)), type=_Raw)
        header.pop("__metadata__", None)
        tensors = {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in header.items()}
    except (OSError, ValueError, struct.error) as error:
        raise ConfigError(f"{path} is no safetensors file; download the model again") from error
    expected = 8 + length + max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    if path.stat().st_size != expected:
        raise ConfigError(f"{path} has {path.stat().st_size} bytes of {expected}; download the model again")
    return tensors


def estimate(config: Config, shape: ModelShape, *, on_gpu: bool, is_staged: bool = False) -> Need:
    """What ``config`` needs with a model of ``shape``."""
    engine, trainer = config.engine, config.trainer
    kv_token = 2 * shape.num_layers * shape.kv_width * DTYPE_BYTES[engine.dtype]
    wanted = engine.max_num_seqs * engine.max_model_len * kv_token
    least = engine.max_model_len * kv_token
    kv = least if on_gpu else min(wanted, int(engine.kv_cache_gib * GIB))
    weights = shape.num_parameters * DTYPE_BYTES[engine.dtype]
    one_engine, staged = weights + kv, weights if is_staged else 0
    tokens, width = max(trainer.max_tokens_per_microbatch, engine.max_model_len), DTYPE_BYTES[trainer.dtype]
    per_layer = 2 if trainer.activation_checkpointing else ACTIVATIONS_PER_LAYER
    activations = tokens * shape.num_layers * shape.hidden * per_layer * width
    logits = 2 * tokens * shape.vocabulary * DTYPE_BYTES["float32"]
    one_rank = _state(config, shape) * trainer.num_replicas // trainer.num_ranks + activations + logits
    libraries = PROCESS_GIB["controller"]
    libraries += engine.num_local * PROCESS_GIB["engine"] + trainer.num_local_ranks * PROCESS_GIB["rank"]
    total = engine.num_local * (one_engine + staged) + trainer.num_local_ranks * one_rank + int(libraries * GIB)
    return Need(engine=one_engine, staged=staged, rank=one_rank, total=total)


def _state(config: Config, shape: ModelShape) -> int:
    """Bytes of weights, gradients, moments and reference over all ranks: of the whole model, or of the adapters."""
    if config.lora.rank:
        frozen = shape.num_parameters * DTYPE_BYTES[config.trainer.dtype]
        return frozen + num_adapter_parameters(config.lora, shape) * STATE_BYTES
    return shape.num_parameters * (STATE_BYTES + (REFERENCE_BYTES if config.kl.coefficient > 0 else 0))


def num_adapter_parameters(lora: LoraConfig, shape: ModelShape) -> int:
    """Parameters that ``[lora]`` trains.

    Raises:
        ConfigError: a name of ``lora.target_modules`` fits no layer of the model.
    """
    known = sorted({name.rpartition(".")[2] for name in shape.linears})
    targets = (
        lora.target_modules if isinstance(lora.target_modules, list) else [each for each in known if each != _HEAD]
    )
    chosen: dict[str, list[int]] = {}
    for target in targets:
        fitting = {name: size for name, size in shape.linears.items() if f".{name}".endswith(f".{target}")}
        if not fitting:
            raise ConfigError(
                f"lora.target_modules: the model has no linear layer {target!r}{nearest(target, known)}; it has"
                f" {', '.join(known)}"
            )
        chosen |= fitting
    return sum(lora.rank * (out + into) for out, into in chosen.values())


def machine_memory() -> tuple[int, int]:
    """Total and available bytes of main memory, within this container's limit where there is one."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = available = page * os.sysconf("SC_PHYS_PAGES")
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux: what is there is the best guess at what is free
        pass
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            bound, held = int(Path(limit).read_text()), int(Path(used).read_text())
        except (OSError, ValueError):  # no such controller, or "max"
            continue
        if bound < total:
            total, available = bound, min(available, max(0, bound - held))
    return total, available


def gpu_memory() -> list[int]:
    """Total bytes of each visible NVIDIA GPU, empty where there is none. Asks the driver: no CUDA context is made."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "":
        return []
    command = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    if visible:
        command.append(f"--id={visible}")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
        return [int(line) << 20 for line in answer.stdout.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
