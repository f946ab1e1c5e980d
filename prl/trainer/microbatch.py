"""A micro-batch: samples laid end to end in rows, and the positions that are trained.

Invariants:

- Positions restart at 0 with every sample; that is what keeps the samples of a row apart in attention. What fills the
  end of a row counts on from its last sample: being last, no causal model lets it influence anything.
- A row is as long as the longest sample, and the others share rows, longest first. Attention over the row costs its
  square, so rows that are no longer than they must be cost least, and at most half of what is computed is filling. A
  kernel that attends within each sample only (flash attention) takes one row of everything instead.
- The token at position t of a sample is predicted from position t - 1 of the same sample, so a first token is never
  trained.
- There is always at least one position to predict, if need be one that is not trained: a rank with nothing to do runs
  the same forward and backward pass as its peers, with a gradient of exactly 0.
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
    """R rows of L tokens, of which N are predicted, in the order of the samples."""

    token_ids_RL: Tensor
    positions_RL: Tensor
    at_N: Tensor
    """Index into the rows, end to end, whose hidden state predicts the n-th target."""
    targets_N: Tensor
    behaviour_N: Tensor
    """Log-probability under the policy that sampled, float32."""
    advantages_N: Tensor
    versions_N: Tensor
    """Version of the weights that sampled it."""
    sequence_N: Tensor
    """Number of the target's sample among those that have targets, from 0 and increasing."""
    trained_N: Tensor
    """False where the entry is there only so that there is one."""


def pack(samples: Sequence[Sample], device: torch.device, *, single_row: bool = False) -> MicroBatch:
    """Lay samples into rows.

    Raises:
        ValueError: a sample trains its first token, which nothing predicts.
    """
    if not any(len(sample.token_ids) > 1 for sample in samples):
        samples = [*samples, _IDLE]
    lengths = [len(sample.token_ids) for sample in samples]
    width = sum(lengths) if single_row else max(lengths)
    starts, num_rows = _place(lengths, width)
    token_ids = [0] * (num_rows * width)
    positions = [0] * len(token_ids)
    for start in sorted(starts):
        rest_of_row = width - start % width
        positions[start : start + rest_of_row] = range(rest_of_row)
    at: list[int] = []
    chosen: list[tuple[int, float, float, int, int]] = []
    num_sequences = 0
    for number, (sample, start) in enumerate(zip(samples, starts, strict=True)):
        if sample.loss_mask and sample.loss_mask[0]:
            raise ValueError(f"sample {number} trains its first token, which no earlier token predicts")
        trained = [t for t, mask in enumerate(sample.loss_mask) if mask]
        at += [start + t - 1 for t in trained]
        chosen += [
            (sample.token_ids[t], sample.logprobs[t], sample.advantages[t], sample.versions[t], num_sequences)
            for t in trained
        ]
        num_sequences += bool(trained)
        token_ids[start : start + len(sample.token_ids)] = sample.token_ids
    anything = bool(chosen)
    if not anything:
        at, chosen = [0], [(0, 0.0, 0.0, -1, 0)]
    targets, behaviour, advantages, versions, sequences = zip(*chosen, strict=True)

    def row(values: Sequence[float], dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return MicroBatch(
        token_ids_RL=row(token_ids).view(num_rows, width),
        positions_RL=row(positions).view(num_rows, width),
        at_N=row(at),
        targets_N=row(targets),
        behaviour_N=row(behaviour, torch.float32),
        advantages_N=row(advantages, torch.float32),
        versions_N=row(versions),
        sequence_N=row(sequences),
        trained_N=torch.full((len(at),), anything, device=device),
    )


def scored(token_ids: Sequence[int]) -> Sample:
    """A sequence of which every token after the first is predicted, to look at its log-probabilities. Length >= 2."""
    length = len(token_ids)
    return Sample(
        token_ids=list(token_ids),
        loss_mask=[0] + [1] * (length - 1),
        logprobs=[0.0] * length,
        versions=[-1] * length,
        advantages=[0.0] * length,
    )


def _place(lengths: Sequence[int], width: int) -> tuple[list[int], int]:
    """Start of each sample in rows of ``width`` laid end to end, and the number of rows: first fit, longest first."""
    starts = [0] * len(lengths)
    used: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((row for row, taken in enumerate(used) if taken + lengths[index] <= width), len(used))
        if row == len(used):
            used.append(0)
        starts[index] = row * width + used[row]
        used[row] += lengths[index]
    return starts, len(used)
