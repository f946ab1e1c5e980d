"""What a step of the simulated trainer says of its batch.

Invariant: every number is what the simulated model under its current weights makes of the trained tokens, as the real
trainer's are of the real model, so on policy the ratio is 1, the gap 0. A skipped step has no loss and no gradient.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections import Counter
from itertools import compress

from prl.simulation import sequence_logprobs
from prl.trainer.base import LOG_RATIO_EDGES, TrainReport
from prl.types import Batch


def report_of(batch: Batch, weights: bytes, *, lr: float, train_s: float, skipped: bool) -> TrainReport:
    """The report of a step on ``batch`` that began with ``weights`` and took ``train_s`` seconds."""
    log_ratios, fresh, logprobs, loss, squares = list[float](), list[bool](), list[bytes](), 0.0, 0.0
    for sample in batch.samples:
        mask = sample.loss_mask
        trained = list(compress([0.0, *sequence_logprobs(weights, sample.token_ids)], mask))
        log_ratios += [pi - mu for pi, mu in zip(trained, compress(sample.logprobs, mask), strict=True)]
        for pi, advantage in zip(trained, compress(sample.advantages, mask), strict=True):
            loss -= advantage * pi / batch.num_sequences
            squares += advantage**2
        logprobs.append(struct.pack(f"<{len(trained)}f", *trained))
        fresh += [version == batch.step for version in compress(sample.versions, mask)]
    num_tokens = len(log_ratios)
    ratios = [math.exp(log_ratio) for log_ratio in log_ratios]
    bins = Counter(bisect_right(LOG_RATIO_EDGES, log_ratio) for log_ratio in log_ratios)
    return TrainReport(
        step=batch.step,
        loss=math.nan if skipped else loss,
        grad_norm=math.nan if skipped else math.sqrt(squares),
        lr=lr,
        ess=sum(ratios) ** 2 / (num_tokens * sum(ratio * ratio for ratio in ratios)) if ratios else 1.0,
        kl_behaviour=-sum(log_ratios) / max(1, num_tokens),
        clip_frac=0.0,
        entropy=0.0,
        tokens_trained=num_tokens,
        gap_mean=sum(map(abs, log_ratios)) / num_tokens if num_tokens else None,
        tokens_fresh=sum(fresh),
        gap_fresh=sum(map(abs, compress(log_ratios, fresh))) / sum(fresh) if any(fresh) else None,
        ratio_histogram=[bins[index] for index in range(len(LOG_RATIO_EDGES) + 1)],
        logprobs=logprobs if batch.with_logprobs else [],
        skipped=skipped,
        train_s=train_s,
    )
