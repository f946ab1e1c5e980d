"""The penalty for leaving a reference model: estimators of KL(pi || ref) from the sampled tokens.

With r = ref / pi at a token (J. Schulman, "Approximating KL divergence", 2020): k1 = -log r is unbiased, k2 =
(log r)^2 / 2 is biased and has the right gradient on policy, k3 = r - 1 - log r is unbiased and never negative.
Unbiased means for tokens that pi sampled: those of older versions are not weighted by their ratio.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from prl.trainer.losses.policy import MAX_LOG_RATIO


def estimate(logprobs_N: Tensor, reference_N: Tensor, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """The estimate at each token, with the gradient of ``logprobs_N``; the log-ratio is bounded."""
    log_ratio_N = torch.clamp(reference_N - logprobs_N, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    match estimator:
        case "k1":
            return -log_ratio_N
        case "k2":
            return log_ratio_N**2 / 2
        case "k3":
            return torch.expm1(log_ratio_N) - log_ratio_N


def cost_to_go(costs_N: Tensor, sequence_N: Tensor) -> Tensor:
    """At each token, the sum of its own cost and those behind it in its sequence (REINFORCE++, arXiv 2501.03262).

    Taken from the advantages, this is the penalty in the reward, without what a token cannot change.
    """
    if not len(sequence_N):
        return costs_N
    sequences = torch.split(costs_N, torch.bincount(sequence_N).tolist())
    return torch.cat([costs.flip(0).cumsum(0).flip(0) for costs in sequences])
