"""The sending side of a weight transfer: every rank gathers, rank 0 sends.

Invariants:

- The manifest is the policy's own list of tensors in the engine's dtype: what is sent is what the engine holds, so the
  cast happens once, here, and an update costs no more bytes than it must. Integer buffers keep their type.
- All ranks gather the same tensors in the same order, one at a time: beyond the shards, a rank holds one full tensor
  (and the sender its transport's two buckets), or the parts of one that is computed. What is gathered is the next
  bucket's while the one before is being sent.
- Engines that are updated one group after another are sent the same weights each time: no step is taken before the last
  group has them, so nothing is kept beside the model.
- An ``update`` whose manifest is not the policy's is refused before the first collective, on every rank alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from prl.errors import WeightSyncError
from prl.overdue import ends_process
from prl.transfer import GlooGroup
from prl.types import TensorSpec, WeightGroup, WeightUpdate


class Computed(NamedTuple):
    """A floating tensor that is made of whole others when its turn comes."""

    shape: torch.Size
    parts: tuple[Tensor, ...]
    make: Callable[..., Tensor]


class Sender(Protocol):
    """Rank 0's membership of a weight group."""

    def send(self, version: int, manifest: Sequence[TensorSpec], tensors: Iterator[tuple[str, Tensor]]) -> None:
        """Send every tensor, in order; returns when the receivers have them."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


def manifest_of(tensors: Mapping[str, Tensor | Computed], dtype: torch.dtype) -> list[TensorSpec]:
    """What an update sends: ``tensors`` in their order, floating ones as ``dtype``."""
    return [
        TensorSpec(name=name, dtype=_name(_wire_dtype(tensor, dtype)), shape=list(tensor.shape))
        for name, tensor in tensors.items()
    ]


@torch.no_grad()
def gathered(tensors: Mapping[str, Tensor | Computed], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Each tensor whole and in its wire dtype, one at a time. A collective: every rank must exhaust it."""
    for name, tensor in tensors.items():
        full = tensor.make(*map(_whole, tensor.parts)) if isinstance(tensor, Computed) else _whole(tensor)
        yield name, full.detach().to(_wire_dtype(tensor, dtype)).contiguous()


class Publisher:
    """One rank's part in every transfer."""

    def __init__(self, tensors: Mapping[str, Tensor | Computed], dtype: torch.dtype, rank: int) -> None:
        self._tensors, self._dtype, self._rank = tensors, dtype, rank
        self.manifest = manifest_of(tensors, dtype)
        self._senders: dict[int, Sender] = {}
        """By the part of the engines that is in the weight group."""

    def connect(self, group: WeightGroup) -> None:
        """Join ``group`` as its sender (rank 0; the other ranks have nothing to join), leaving those of before.

        Parts are joined in their order. Raises WeightSyncError.
        """
        if self._rank == 0:
            if group.part == 0:
                self.close()
            self._senders[group.part] = NcclSender(group) if group.transport == "nccl" else GlooGroup.join(group, 0)

    def send(self, update: WeightUpdate) -> None:
        """Take part in sending ``update``. Raises WeightSyncError where it is not what this trainer sends."""
        if update.manifest != self.manifest:
            different = next((a.name for a, b in zip(update.manifest, self.manifest, strict=False) if a != b), "length")
            raise WeightSyncError(f"version {update.version}: the manifest is not the trainer's; first at {different}")
        tensors = gathered(self._tensors, self._dtype)
        if self._rank != 0:
            for _ in tensors:
                pass
            return
        sender = self._senders.get(update.part)
        if sender is None:
            raise WeightSyncError(f"version {update.version} cannot be sent: the weight group is not connected")
        try:
            sender.send(update.version, update.manifest, tensors)
        except WeightSyncError:
            for _ in tensors:  # the other ranks gather in step with this one: it stays usable
                pass
            raise

    def close(self) -> None:
        """Leave every group."""
        while self._senders:
            self._senders.popitem()[1].close()


class NcclSender:
    """vLLM's own NCCL sender, as thin as it can be: its communicator and its packed broadcast.

    vLLM packs whole tensors into two buckets in turn, each on a stream of its own: one is gathered while the other is
    sent, and the tensor that fills a bucket may exceed it. What the engines were told when they joined says the same.

    NCCL has no deadline of its own here: past the group's this process ends, and a trainer that died is started again.
    An engine that stands in a transfer does not answer the controller, which has the same deadline and kills it then.
    """

    def __init__(self, group: WeightGroup) -> None:
        from vllm.distributed.weight_transfer import nccl_common  # noqa: PLC0415 -- only with CUDA and vLLM

        self._timeout_s, self._bucket_bytes = group.timeout_s, group.bucket_bytes
        place = {"master_address": group.address, "master_port": group.port, "world_size": group.world_size}
        with ends_process(self._timeout_s, f"meeting {group.world_size - 1} engine workers over NCCL"):
            self._communicator: Any = nccl_common.trainer_init(place)

    def send(self, version: int, manifest: Sequence[TensorSpec], tensors: Iterator[tuple[str, Tensor]]) -> None:  # noqa: ARG002 -- the receivers know it from their own update
        """Broadcast the packed tensors and wait until they have left."""
        from vllm.distributed.weight_transfer import packed_tensor  # noqa: PLC0415 -- only with CUDA and vLLM

        with ends_process(self._timeout_s, f"the NCCL broadcast of version {version}"):
            packed_tensor.packed_nccl_broadcast_producer(
                iterator=tensors,
                group=self._communicator,
                src=0,
                post_iter_func=lambda item: item[1],
                buffer_size_bytes=self._bucket_bytes,
            )
            torch.cuda.current_stream().synchronize()

    def close(self) -> None:
        """Destroy the communicator."""
        self._communicator.destroy()


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _wire_dtype(tensor: Tensor | Computed, dtype: torch.dtype) -> torch.dtype:
    return dtype if isinstance(tensor, Computed) or tensor.is_floating_point() else tensor.dtype


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
