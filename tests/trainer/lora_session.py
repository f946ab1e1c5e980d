"""What every rank does for ``test_lora.py``: ``python -m tests.trainer.lora_session MODEL FOLDER``.

See ``rank_session.py``, which does the same for whole models.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from prl.trainer import lora
from prl.trainer.learner import Learner
from tests.trainer.cases import make_batch, make_config
from tests.trainer.rank_session import CPU, gradients, share, train, whole

NUM_STEPS, SAVED_AT = 6, 3


def make_learner(
    model: Path, resume: Path | None = None, trainer: dict[str, Any] | None = None, **changes: Any
) -> Learner:
    """A learner of adapters; ``changes`` are of ``[lora]``. A rank of 3 cannot be halved."""
    config = make_config(
        model,
        lora={"rank": 3, "alpha": 6.0, **changes},
        kl={"coefficient": 0.1},
        trainer={"learning_rate": 3e-2, "num_ranks": dist.get_world_size(), **(trainer or {})},
    )
    return Learner(config, str(model), resume, CPU)


def session(model: Path, folder: Path) -> None:
    """A gradient, six steps, three steps after a resume, an export, and a base in bfloat16."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    learner = make_learner(model, trainer={"activation_checkpointing": num_ranks == 2})
    reports = [train(learner, make_batch(step, num_ranks)) for step in range(SAVED_AT)]
    batch = make_batch(SAVED_AT, num_ranks)
    learner.accumulate(share(batch), batch.num_sequences)
    tensors = whole(gradients(learner), "gradient")
    learner.save(folder / "step-000003", {})
    reports += [train(learner, make_batch(step, num_ranks)) for step in range(SAVED_AT, NUM_STEPS)]
    tensors |= whole(learner._checkpointed(), "straight") | whole(learner.policy.tensors, "base")
    learner.export(folder / "export")

    resumed = make_learner(model, folder / "step-000003")
    again = [train(resumed, make_batch(step, num_ranks)) for step in range(SAVED_AT, NUM_STEPS)]
    tensors |= whole(resumed._checkpointed(), "resumed")

    rounded = make_learner(model, trainer={"dtype": "bfloat16"})
    train(rounded, make_batch(0, num_ranks))
    tensors["rounded/bits"] = lora.base_bits(rounded.policy.tensors)
    tensors |= whole(rounded.parameters, "rounded")
    if rank == 0:
        save_file(tensors, folder / "tensors.safetensors")
        numbers = {"reports": reports, "reports_resumed": again}
        (folder / "rank-0.json").write_bytes(msgspec.json.encode(numbers))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    session(Path(sys.argv[1]), Path(sys.argv[2]))
    dist.destroy_process_group()
