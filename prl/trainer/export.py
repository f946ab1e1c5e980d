"""The trained weights as a Hugging Face folder that ``from_pretrained`` and every engine can read.

The tensors are gathered one at a time to rank 0's host memory, in the dtype the engine serves: what is exported is what
was sampled from and evaluated. The folder appears whole or not at all.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from prl.trainer import checkpoint
from prl.trainer.model import Policy
from prl.trainer.publish import gathered


def export(policy: Policy, model: str, folder: Path, dtype: torch.dtype) -> None:
    """Write ``policy`` to ``folder`` with config and with the tokenizer of ``model``. A collective."""
    rank = dist.get_rank()
    weights = {name: tensor.cpu() for name, tensor in gathered(policy.tensors, dtype) if rank == 0}
    if rank == 0:
        from transformers import AutoTokenizer  # noqa: PLC0415 -- seconds to import

        partial = checkpoint.begin(folder)
        policy.lm.config.dtype = dtype
        policy.lm.save_pretrained(partial, state_dict=weights)
        AutoTokenizer.from_pretrained(model).save_pretrained(partial)
        checkpoint.put(folder)
    dist.barrier()
