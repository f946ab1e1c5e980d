"""A trainer that is killed between two buckets of a weight update."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from prl.engines.base import Engine
from prl.process import free_port
from prl.transfer import GlooGroup
from prl.types import TensorSpec, WeightGroup, WeightUpdate
from tests.engines.contract import DEADLINE_S

BUCKET_BYTES = 1 << 12


def send_half(group: WeightGroup, update: WeightUpdate, half_way: Any) -> None:
    """Send the first half of the tensors, all of them ones, and stand still."""

    def gathering() -> Iterator[tuple[str, torch.Tensor]]:
        for number, spec in enumerate(update.manifest):
            if number == len(update.manifest) // 2:
                half_way.set()
                threading.Event().wait()
            yield spec.name, torch.ones(spec.shape)

    GlooGroup.join(group, 0).send(update.version, update.manifest, gathering())


async def break_off(engine: Engine, manifest: Sequence[TensorSpec], version: int) -> None:
    """Stage an update whose sender is killed half-way; the engine is in no weight group of use afterwards."""
    group = WeightGroup(
        transport="gloo",
        address="127.0.0.1",
        port=free_port("127.0.0.1"),
        world_size=1 + engine.num_workers,
        timeout_s=DEADLINE_S,
        bucket_bytes=BUCKET_BYTES,
    )
    update = WeightUpdate(version=version, transport="gloo", manifest=list(manifest))
    context = multiprocessing.get_context("spawn")
    half_way = context.Event()
    sender = context.Process(target=send_half, args=(group, update, half_way), daemon=True)
    sender.start()
    try:
        await engine.connect(group, 1)
        assert await engine.stage(update)
        assert await asyncio.to_thread(half_way.wait, DEADLINE_S)
    finally:
        sender.kill()
        await asyncio.to_thread(sender.join, DEADLINE_S)
