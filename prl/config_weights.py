"""The table of weight updates."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from prl.config_fields import NonNegative, PositiveFloat, Table
from prl.types import BUCKET_BYTES


class WeightsConfig(Table, frozen=True, kw_only=True):
    """``[weights]``: how a new version travels into the engines."""

    transport: Literal["auto", "gloo", "nccl"] = "auto"
    """``auto`` takes nccl where trainer and engines are on CUDA, and gloo elsewhere or where adapters travel alone."""
    host: str | None = None
    """Where trainer and engines meet: an address of rank 0's host that every server reaches. Absent: loopback where all
    are on one machine, else the address of rank 0's host on its way to the first server that is on another."""
    bucket_bytes: Annotated[int, Meta(ge=1 << 16)] = BUCKET_BYTES
    """What is sent at once: tensors are packed into buckets of this size, and larger ones travel in pieces (with nccl a
    whole tensor may exceed it). Trainer rank 0 and each engine worker hold two of them during an update, one on its way
    while the next is gathered, or the one before taken apart. Beyond a few dozen MB larger ones gain nothing."""
    staged: bool = True
    """Receive an update beside generation, so that an engine stands still for the swap alone; one that breaks off is
    dropped, and the engines go on. Costs each engine worker a second copy of its weights in main memory during an
    update. ``false`` receives into place while the engines stand still. Not read with nccl, which always does that."""
    rolling: NonNegative = 0
    """Engines that stand still for an update at once: one group of so many, at most half of all, after another, so that
    the others sample on. The trainer waits for the last. 0 updates all at once."""
    timeout_s: PositiveFloat = 60.0
    """Deadline of one whole update, and again of its verification by the engines, which is beside what they do next;
    where groups take turns, of each turn."""
    verify_every: NonNegative = 1
    """Compare engine and trainer on probe tokens after every n-th update; 0 never (at the start it is always done)."""
    verify_tolerance: PositiveFloat | None = None
    """Accepted difference of the probe tokens' log-probabilities: of the largest where both sides compute in float32
    (absent: 1e-3), of the mean otherwise (absent: 0.15), since rounding moves single improbable tokens far."""
