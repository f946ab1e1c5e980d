"""The trainer protocol: what the controller may ask of anything that learns.

Invariants that every implementation keeps:

- ``train`` applies exactly one optimiser step, on all ranks together, or skips it on all ranks together (and says so);
  either way the version grows by one, so that step, version and schedule never drift apart.
- One command at a time. Every command has a deadline; a rank that fails or dies surfaces as TrainerError with the
  rank's name and its last log lines, never as a hang.
- ``publish`` sends the manifest's tensors, in its order, to the weight group it was connected to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from prl.types import Batch, TensorSpec, WeightGroup, WeightUpdate

LOGPROB_BYTES = 4
LOG_RATIO_EDGES = (
    *(-2.0, -1.0, -0.5, -0.2, -0.1, -0.05, -0.02, -0.01, -0.005, -0.002, -0.001),
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
)
"""Between the bins of ``ratio_histogram``, in log pi - log mu. Bin i holds what is at least edge i - 1 and less than
edge i; the first and the last are open, and the middle one (11 of 0 to 22) is as good as on policy."""


class TrainerReady(msgspec.Struct, frozen=True, kw_only=True):
    """What the trainer says once its model stands."""

    step: int
    """Completed optimiser steps: 0, or those of the checkpoint it resumed from."""
    manifest: list[TensorSpec]
    """Every tensor that a weight update sends, canonical Hugging Face names, tied names once, in sending order."""
    state: dict[str, Any]
    """What the controller gave to ``save`` for the checkpoint it resumed from; empty on a fresh start."""
    num_parameters: int
    memory_bytes: int
    """Resident memory of all ranks together."""


class Phase(NamedTuple):
    """A part of a rank's step."""

    state: Literal["training", "waiting"]
    seconds: float
    why: str | None = None
    """What it waited for."""


class TrainReport(msgspec.Struct, frozen=True, kw_only=True):
    """One step's numbers, already reduced over ranks. Means are over trained tokens unless said otherwise."""

    step: int
    """The step that was trained; the weights are now version ``step + 1``."""
    loss: float
    grad_norm: float
    """Before clipping."""
    lr: float
    ess: float
    """(sum w)^2 / (n sum w^2) over untruncated per-token ratios w = pi / mu; 1 on policy."""
    kl_behaviour: float
    """Mean of log mu - log pi over sampled tokens: how far the trained policy has moved from the sampler."""
    clip_frac: float
    """Share of the tokens on which the loss's bound (truncation, clip or mask) was at work."""
    entropy: float
    """Mean entropy of log_softmax(logits / temperature) at trained positions."""
    kl_reference: float | None = None
    """Mean of the estimate of ``[kl]``, before its coefficient; None without a reference."""
    tokens_trained: int
    gap_mean: float | None = None
    """Mean of |log pi - log mu|: how far the log-probabilities are apart, whichever way."""
    tokens_fresh: int = 0
    """Of the trained tokens, those of lag 0: the weights that are trained sampled them."""
    gap_fresh: float | None = None
    """``gap_mean`` over these alone: what the two implementations differ by under the same weights. None: there are
    none."""
    ratio_histogram: list[int] = []
    """Trained tokens by log pi - log mu, in the bins of ``LOG_RATIO_EDGES``."""
    logprobs: list[bytes] = []
    """log pi of each sample's trained tokens, in the order of the samples that were given: float32, little-endian.
    Empty where ``Batch.with_logprobs`` does not ask for them."""
    skipped: bool
    """True where a loss, gradient or log-probability that is not finite made all ranks leave the weights alone."""
    train_s: float
    phases: list[list[Phase]] = []
    """By rank, what it did one after another from the moment it had its share of the batch. Empty: it was not told."""


class Trainer(Protocol):
    """Anything that turns batches into new weights and sends them."""

    async def open(self) -> TrainerReady:
        """Start (or accept) every rank, load the model or the checkpoint, and be ready."""
        ...

    async def meeting(self, hosts: list[str]) -> tuple[str, int]:
        """An address and port of rank 0's host that ``hosts`` and the controller reach, for a weight group."""
        ...

    async def connect(self, group: WeightGroup) -> None:
        """Open the sending side (rank 0) of the weight group; returns when every engine worker has joined."""
        ...

    async def train(self, batch: Batch) -> TrainReport:
        """One optimiser step on ``batch``."""
        ...

    async def publish(self, update: WeightUpdate) -> None:
        """Send the current weights to the weight group, as the manifest says."""
        ...

    async def score(self, token_ids: list[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first, under the current weights (length L - 1)."""
        ...

    async def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write a complete checkpoint to ``folder`` atomically; ``state`` is the controller's (data position ...).

        Raises:
            OSError: the disk does not take it (``disk.MENDABLE``): nothing of it is left, and it may be tried again.
        """
        ...

    async def export(self, folder: Path) -> None:
        """Write the weights as Hugging Face safetensors with config and tokenizer. Raises OSError as ``save`` does."""
        ...

    async def failed(self) -> str:
        """Wait until a rank is dead, then return which, why, and its last log lines."""
        ...

    def statistics(self) -> dict[str, float]:
        """Busy seconds and counters."""
        ...

    async def close(self) -> None:
        """End every process it started. Idempotent, bounded in time, safe after a failure."""
        ...


class ExaminedTrainer(Trainer, Protocol):
    """A trainer that ``prl doctor`` can question beyond what a run needs."""

    async def rescore(
        self, sequences: list[list[int]], *, temperature: float, dtype: str | None = None
    ) -> list[list[float]]:
        """As ``score``, for many sequences, at any temperature and in any compute dtype (None: its own)."""
        ...

    async def nudge(self, names: list[str], scale: float) -> None:
        """Change the named tensors by noise of ``scale`` times their size, as the next version."""
        ...
