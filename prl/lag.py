"""How stale what is trained is.

Lag is measured where it matters, at training time: the step trained minus the version that sampled a token. Only
trained tokens have one. The batch of step v is trained on the weights of version v: what those sampled has lag 0.
"""

from __future__ import annotations

from collections import Counter
from itertools import compress

import msgspec

from prl.types import Batch

MAX_LAG_BIN = 128
"""Lag from which on all tokens are in one bin."""


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How stale the trained tokens of one batch are, and how many versions wrote one sample."""

    max: int
    mean: float
    num_versions_max: int
    histogram: list[int] = []
    """Tokens by lag, from 0 on."""


def lag_of(batch: Batch) -> Lag:
    """Lag of each trained token: ``batch.step`` minus the version that sampled it."""
    counts: Counter[int] = Counter()  # tokens by version; counting is what keeps millions of tokens cheap
    num_versions_max = 0
    for sample in batch.samples:
        of_sample = Counter(compress(sample.versions, sample.loss_mask))
        num_versions_max = max(num_versions_max, len(of_sample))
        counts.update(of_sample)
    lag_sum = sum((batch.step - version) * count for version, count in counts.items())
    by_lag: Counter[int] = Counter()
    for version, count in counts.items():
        by_lag[min(max(0, batch.step - version), MAX_LAG_BIN)] += count
    return Lag(
        max=batch.step - min(counts, default=batch.step),
        mean=lag_sum / max(1, counts.total()),
        num_versions_max=num_versions_max,
        histogram=[by_lag[lag] for lag in range(max(by_lag, default=-1) + 1)],
    )
