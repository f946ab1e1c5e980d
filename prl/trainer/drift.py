"""How far the trained policy is from the one that sampled, token by token: counted beside the loss, without gradient.

Invariants:

- Only trained tokens count, each once, so the counts of micro-batches and ranks add up to those of the batch.
- Nothing here decides anything: what is not finite is left to the loss's own sums, which skip the step.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from prl.trainer.base import LOG_RATIO_EDGES, LOGPROB_BYTES
from prl.trainer.microbatch import MicroBatch
from prl.types import Sample

NUM_SUMS = 3
SIZE = NUM_SUMS + len(LOG_RATIO_EDGES) + 1


@torch.no_grad()
def drift(logprobs_N: Tensor, batch: MicroBatch, version: int) -> Tensor:
    """Sums over the micro-batch's trained tokens, float64 of length ``SIZE``.

    In order: sum of |log pi - log mu|; the same over the tokens that ``version``, the weights that are trained,
    sampled; how many these are; and how many tokens have their log-ratio in each bin of ``LOG_RATIO_EDGES``.
    """
    log_ratio_N = (logprobs_N - batch.behaviour_N)[batch.trained_N].double()
    gap_N = log_ratio_N.abs()
    fresh_N = batch.versions_N[batch.trained_N] == version
    edges = torch.tensor(LOG_RATIO_EDGES, dtype=torch.float64, device=log_ratio_N.device)
    bins = torch.bincount(torch.bucketize(log_ratio_N, edges, right=True), minlength=len(LOG_RATIO_EDGES) + 1)
    return torch.cat([torch.stack([gap_N.sum(), gap_N[fresh_N].sum(), fresh_N.sum()]), bins.double()])


def fields_of(sums: list[float], num_tokens: float) -> dict[str, Any]:
    """The fields of a report that ``drift`` counted."""
    gap, gap_fresh, num_fresh = sums[:NUM_SUMS]
    return {
        "gap_mean": gap / num_tokens if num_tokens else None,
        "tokens_fresh": int(num_fresh),
        "gap_fresh": gap_fresh / num_fresh if num_fresh else None,
        "ratio_histogram": [int(count) for count in sums[NUM_SUMS:]],
    }


def by_sample(seen: list[Tensor], microbatches: list[list[Sample]]) -> list[bytes]:
    """The log-probabilities of the micro-batches' trained tokens, one piece for each sample."""
    data = torch.cat(seen).float().cpu().numpy().astype("<f4").tobytes()
    ends = list(
        itertools.accumulate(LOGPROB_BYTES * sum(sample.loss_mask) for samples in microbatches for sample in samples)
    )
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
