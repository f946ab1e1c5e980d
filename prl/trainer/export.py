"""The trained weights as a Hugging Face folder that ``from_pretrained`` and every engine can read.

The tensors are gathered one at a time to rank 0's host memory, in the dtype the engine serves: what is exported is what
was sampled from and evaluated. Under LoRA that is the merged model, and the adapters lie beside it in ``adapter/``, in
float32 and in peft's own format. The folder appears whole or not at all.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from prl.config_lora import LoraConfig
from prl.trainer import checkpoint, lora
from prl.trainer.model import Policy
from prl.trainer.publish import gathered
from prl.trainer.writing import nothing, written

ADAPTER = "adapter"


def export(
    policy: Policy,
    model: str,
    folder: Path,
    dtype: torch.dtype,
    adapter: LoraConfig,
    *,
    adapters_alone: bool = False,
) -> OSError | None:
    """Write ``policy`` to ``folder`` with config and with the tokenizer of ``model``. A collective.

    With ``adapters_alone`` the folder is what is else in ``adapter/``.

    Returns:
        What the disk said to rank 0; nothing is left of the export then.

    Raises:
        CheckpointError: it failed for another reason.
    """
    rank = dist.get_rank()
    merged = {} if adapters_alone else lora.merged(policy.tensors, policy.adapters)
    weights = {name: tensor.cpu() for name, tensor in gathered(merged, dtype) if rank == 0}
    thin = gathered(lora.halves(policy.adapters), torch.float32)
    adapters = {name: tensor.cpu() for name, tensor in thin if rank == 0}

    def write() -> None:
        from transformers import AutoTokenizer  # noqa: PLC0415 -- seconds to import

        partial = checkpoint.begin(folder)
        if adapters_alone:
            lora.save_adapter(partial, adapters, adapter, model)
            checkpoint.put(folder)
            return
        policy.lm.config.dtype = dtype
        policy.lm.save_pretrained(partial, state_dict=weights)
        AutoTokenizer.from_pretrained(model).save_pretrained(partial)
        if adapters:
            lora.save_adapter(partial / ADAPTER, adapters, adapter, model)
        checkpoint.put(folder)

    return written(folder, write if rank == 0 else nothing)
