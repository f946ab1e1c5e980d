"""What a weight transfer is called in vLLM's words: the same for its ``nccl`` backend and for prl's ``gloo``."""

from __future__ import annotations

from typing import Any

from prl.types import WeightGroup, WeightUpdate


def init_info(group: WeightGroup, rank_offset: int) -> dict[str, Any]:
    """Fields of a weight-transfer backend's init info."""
    info: dict[str, Any] = {
        "master_address": group.address,
        "master_port": group.port,
        "rank_offset": rank_offset,
        "world_size": group.world_size,
    }
    if group.transport == "gloo":
        return info | {"timeout_s": group.timeout_s, "bucket_bytes": group.bucket_bytes}
    return info | {"packed": True, "packed_buffer_size_bytes": group.bucket_bytes}


def update_info(update: WeightUpdate, *, stage: bool = False) -> dict[str, Any]:
    """Fields of a weight-transfer backend's update info; ``stage``: of gloo's, to receive beside generation."""
    info: dict[str, Any] = {
        "names": [spec.name for spec in update.manifest],
        "dtype_names": [spec.dtype for spec in update.manifest],
        "shapes": [spec.shape for spec in update.manifest],
    }
    return info | ({"version": update.version, "stage": stage} if update.transport == "gloo" else {})
