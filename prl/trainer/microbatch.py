"""A micro-batch: samples laid into rows (``layout.py``), and the positions that are trained.

Invariants:

- The token at position t of a sample is predicted from position t - 1 of the same sample, so a first token is never
  trained. Only what a trained token depends on is computed: nothing of a sample from its last trained token on.
- Positions restart at 0 with every sample; that is what keeps the samples of a row apart in attention where a model
  can share no token. Where it can, a mask says what each token sees. What fills the end of a row influences nothing.
- There is always at least one position to predict, if need be one that is not trained: a rank with nothing to do runs
  the same forward and backward pass as its peers, with a gradient of exactly 0.
"""
# ruff: noqa: N815 -- the suffixes of the names are the dimensions

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from prl.trainer.layout import lay_out
from prl.types import Sample

MASK_STEP = 16
"""Entries of a mask's row, of which each row takes a multiple in memory."""


class MicroBatch(NamedTuple):
    """R rows of L tokens. N targets, in the order of the samples, are predicted at U places, at most K at one."""

    token_ids_RL: Tensor
    positions_RL: Tensor
    until_RL: Tensor | None
    """Index into the rows, end to end, up to which tokens see this one; None: the positions say who sees whom."""
    at_U: Tensor
    """Indices into the rows, end to end, whose hidden states predict."""
    targets_UK: Tensor
    """What is predicted there, filled with 0: each token once, however many samples go on with it."""
    slot_N: Tensor
    """Index into ``targets_UK``, row by row, of the n-th target."""
    behaviour_N: Tensor
    """Log-probability under the policy that sampled, float32."""
    advantages_N: Tensor
    versions_N: Tensor
    """Version of the weights that sampled it."""
    sequence_N: Tensor
    """Number of the target's sample among those that have targets, from 0 and increasing."""
    trained_N: Tensor
    """False where the entry is there only so that there is one."""


def pack(
    samples: Sequence[Sample], device: torch.device, *, single_row: bool = False, pairs_per_token: int = 0
) -> MicroBatch:
    """Lay samples into rows, as ``lay_out`` is told to.

    Raises:
        ValueError: a sample trains its first token, which nothing predicts.
    """
    inputs: list[list[int]] = []
    trained: list[list[int]] = []
    for number, sample in enumerate(samples):
        if sample.loss_mask and sample.loss_mask[0]:
            raise ValueError(f"sample {number} trains its first token, which no earlier token predicts")
        trained.append([t for t, mask in enumerate(sample.loss_mask) if mask])
        inputs.append(sample.token_ids[: max(trained[-1], default=0)])
    anything = any(inputs)
    layout = lay_out(inputs if anything else [[0]], single_row=single_row, pairs_per_token=pairs_per_token)
    at, targets = [0], [0]
    if anything:
        at = [path[t - 1] for path, of in zip(layout.paths, trained, strict=True) for t in of]
        targets = [sample.token_ids[t] for sample, of in zip(samples, trained, strict=True) for t in of]
    predicted: dict[int, dict[int, int]] = {}  # by place and target, the target's number at that place
    for place, target in zip(at, targets, strict=True):
        numbers = predicted.setdefault(place, {})
        numbers.setdefault(target, len(numbers))
    most = max(map(len, predicted.values()))
    first = {place: most * spot for spot, place in enumerate(predicted)}

    def row(values: Iterable[float], dtype: type[np.generic] = np.int64) -> Tensor:
        return torch.from_numpy(np.fromiter(values, dtype)).to(device)

    def chosen(values: Iterable[Sequence[float]], idle: float, dtype: type[np.generic] = np.int64) -> Tensor:
        """Of each sample, what belongs to its trained tokens."""
        found = itertools.chain.from_iterable(map(itertools.compress, values, (each.loss_mask for each in samples)))
        return row(found if anything else [idle], dtype)

    lengths = [len(of) for of in trained if of] or [1]
    slot_N = row(first[place] + predicted[place][target] for place, target in zip(at, targets, strict=True))
    targets_UK = torch.zeros(len(predicted), most, dtype=torch.long, device=device)
    targets_UK.view(-1)[slot_N] = row(targets)
    return MicroBatch(
        token_ids_RL=row(layout.token_ids).view(-1, layout.width),
        positions_RL=row(layout.positions).view(-1, layout.width),
        until_RL=None if layout.until is None else row(layout.until).view(-1, layout.width),
        at_U=row(predicted),
        targets_UK=targets_UK,
        slot_N=slot_N,
        behaviour_N=chosen((sample.logprobs for sample in samples), 0.0, np.float32),
        advantages_N=chosen((sample.advantages for sample in samples), 0.0, np.float32),
        versions_N=chosen((sample.versions for sample in samples), -1),
        sequence_N=torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(device),
        trained_N=torch.full((len(at),), anything, device=device),
    )


def attention_mask(until_RL: Tensor, dtype: torch.dtype) -> Tensor:
    """R x 1 x L x L, to be added to the scores of each token's attention: 0 for what it sees and -inf for the rest."""
    (num_rows, width), device = until_RL.shape, until_RL.device
    at_RL = torch.arange(until_RL.numel(), device=device).view_as(until_RL)
    hidden_RLL = at_RL[:, None] > at_RL[:, :, None]
    hidden_RLL |= at_RL[:, :, None] >= until_RL[:, None]
    # a CUDA kernel wants rows that begin at a multiple of its step, and sdpa would give every layer a copy that does
    step = -(-width // MASK_STEP) * MASK_STEP
    mask_RLL = torch.zeros(num_rows, width, step, dtype=dtype, device=device)[..., :width]
    return mask_RLL.masked_fill_(hidden_RLL, -math.inf)[:, None]


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
