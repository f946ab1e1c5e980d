"""A micro-batch: samples laid end to end in one row, and the positions that are trained.

Invariants:

- Positions restart at 0 with every sample; that is what keeps the samples apart in attention.
- The token at position t of a sample is predicted from position t - 1 of the same sample, so a first token is never
  trained.
- There is always at least one row entry and one position to predict, if need be one that is not trained: a rank with
  nothing to do runs the same forward and backward pass as its peers, with a gradient of exactly 0.
"""

# ruff: noqa: N815 -- the suffixes of the names are the dimensions
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from prl.types import Sample

_IDLE = Sample(token_ids=[0, 0], loss_mask=[0, 0], logprobs=[0.0] * 2, versions=[-1] * 2, advantages=[0.0] * 2)
"""What a rank runs when its micro-batch is empty."""


class MicroBatch(NamedTuple):
    """L tokens in a row, of which N are predicted."""

    token_ids_1L: Tensor
    positions_1L: Tensor
    at_N: Tensor
    """Index into the row whose hidden state predicts the n-th target."""
    targets_N: Tensor
    behaviour_N: Tensor
    """Log-probability under the policy that sampled, float32."""
    advantages_N: Tensor
    trained_N: Tensor
    """False where the entry is there only to fill the row."""


def pack(samples: Sequence[Sample], device: torch.device) -> MicroBatch:
    """Lay samples end to end.

    Raises:
        ValueError: a sample trains its first token, which nothing predicts.
    """
    if not any(len(sample.token_ids) > 1 for sample in samples):
        samples = [*samples, _IDLE]
    token_ids: list[int] = []
    positions: list[int] = []
    at: list[int] = []
    chosen: list[tuple[int, float, float]] = []
    for number, sample in enumerate(samples):
        if sample.loss_mask and sample.loss_mask[0]:
            raise ValueError(f"sample {number} trains its first token, which no earlier token predicts")
        trained = [t for t, mask in enumerate(sample.loss_mask) if mask]
        at += [len(token_ids) + t - 1 for t in trained]
        chosen += [(sample.token_ids[t], sample.logprobs[t], sample.advantages[t]) for t in trained]
        token_ids += sample.token_ids
        positions += range(len(sample.token_ids))
    anything = bool(chosen)
    if not anything:
        at, chosen = [0], [(0, 0.0, 0.0)]
    targets, behaviour, advantages = zip(*chosen, strict=True)

    def row(values: Sequence[float], dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return MicroBatch(
        token_ids_1L=row(token_ids)[None],
        positions_1L=row(positions)[None],
        at_N=row(at),
        targets_N=row(targets),
        behaviour_N=row(behaviour, torch.float32),
        advantages_N=row(advantages, torch.float32),
        trained_N=torch.full((len(at),), anything, device=device),
    )


def whole(token_ids: Sequence[int], device: torch.device) -> MicroBatch:
    """One sequence with every token after the first predicted, for scoring. Length >= 2."""
    length = len(token_ids)
    return pack(
        [
            Sample(
                token_ids=list(token_ids),
                loss_mask=[0] + [1] * (length - 1),
                logprobs=[0.0] * length,
                versions=[-1] * length,
                advantages=[0.0] * length,
            )
        ],
        device,
    )
