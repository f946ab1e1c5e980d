"""Which class stands for which word of the configuration; heavy modules are imported only where they are chosen."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Literal

from prl.config import Config
from prl.engines.base import Engine
from prl.errors import ConfigError, MissingExtraError
from prl.trainer.base import Trainer

EngineKind = Literal["vllm", "transformers", "simulated"]


def installed(package: str) -> bool:
    """Whether ``package`` can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def engine_kind(config: Config) -> tuple[EngineKind, str]:
    """The engine that runs, and why: ``auto`` takes vLLM where it is installed."""
    kind = config.engine.kind
    if kind != "auto":
        if kind == "vllm" and not installed("vllm"):
            raise MissingExtraError("vllm", "vllm", 'engine.kind = "vllm"')
        return kind, "as configured"
    if installed("vllm"):
        return "vllm", "vLLM is installed"
    where = "is not made for this system" if sys.platform == "darwin" else "is not installed"
    return "transformers", f"vLLM {where}, so transformers' continuous batching generates"


def make_engines(config: Config, model: str, run_dir: Path, transport: str) -> list[Engine]:
    """The engines of ``[engine]``, not opened."""
    kind, _ = engine_kind(config)
    indices = range(config.engine.count)
    logs = run_dir / "logs"
    if kind == "vllm":
        from prl.engines.vllm import VllmEngine  # noqa: PLC0415 -- only where it is chosen

        return [
            VllmEngine(
                index=index, model=model, config=config.engine, transport=transport, seed=config.seed, log_dir=logs
            )
            for index in indices
        ]
    if kind == "transformers":
        from prl.engines.transformers import TransformersEngine  # noqa: PLC0415 -- only where it is chosen

        return [
            TransformersEngine(index=index, model=model, config=config.engine, seed=config.seed, log_dir=logs)
            for index in indices
        ]
    from prl.engines.simulated import Script, SimulatedEngine  # noqa: PLC0415 -- only where it is chosen

    return [
        SimulatedEngine(index=index, max_num_seqs=config.engine.max_num_seqs, script=Script(), seed=config.seed)
        for index in indices
    ]


def make_trainer(config: Config, model: str, run_dir: Path, resume: Path | None) -> Trainer:
    """The trainer of ``[trainer]``, not opened."""
    if config.trainer.kind == "simulated":
        from prl.trainer.simulated import SimulatedTrainer  # noqa: PLC0415 -- only where it is chosen

        return SimulatedTrainer(resume_from=resume)
    from prl.trainer.remote import FsdpTrainer  # noqa: PLC0415 -- only where it is chosen

    return FsdpTrainer(config, model, run_dir, resume)


def transport_of(config: Config) -> str:
    """The weight transport: ``auto`` is nccl where the trainer computes on CUDA, gloo elsewhere."""
    if config.weights.transport != "auto":
        return config.weights.transport
    return "nccl" if _cuda(config) else "gloo"


def _cuda(config: Config) -> bool:
    if config.trainer.kind == "simulated" or config.trainer.device == "cpu":
        return False
    import torch  # noqa: PLC0415 -- heavy, and only to ask

    found: bool = torch.cuda.is_available()
    if config.trainer.device == "cuda" and not found:
        raise ConfigError('trainer.device = "cuda", but torch finds no CUDA device; use "cpu" or "auto"')
    return found
