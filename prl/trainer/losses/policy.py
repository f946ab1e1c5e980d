"""The policy losses: each a pure function from N trained tokens to N losses.

Invariants:

- They see trained tokens only. What is masked is taken out before, and what they return is put together afterwards
  (``aggregation.py``), so no loss knows about masks, lengths, batches or ranks.
- Every ratio is to the log-probability that the sampler recorded; only ``decoupled_ppo`` has an anchor besides.
- A log-ratio is bounded by +-``MAX_LOG_RATIO`` before exp, so that one broken token cannot overflow a sum; NaN stays
  NaN, so that the step is skipped.

Notation: pi the policy that is trained, mu the one that sampled, w = pi / mu the ratio of a token, A its advantage, sg
"carries no gradient". What is returned is to be minimised. The keyword arguments are the options of ``[loss]``.
"""

# ruff: noqa: N815 -- the suffixes of the names are the dimensions

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""exp(20) is 5e8: far above any truncation, far below overflow."""


class Tokens(NamedTuple):
    """N trained tokens; the tokens of a sequence stand together and are all there."""

    logprobs_N: Tensor
    """log pi, with gradient."""
    behaviour_N: Tensor
    """log mu."""
    anchor_N: Tensor
    """Log-probability that a clipped ratio is relative to: log mu, or that of the policy at the start of the step,
    which is log pi without gradient."""
    advantages_N: Tensor
    sequence_N: Tensor
    """Number of the token's sequence, from 0 and increasing."""


class TokenLosses(NamedTuple):
    """What a loss says about N tokens."""

    losses_N: Tensor
    """To be minimised, with gradient."""
    bounded_N: Tensor
    """bool: the loss's bound (truncation, clip, mask) was at work on this token."""


PolicyLoss = Callable[..., TokenLosses]
"""Called with ``Tokens`` and the loss's options as keyword arguments."""


def ratio(logprobs_N: Tensor, others_N: Tensor) -> Tensor:
    """exp(logprobs - others), the log-ratio bounded."""
    return torch.exp(torch.clamp(logprobs_N - others_N, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def reinforce(tokens: Tokens, *, ratio_clip: float) -> TokenLosses:
    """-sg(min(c, w)) A log pi: truncated importance-weighted REINFORCE (PipelineRL, arXiv 2509.19128)."""
    ratio_N = ratio(tokens.logprobs_N.detach(), tokens.behaviour_N)
    weight_N = torch.clamp(ratio_N, max=ratio_clip)
    return TokenLosses(-(weight_N * tokens.advantages_N) * tokens.logprobs_N, ratio_N > ratio_clip)


def ppo(tokens: Tokens, *, clip_low: float, clip_high: float) -> TokenLosses:
    """-min(w A, clip(w, 1 - low, 1 + high) A): PPO (arXiv 1707.06347, equation 7).

    With group advantages this is GRPO (arXiv 2402.03300, equation 3), with high > low DAPO's clip-higher (arXiv
    2503.14476, section 3.1).
    """
    return _clipped(ratio(tokens.logprobs_N, tokens.behaviour_N), tokens.advantages_N, clip_low, clip_high)


def cispo(tokens: Tokens, *, clip_low: float, clip_high: float) -> TokenLosses:
    """-sg(clip(w, 1 - low, 1 + high)) A log pi: CISPO (MiniMax-M1, arXiv 2506.13585, equation 4).

    The weight is clipped, not the update: every token keeps a gradient. With low = 1 this is ``reinforce`` with
    c = 1 + high.
    """
    ratio_N = ratio(tokens.logprobs_N.detach(), tokens.behaviour_N)
    weight_N = torch.clamp(ratio_N, 1 - clip_low, 1 + clip_high)
    return TokenLosses(-(weight_N * tokens.advantages_N) * tokens.logprobs_N, weight_N != ratio_N)


def gspo(tokens: Tokens, *, clip_low: float, clip_high: float) -> TokenLosses:
    """-min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean log w over the sequence): GSPO (arXiv 2507.18071, eq. 5-7).

    Each token carries its sequence's loss, so that ``aggregation = "sequence_mean"`` gives the paper's objective.
    """
    log_ratio_N = torch.clamp(tokens.logprobs_N - tokens.behaviour_N, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio_N = torch.exp(sequence_mean(log_ratio_N, tokens.sequence_N))
    return _clipped(ratio_N, tokens.advantages_N, clip_low, clip_high)


def decoupled_ppo(tokens: Tokens, *, clip_low: float, clip_high: float, ratio_clip: float) -> TokenLosses:
    """-min(c, b) min(u A, clip(u, 1 - low, 1 + high) A), b = prox / mu, u = pi / prox: AReaL (arXiv 2505.24298).

    The paper's decoupled objective: prox, the policy that the update stays close to, is the anchor, and b corrects for
    its distance from the sampler. The paper does not bound b.

    The paper's prox is the policy before the several updates of a training round. In a run of prl it is the policy at
    the start of the step, and a batch serves one step, so u is 1, the clip never acts, and what remains has the
    gradient of ``reinforce``. That holds in conventional mode too: the batches of a round reach the trainer one step at
    a time, when the policy that began the round is gone. There ``ppo`` bounds what the paper's clip bounds, since the
    sampler is the policy that began the round. The clip here is for callers that give an older anchor.
    """
    behaviour_N = ratio(tokens.anchor_N.detach(), tokens.behaviour_N)
    clipped = _clipped(ratio(tokens.logprobs_N, tokens.anchor_N), tokens.advantages_N, clip_low, clip_high)
    weight_N = torch.clamp(behaviour_N, max=ratio_clip)
    return TokenLosses(weight_N * clipped.losses_N, clipped.bounded_N | (behaviour_N > ratio_clip))


def masked_importance(tokens: Tokens, *, mask_low: float, mask_high: float) -> TokenLosses:
    """-sg(w) A log pi where low <= w <= high, else 0: IcePop (Ring-1T, arXiv 2510.18855).

    w is the trained policy's ratio to the engine's, as in INTELLECT-3 (arXiv 2512.16144).
    """
    ratio_N = ratio(tokens.logprobs_N.detach(), tokens.behaviour_N)
    outside_N = (ratio_N < mask_low) | (ratio_N > mask_high)
    losses_N = -(ratio_N * tokens.advantages_N) * tokens.logprobs_N
    return TokenLosses(torch.where(outside_N, 0.0, losses_N), outside_N)


def _clipped(ratio_N: Tensor, advantages_N: Tensor, low: float, high: float) -> TokenLosses:
    """PPO's pessimistic bound."""
    free_N, held_N = ratio_N * advantages_N, torch.clamp(ratio_N, 1 - low, 1 + high) * advantages_N
    return TokenLosses(-torch.minimum(free_N, held_N), (held_N < free_N).detach())


def sequence_mean(values_N: Tensor, sequence_N: Tensor) -> Tensor:
    """The mean of the values of each token's sequence, at each token."""
    if not len(sequence_N):
        return values_N
    counts_S = torch.bincount(sequence_N)
    sums_S = values_N.new_zeros(len(counts_S)).index_add(0, sequence_N, values_N)
    return sums_S[sequence_N] / counts_S[sequence_N]
