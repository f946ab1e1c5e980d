"""What a training step costs where what answers begin with in common is computed once, and where it is not.

    python benchmarks/shared_prefixes.py [--quick] --out FILE.json

Batches of ``configs/math.toml``, sampled from the model that it trains and a few steps later, are packed, and go
forward and backward through the real learner of one rank: with ``trainer.share_prefixes`` and without, in turn, twice
each, of which the second counts. Processor time of the process, so other work on the machine hardly shows.

Headline: time without over time with, median over the batches; no outside figure, so the target is only that it is a
gain. Beside it the largest difference of the gradients' norms, relative: the two must be one.
"""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

import harness
import torch
import torch.distributed as dist
from staleness import Run, microbatches_of

NUM_BATCHES, NUM_QUICK = 9, 3


def cost(run: Run, microbatches: list[Any], num_sequences: int, pairs_per_token: int) -> tuple[float, float]:
    """Seconds of processor time of a forward and backward pass, and the norm of the gradient."""
    run.learner.policy.pairs_per_token = pairs_per_token
    for _ in range(2):
        run.learner.optimizer.zero_grad(set_to_none=True)
        began = time.process_time()
        run.learner.accumulate(microbatches, num_sequences)
        spent_s = time.process_time() - began
    grads = [each.grad.to_local() for each in run.learner.parameters.values() if each.grad is not None]
    return spent_s, float(torch.stack([torch.linalg.vector_norm(grad) for grad in grads]).norm())


def measure(quick: bool) -> dict[str, Any]:
    """All batches."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    run, rows = Run(0), []
    shares = run.learner.policy.pairs_per_token
    for number in range(NUM_QUICK if quick else NUM_BATCHES):
        batch, _, _ = run.sample()
        given = microbatches_of(batch)
        with_s, norm = cost(run, given, batch.num_sequences, shares)
        without_s, norm_without = cost(run, given, batch.num_sequences, 0)
        rows.append(
            {
                "batch": number,
                "tokens": sum(len(sample.token_ids) for sample in batch.samples),
                "without_s": without_s,
                "with_s": with_s,
                "ratio": without_s / with_s,
                "gradients_differ": abs(norm / norm_without - 1),
            }
        )
        run.learner.policy.pairs_per_token = shares
        run.learner.optimizer.zero_grad(set_to_none=True)
        run.step()
    dist.destroy_process_group()
    headline = statistics.median(row["ratio"] for row in rows)
    return {
        "headline": headline,
        "headline_by_batch": harness.spread([row["ratio"] for row in rows]),
        "gradients_differ": max(row["gradients_differ"] for row in rows),
        "target": "more than 1",
        "target_met": headline > 1,
        "batches": rows,
    }


if __name__ == "__main__":
    harness.main(str(__doc__), measure, tables=["batches"])
