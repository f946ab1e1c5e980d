"""What a checkpoint holds, written and read by all ranks together.

Invariants:

- Model and optimiser go through torch's distributed checkpoint under canonical names, each rank its own shards; a
  checkpoint of n ranks can be read by any other number of them.
- Reading fills the live tensors in place. Nothing is recomputed, so a resumed run goes on bit for bit.
- The random state of python, numpy and torch is kept per rank, without pickle. A rank that the checkpoint did not have
  keeps its fresh seed.
- A write is committed by rank 0 alone, after every rank has said that its part is written; where one could not write
  it, all know it, and none is left in a collective (``writing.py``).
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import api as dcp_api
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from prl.errors import CheckpointError
from prl.trainer import checkpoint, lora
from prl.trainer.model import Policy, parameters_of
from prl.trainer.writing import nothing, written

_BASE = "base"
_OF_RANK = re.compile(r"__(\d+)_|random-(\d+)\.")


def save(target: Path, tensors: dict[str, Tensor], step: int, state: dict[str, Any]) -> OSError | None:
    """Write a complete checkpoint to ``target``. A collective.

    Returns:
        What the disk said to one of the ranks; nothing is left of the checkpoint then.

    Raises:
        CheckpointError: it failed for another reason.
    """
    rank = dist.get_rank()
    partial = checkpoint.partial_of(target)

    def begin() -> None:
        checkpoint.begin(target)
        (partial / checkpoint.STATE).write_bytes(msgspec.msgpack.encode(state))

    def write() -> None:
        state_dict_saver.save(tensors, checkpoint_id=partial)
        (partial / _random_file(rank)).write_bytes(msgspec.msgpack.encode(_random_state()))

    def sum_up() -> None:
        names = [path.relative_to(partial).as_posix() for path in partial.rglob("*") if path.is_file()]
        checkpoint.leave_checksums(target, rank, [name for name in names if _writer_of(name) == rank])

    def commit() -> None:
        checkpoint.commit(target, step=step, num_ranks=dist.get_world_size())

    for part, of_rank_0_alone in ((begin, True), (write, False), (sum_up, False), (commit, True)):
        fault = written(target, part if rank == 0 or not of_rank_0_alone else nothing)
        if fault is not None:
            return fault
    return None


def weights_of(policy: Policy) -> dict[str, Tensor]:
    """What a checkpoint holds of the weights, by name. A collective.

    Of the base that adapters are trained on, only what it takes to know it again.
    """
    model = parameters_of(policy) if policy.adapters else policy.tensors
    named = {f"model/{name}": tensor for name, tensor in model.items()}
    return named | {_BASE: lora.base_bits(policy.tensors)} if policy.adapters else named


def load(folder: Path, tensors: dict[str, Tensor], policy: Policy, model: str) -> int:
    """Fill ``tensors``, those of ``policy`` and maybe others, from ``folder``; returns the step. A collective.

    Raises:
        CheckpointError: the folder is not complete, or is of another model, or of adapters of another base.
    """
    marker = checkpoint.read_marker(folder)
    bits = {name: tensor.clone() for name, tensor in tensors.items() if name == _BASE}
    try:
        state_dict_loader.load(tensors, checkpoint_id=folder)
    except (dcp_api.CheckpointException, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{folder} does not fit the model that is trained here: {error}") from error
    for name, expected in bits.items():
        lora.check_base(folder, model, policy.tensors, expected, tensors[name])
    return marker.step


def restore_random_state(folder: Path) -> None:
    """Go on with this rank's random numbers, if the checkpoint had such a rank."""
    file = folder / _random_file(dist.get_rank())
    if file.exists():
        _restore(msgspec.msgpack.decode(file.read_bytes()))


def _writer_of(name: str) -> int:
    """The rank that wrote a file: torch names its shards for theirs, and what belongs to nobody is rank 0's."""
    found = _OF_RANK.match(name)
    return int(found[1] or found[2]) if found else 0


def _random_file(rank: int) -> str:
    return f"random-{rank:05d}.msgpack"


def _random_state() -> dict[str, Any]:
    name, keys, *rest = cast("tuple[Any, ...]", np.random.get_state(legacy=True))  # noqa: NPY002 -- the global generator
    return {
        "python": random.getstate(),
        "numpy": [name, keys.tolist(), *rest],
        "torch": torch.get_rng_state().numpy().tobytes(),
        "cuda": torch.cuda.get_rng_state().numpy().tobytes() if torch.cuda.is_available() else None,
    }


def _restore(state: dict[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002 -- the global generator
    torch.set_rng_state(torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(state["cuda"]), dtype=torch.uint8))
