"""How the ranks are laid out: ``num_replicas`` replicas of the model, each sharded over as many ranks of its own.

Invariants:

- The ranks of one replica are neighbours, so with as many ranks a host as a replica has, sharding stays inside a host
  and only the sum of the gradients crosses between hosts (hybrid sharding, HSDP).
- A sum over all ranks that means the whole model counts the first replica alone.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

_NUM_DIMENSIONS = 2


def make_mesh(device_type: str, num_replicas: int) -> DeviceMesh:
    """The mesh that FSDP2 shards over (its last dimension) and replicates over (the one before, if there is one).

    ``num_replicas`` divides the number of ranks: ``check.py`` has seen to it.
    """
    num_ranks = dist.get_world_size()
    if num_replicas == 1:
        return init_device_mesh(device_type, (num_ranks,), mesh_dim_names=("shard",))
    shape = (num_replicas, num_ranks // num_replicas)
    return init_device_mesh(device_type, shape, mesh_dim_names=("replicate", "shard"))


def counts(tensor: Tensor) -> bool:
    """Whether this rank's part of ``tensor`` belongs into a sum over all ranks, in which every number counts once."""
    if not isinstance(tensor, DTensor):
        return dist.get_rank() == 0
    coordinate = tensor.device_mesh.get_coordinate()
    return tensor.device_mesh.ndim < _NUM_DIMENSIONS or coordinate is None or coordinate[0] == 0
