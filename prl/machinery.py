"""Which engines and which trainer run, on which cores and GPUs, and how weights pass between them.

Heavy modules are imported only where they are chosen.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Literal

from prl.config import Config
from prl.engines.base import Engine
from prl.engines.seat import Place
from prl.errors import MissingExtraError
from prl.memory import gpu_memory
from prl.servers import make_server, same_form
from prl.trainer.base import ExaminedTrainer

EngineKind = Literal["vllm", "transformers", "server", "simulated"]


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
    return [
        make_engine(config, model, run_dir, transport, index=index, place=place)
        for index, place in enumerate(places_of(config))
    ]


def places_of(config: Config) -> list[Place]:
    """Where each engine of ``[engine]`` computes."""
    return [*range(config.engine.num_local), *map(same_form, config.engine.servers)]


def make_engine(
    config: Config, model: str, run_dir: Path, transport: str, *, index: int, place: Place | None = None
) -> Engine:
    """One engine, not opened: ``index`` names and seeds it, ``place`` (absent: the same) is where it computes."""
    if isinstance(place, str):
        return make_server(config, model, transport, index=index, address=place)
    kind, _ = engine_kind(config)
    logs, place = run_dir / "logs", index if place is None else place
    if kind == "vllm":
        from prl.engines.vllm import VllmEngine  # noqa: PLC0415 -- only where it is chosen

        available = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
        cores = engine_cores(config, available)
        return VllmEngine(
            index=index,
            model=model,
            config=config.engine,
            transport=transport,
            seed=config.seed,
            log_dir=logs,
            cores=cores[place] if place < len(cores) else None,
            devices=engine_devices(config, place),
        )
    if kind == "transformers":
        from prl.engines.transformers import TransformersEngine  # noqa: PLC0415 -- only where it is chosen

        (device,) = engine_devices(config, place)
        return TransformersEngine(
            index=index, model=model, config=config.engine, seed=config.seed, log_dir=logs, device=device
        )
    from prl.engines.simulated import SimulatedEngine  # noqa: PLC0415 -- only where it is chosen
    from prl.engines.simulated_stream import Script  # noqa: PLC0415 -- only where it is chosen

    return SimulatedEngine(index=index, max_num_seqs=config.engine.max_num_seqs, script=Script(), seed=config.seed)


def engine_devices(config: Config, place: int) -> list[int]:
    """The GPUs of the engine at ``place``: in order, those of the trainer's ranks (``launch.py``) left out."""
    size, first = config.engine.tensor_parallel_size, place * config.engine.tensor_parallel_size
    if place >= config.engine.num_local and config.trainer.device != "cpu":
        first += config.trainer.num_local_ranks
    return list(range(first, first + size))


def make_trainer(
    config: Config, model: str, run_dir: Path, resume: Path | None, *, is_restart: bool = False
) -> ExaminedTrainer:
    """The trainer of ``[trainer]``, not opened; ``is_restart``: in the place of one that died."""
    if config.trainer.kind == "simulated":
        from prl.trainer.simulated import SimulatedTrainer  # noqa: PLC0415 -- only where it is chosen

        return SimulatedTrainer(resume_from=resume)
    from prl.trainer.remote import FsdpTrainer  # noqa: PLC0415 -- only where it is chosen

    return FsdpTrainer(config, model, run_dir, resume, is_restart=is_restart)


def transport_of(config: Config) -> str:
    """The weight transport: ``auto`` is nccl where vLLM and the trainer have GPUs of their own, gloo elsewhere.

    Of ranks on other machines it is known by ``trainer.device = "cuda"`` alone.
    Adapters alone can only be merged by prl's own receivers, which are gloo's.
    """
    if config.weights.transport != "auto":
        return config.weights.transport
    if config.lora.publish == "adapters":
        return "gloo"
    kind, _ = engine_kind(config)
    if config.trainer.kind == "simulated" or config.trainer.device == "cpu" or kind not in {"vllm", "server"}:
        return "gloo"
    if config.trainer.launch == "external" and config.trainer.device != "cuda":
        return "gloo"
    wanted = config.engine.num_local * config.engine.tensor_parallel_size + config.trainer.num_local_ranks
    return "nccl" if len(gpu_memory()) >= wanted else "gloo"


def is_staged(config: Config, transport: str) -> bool:
    """Whether engines receive an update beside generation: vLLM's own nccl backend receives into place."""
    return config.weights.staged and transport == "gloo"


def engine_cores(config: Config, cores: list[int]) -> list[list[int] | None]:
    """Which of ``cores`` each engine computes on: an even share of those that controller and ranks leave.

    None each where that is less than one a worker: then all share, and the kernel decides.
    """
    spare = cores[1 + config.trainer.num_local_ranks :]
    num_engines = config.engine.num_local
    share = len(spare) // max(1, num_engines)
    if share < config.engine.tensor_parallel_size:
        return [None] * num_engines
    return [spare[index * share : (index + 1) * share] for index in range(num_engines)]


def describe(config: Config) -> str:
    """What is started, in a few words, and why this kind of engine."""
    return f"{describe_engines(config)} and {_count(config.trainer.num_ranks, 'trainer rank')}"


def describe_engines(config: Config) -> str:
    """The engines alone."""
    kind, why = engine_kind(config)
    num_local, num_servers = config.engine.num_local, len(config.engine.servers)
    local = [f"{_count(num_local, f'{kind} engine')} ({why})"] if num_local else []
    return " and ".join([*local, *([_count(num_servers, "server")] if num_servers else [])])


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
