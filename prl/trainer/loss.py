"""The policy loss: truncated importance-weighted REINFORCE (PipelineRL, arXiv 2509.19128).

    loss = -(1 / B) sum over trained tokens t of  min(c, w_t) A_t log pi_t,      w_t = pi_t / mu_t

where pi is the policy that is trained, mu the policy that sampled, A the advantage, and B the number of sequences of
the whole batch, over all micro-batches and ranks. The weight min(c, w_t) carries no gradient.

Invariants:

- The loss is a sum over tokens divided by one global number, so sums over micro-batches and ranks add up to the same
  gradient however the batch is cut.
- A masked token contributes exactly 0 to the value and to the gradient, whatever numbers stand there (``torch.where``,
  never a product: 0 * inf is NaN).
- The log-ratio is clamped to +-``MAX_LOG_RATIO`` before exp, so that one broken token cannot overflow a sum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""exp(20) is 5e8: far above any truncation, far below overflow."""


class LossTerms(NamedTuple):
    """Sums over the trained tokens of one micro-batch, float64 scalars; they add over micro-batches and ranks."""

    loss: Tensor
    tokens: Tensor
    ratio: Tensor
    """Sum of w, before truncation."""
    ratio_squared: Tensor
    kl_behaviour: Tensor
    """Sum of log mu - log pi."""
    clipped: Tensor
    """Number of tokens with w > c."""
    entropy: Tensor


def policy_loss(
    logprobs_N: Tensor,
    behaviour_N: Tensor,
    advantages_N: Tensor,
    entropy_N: Tensor,
    trained_N: Tensor,
    *,
    ratio_clip: float,
    num_sequences: int,
) -> tuple[Tensor, LossTerms]:
    """The loss of one micro-batch, to call ``backward`` on, and its sums.

    Args:
        logprobs_N: log pi of N tokens, with gradient.
        behaviour_N: log mu of the same tokens.
        advantages_N: A.
        entropy_N: entropy of pi at the same positions, for the record.
        trained_N: bool; False leaves a token out of everything.
        ratio_clip: c.
        num_sequences: B; 0 (nothing is trained anywhere) counts as 1.
    """
    zero = logprobs_N.new_zeros(())
    logprobs_N = torch.where(trained_N, logprobs_N, zero)
    gap_N = torch.where(trained_N, behaviour_N, zero) - logprobs_N.detach()
    ratio_N = torch.exp(torch.clamp(-gap_N, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    weight_N = torch.clamp(ratio_N, max=ratio_clip) * torch.where(trained_N, advantages_N, zero)
    loss = -(weight_N * logprobs_N).sum() / max(1, num_sequences)

    def total(values_N: Tensor) -> Tensor:
        return torch.where(trained_N, values_N.detach().double(), 0.0).sum()

    return loss, LossTerms(
        loss=loss.detach().double(),
        tokens=total(trained_N),
        ratio=total(ratio_N),
        ratio_squared=total(ratio_N.double() ** 2),
        kl_behaviour=total(gap_N),
        clipped=total(ratio_N > ratio_clip),
        entropy=total(entropy_N),
    )
