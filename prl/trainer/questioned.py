"""What ``prl doctor`` asks of a rank: scores in another type, and weights that are not those from before.

Every function is a collective of all ranks, and none touches the optimiser.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from prl.config import Config
from prl.trainer import lora
from prl.trainer.microbatch import scored
from prl.trainer.model import Policy, load_policy


def rescored(
    policy: Policy, sequences: Iterable[Sequence[int]], temperature: float, device: torch.device
) -> list[list[float]]:
    """Log-probability of each token after the first, by sequence, each in a pass of its own."""
    scores = []
    for sequence in sequences:
        enough = len(sequence) > 1  # one token predicts nothing
        batch = policy.pack([scored(sequence)] if enough else [], device)
        logprobs: list[float] = policy.score(batch, temperature).tolist()
        scores.append(logprobs if enough else [])
    return scores


@torch.no_grad()
def twin_of(policy: Policy, model: str, device: torch.device, dtype: torch.dtype, config: Config) -> Policy:
    """The weights of ``policy`` once more, to compute in ``dtype``; ``model`` is where their shapes are read."""
    twin = load_policy(model, device, dtype, adapter=config.lora, num_replicas=config.trainer.num_replicas)
    copies = {**twin.tensors, **lora.halves(twin.adapters)}
    for name, tensor in {**policy.tensors, **lora.halves(policy.adapters)}.items():
        _local(copies[name]).copy_(_local(tensor))
    return twin


@torch.no_grad()
def nudge(policy: Policy, parameters: Mapping[str, Tensor], names: Iterable[str], scale: float, seed: int) -> None:
    """Add noise to what learns of the named tensors, ``scale`` times each one's root mean square.

    What does not learn stays. Of a weight with an adapter, it is the adapter that learns.
    """
    for name in names:
        adapter = policy.adapters.get(name)
        learning = [parameters[name]] if name in parameters else [] if adapter is None else [adapter.down, adapter.up]
        for shard in map(_local, learning):
            generator = torch.Generator(shard.device).manual_seed(seed)
            size = shard.square().mean().sqrt() if shard.any() else 1.0  # zeros, as an adapter begins, are moved too
            shard.add_(scale * size * torch.randn(shard.shape, generator=generator, device=shard.device))


def _local(tensor: Tensor) -> Tensor:
    """This rank's shard, or all of a tensor that is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
