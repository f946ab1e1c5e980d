"""What every rank of a small group does for ``test_learner.py``: ``python -m tests.trainer.rank_session MODEL FOLDER``.

The same session runs in the test's own process as the only rank and in two processes as two ranks. Rank 0 leaves its
tensors in ``tensors.safetensors``, each rank its numbers in ``rank-N.json``.
"""

from __future__ import annotations

import errno
import random
import resource
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from prl.errors import CheckpointError
from prl.trainer import writing
from prl.trainer.learner import Learner
from prl.trainer.loss import Loss
from prl.types import Batch
from tests.trainer.cases import flat, make_batch, make_config, random_samples

CPU = torch.device("cpu")
NUM_STEPS, SAVED_AT = 6, 3
PENALTY = {"coefficient": 0.5}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {"loss": {"name": "ppo", "clip_low": 0.6, "clip_high": 0.9}, "kl": PENALTY},
    "cispo": {
        "loss": {"name": "cispo", "aggregation": "fixed_length", "entropy_bonus": 0.1},
        "kl": {**PENALTY, "where": "reward", "estimator": "k1"},
    },
    "gspo": {
        "loss": {"name": "gspo", "aggregation": "sequence_mean", "clip_low": 0.9, "clip_high": 2.0},
        "kl": {**PENALTY, "estimator": "k2"},
    },
    "decoupled_ppo": {"loss": {"name": "decoupled_ppo", "anchor": "recomputed"}, "kl": PENALTY},
    "masked_importance": {"loss": {"name": "masked_importance", "mask_low": 0.1}, "kl": {**PENALTY, "estimator": "k1"}},
}
"""Tables for each loss but the default; together they use every aggregation, estimator and place."""


def whole(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Full copies under prefixed names. A collective."""
    return {
        f"{prefix}/{name}": (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
        for name, tensor in tensors.items()
    }


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    """The accumulated gradient by name, taken from the learner."""
    found = {name: parameter.grad for name, parameter in learner.parameters.items() if parameter.grad is not None}
    learner.optimizer.zero_grad()
    return found


def train(learner: Learner, batch: Batch) -> Any:
    """This rank's part of one step."""
    return learner.train(batch.step, share(batch), batch.num_sequences)


def share(batch: Batch) -> list[list[Any]]:
    """This rank's micro-batches."""
    return [[batch.samples[index] for index in microbatch] for microbatch in batch.plan[dist.get_rank()]]


def penalised(model: Path, **trainer: Any) -> Learner:
    """A learner with a reference, one step away from it."""
    learner = Learner(
        make_config(model, kl=PENALTY, loss={"entropy_bonus": 0.1}, trainer=trainer), str(model), None, CPU
    )
    train(learner, make_batch(0, dist.get_world_size()))
    return learner


def take_loss(learner: Learner, variant: str) -> None:
    """Give the learner the loss of a variant."""
    learner._loss = Loss(make_config(Path("m"), **VARIANTS[variant]))


def hybrid(model: Path, folder: Path, numbers: dict[str, Any]) -> dict[str, torch.Tensor]:
    """As many steps with two replicas of the model, kept, and taken up by ranks that shard it over all of them."""
    num_ranks = dist.get_world_size()
    plain = make_config(model, trainer={"num_ranks": num_ranks})
    both = make_config(model, trainer={"num_ranks": num_ranks, "num_replicas": 2})
    learner = Learner(both, str(model), None, CPU)
    batch = make_batch(0, num_ranks)
    learner.accumulate(share(batch), batch.num_sequences)
    tensors = whole(gradients(learner), "hybrid_gradient")
    numbers["hybrid"] = [train(learner, make_batch(step, num_ranks)) for step in range(SAVED_AT)]
    learner.save(folder / "hybrid" / "step-000003", {})
    for step in range(SAVED_AT, NUM_STEPS):
        train(learner, make_batch(step, num_ranks))
    taken_up = Learner(plain, str(model), folder / "hybrid" / "step-000003", CPU)
    for step in range(SAVED_AT, NUM_STEPS):
        train(taken_up, make_batch(step, num_ranks))
    tensors |= whole(learner._checkpointed(), "hybrid")
    return tensors | whole(taken_up._checkpointed(), "hybrid_taken_up")


def full_disk(learner: Learner, folder: Path, numbers: dict[str, Any]) -> None:
    """Saves that the last rank's disk does not take, where that can be mended and where not, and one that it does.

    A limit on the size of files stands in for the disk: a write goes half through, as on a full one.
    """
    target, limits = folder / "full" / "step-000003", resource.getrlimit(resource.RLIMIT_FSIZE)
    found: list[Any] = []
    for mendable in (True, False):
        if dist.get_rank() == dist.get_world_size() - 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        writing.MENDABLE = frozenset({errno.EFBIG} if mendable else ())
        try:
            fault = learner.save(target, {})
            found.append(None if fault is None else [fault.errno, fault.strerror])
        except CheckpointError as error:
            found.append(str(error))
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        found.append(sorted(path.name for path in target.parent.glob("*")))
        dist.barrier()
    found.append(learner.save(target, {"cursor": 1}))
    numbers["full_disk"] = found


def draws() -> list[float]:
    """One number from each generator."""
    return [random.random(), float(np.random.random()), torch.rand(()).item()]  # noqa: NPY002 -- the global ones


def session(model: Path, folder: Path) -> None:
    """Gradients, six steps, three steps after a resume, an idle rank, and a step that must be skipped."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    # two ranks recompute their activations: the results must be those of the one that does not
    config = make_config(model, trainer={"num_ranks": num_ranks, "activation_checkpointing": num_ranks == 2})
    learner = Learner(config, str(model), None, CPU)
    numbers: dict[str, Any] = {"manifest": learner.ready().manifest}
    batch = make_batch(0, num_ranks)
    learner.accumulate(share(batch), batch.num_sequences)
    tensors = whole(gradients(learner), "gradient")
    silent = list(map(flat, random_samples(9, 2)))
    learner.accumulate([*share(batch), silent], batch.num_sequences, len(share(batch)))
    tensors |= whole(gradients(learner), "silent")
    learner.accumulate([random_samples(5, 1)] if rank == 0 else [[]], 1)
    tensors |= whole(gradients(learner), "idle")

    other = penalised(model, num_ranks=num_ranks)
    batch = make_batch(1, num_ranks)
    for variant in VARIANTS:
        take_loss(other, variant)
        other.accumulate(share(batch), batch.num_sequences)
        tensors |= whole(gradients(other), variant)
    numbers["penalised"] = train(other, batch)
    batch = make_batch(2, num_ranks)
    numbers["logprobs"] = other.train(2, share(batch), batch.num_sequences, with_logprobs=True).logprobs

    longer = Learner(make_config(model, run={"num_steps": 30}, trainer={"num_ranks": num_ranks}), str(model), None, CPU)
    numbers["thirty"] = [train(longer, make_batch(step, num_ranks)).grad_norm for step in range(30)]
    tensors |= whole(longer.policy.tensors, "thirty")

    if num_ranks > 1:
        tensors |= hybrid(model, folder, numbers)
        full_disk(longer, folder, numbers)

    reports = [train(learner, make_batch(step, num_ranks)) for step in range(SAVED_AT)]
    draws()  # so that what is saved is not the state of the seed
    learner.save(folder / "step-000003", {"cursor": 12})
    numbers["draws"] = draws()
    reports += [train(learner, make_batch(step, num_ranks)) for step in range(SAVED_AT, NUM_STEPS)]
    tensors |= whole(learner._checkpointed(), "straight")

    resumed = Learner(config, str(model), folder / "step-000003", CPU)
    numbers["state"] = resumed.ready().state
    numbers["draws_resumed"] = draws()
    again = [train(resumed, make_batch(step, num_ranks)) for step in range(SAVED_AT, NUM_STEPS)]
    tensors |= whole(resumed._checkpointed(), "resumed")
    numbers["reports"], numbers["reports_resumed"] = reports, again

    poisoned = make_batch(NUM_STEPS, num_ranks)
    poisoned.samples[poisoned.plan[-1][0][-1]].logprobs[-1] = float("nan")  # on the last rank only
    numbers["skipped"] = train(resumed, poisoned).skipped
    tensors |= whole(resumed._checkpointed(), "after_skip")
    resumed.export(folder / "export")
    if rank == 0:
        save_file(tensors, folder / "tensors.safetensors")
    (folder / f"rank-{rank}.json").write_bytes(msgspec.json.encode(numbers))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    session(Path(sys.argv[1]), Path(sys.argv[2]))
    dist.destroy_process_group()
