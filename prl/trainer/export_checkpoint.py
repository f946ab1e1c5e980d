"""A checkpoint exported by one process of its own: no trainer, no engine, no GPU.

Invariants:

- Only the weights are read, never the optimiser's moments: the model in float32 is all that has to fit.
- It is the only rank of a process group of its own, which is gone on return.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from prl.config import Config
from prl.trainer import checkpoint, shards
from prl.trainer.export import export
from prl.trainer.model import Policy, load_policy


def export_checkpoint(config: Config, model: str, folder: Path, target: Path, *, adapters_alone: bool = False) -> None:
    """Write the weights of the checkpoint in ``folder`` as ``export`` does.

    Args:
        config: of the run.
        model: the folder or hub name that the run began with.
        folder: a complete checkpoint.
        target: gets its name when it is whole.
        adapters_alone: LoRA: only the adapters, in peft's format.

    Raises:
        CheckpointError: the checkpoint does not fit the model.
        TrainerError: the model cannot be loaded.
        OSError: the disk does not take the export; nothing of it is left.
    """
    with _alone():
        try:
            policy = restored(config, model, folder)
            dtype = getattr(torch, config.engine.dtype)
            fault = export(policy, model, target, dtype, config.lora, adapters_alone=adapters_alone)
        except BaseException:
            checkpoint.discard(target)
            raise
        if fault is not None:
            raise fault


def restored(config: Config, model: str, folder: Path) -> Policy:
    """The policy with the weights of a checkpoint, on the CPU. Needs a process group, of any number of ranks."""
    dtype = getattr(torch, config.trainer.dtype)
    policy = load_policy(model, torch.device("cpu"), dtype, adapter=config.lora)
    shards.load(folder, shards.weights_of(policy), policy, model)
    return policy


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
