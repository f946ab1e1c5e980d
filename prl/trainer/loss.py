"""The loss of one micro-batch, as ``[loss]`` and ``[kl]`` say: policy loss, entropy bonus, penalty to a reference.

    loss = sum over trained tokens t of  weight_t (policy loss_t - entropy_bonus H_t + kl.coefficient KL_t)

Invariants:

- The weights have global denominators (``losses/aggregation.py``), so sums over micro-batches and ranks add up to the
  same gradient however the batch is cut.
- A masked token is taken out before anything is computed: it contributes exactly 0 to value and gradient, whatever
  numbers stand there.
- A trained token that is not finite makes a sum non-finite, never hides in one, so that the step can be skipped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from prl.config import Config
from prl.config_algorithm import LOSS_OPTIONS, is_own
from prl.errors import PluginError
from prl.trainer.losses import LOSSES
from prl.trainer.losses.aggregation import token_weights
from prl.trainer.losses.kl import cost_to_go, estimate
from prl.trainer.losses.policy import PolicyLoss, TokenLosses, Tokens, ratio
from prl.trainer.microbatch import MicroBatch


class LossTerms(NamedTuple):
    """Sums over the trained tokens of one micro-batch, float64 scalars; they add over micro-batches and ranks."""

    loss: Tensor
    tokens: Tensor
    ratio: Tensor
    """Sum of w, before any bound but that on its logarithm."""
    ratio_squared: Tensor
    kl_behaviour: Tensor
    """Sum of log mu - log pi."""
    clipped: Tensor
    """Number of tokens on which the loss's bound acted."""
    entropy: Tensor
    kl_reference: Tensor
    """Sum of the estimate of ``[kl]``; 0 without a reference."""


class Loss:
    """The loss that a configuration asks for. Raises PluginError where it names none."""

    def __init__(self, config: Config) -> None:
        self._config, self._kl, self._max_tokens = config.loss, config.kl, config.sampling.max_tokens
        self._policy_loss: PolicyLoss = LOSSES.find(config.loss.name)
        self._options: dict[str, Any] = (
            config.loss.options
            if is_own(config.loss.name)
            else {name: getattr(config.loss, name) for name in LOSS_OPTIONS[config.loss.name]}
        )

    def __call__(
        self,
        logprobs_N: Tensor,
        entropy_N: Tensor,
        batch: MicroBatch,
        *,
        reference_N: Tensor | None = None,
        num_sequences: int,
    ) -> tuple[Tensor, LossTerms]:
        """The loss of ``batch``, to call ``backward`` on, and its sums.

        Args:
            logprobs_N: log pi of the micro-batch's N tokens, with gradient.
            entropy_N: entropy of pi at the same positions; with gradient where there is an entropy bonus.
            batch: what else is known of the tokens.
            reference_N: log ref of the same tokens; needed where ``kl.coefficient`` is not 0.
            num_sequences: B of the whole batch.
        """
        kept_N = batch.trained_N
        log_pi_N, entropy_N = logprobs_N[kept_N], entropy_N[kept_N]
        log_mu_N, sequence_N = batch.behaviour_N[kept_N], batch.sequence_N[kept_N]
        penalty_N = torch.zeros_like(log_pi_N)
        if reference_N is not None and self._kl.estimator is not None:
            penalty_N = estimate(log_pi_N, reference_N[kept_N], self._kl.estimator)
        said = self._of_policy(log_pi_N, log_mu_N, batch.advantages_N[kept_N], penalty_N.detach(), sequence_N)
        losses_N = said.losses_N - self._config.entropy_bonus * entropy_N
        if self._kl.where == "loss":
            losses_N = losses_N + self._kl.coefficient * penalty_N
        weights_N = token_weights(sequence_N, self._config, num_sequences=num_sequences, max_tokens=self._max_tokens)
        loss = (weights_N.to(losses_N.dtype) * losses_N).sum()
        return loss, _terms(
            loss, log_pi_N, log_mu_N, bounded_N=said.bounded_N, entropy_N=entropy_N, penalty_N=penalty_N
        )

    def _of_policy(
        self, log_pi_N: Tensor, log_mu_N: Tensor, advantages_N: Tensor, penalty_N: Tensor, sequence_N: Tensor
    ) -> TokenLosses:
        if self._kl.where == "reward":
            advantages_N = advantages_N - self._kl.coefficient * cost_to_go(penalty_N, sequence_N)
        # The weights stay as they are until all of a step's gradient is there, so the policy at the start of the step
        # is the one that is being evaluated: recomputing its log-probabilities would give these numbers.
        anchor_N = log_pi_N.detach() if self._config.anchor == "recomputed" else log_mu_N
        tokens = Tokens(log_pi_N, log_mu_N, anchor_N, advantages_N, sequence_N)
        said = self._policy_loss(tokens, **self._options)
        if not isinstance(said, TokenLosses) or not said.losses_N.shape == log_pi_N.shape == said.bounded_N.shape:
            raise PluginError(
                f"loss.name = {self._config.name!r} must return TokenLosses of {len(log_pi_N)} tokens, got {said!r:.99}"
            )
        return said


def _terms(
    loss: Tensor, log_pi_N: Tensor, log_mu_N: Tensor, *, bounded_N: Tensor, entropy_N: Tensor, penalty_N: Tensor
) -> LossTerms:
    ratio_N = ratio(log_pi_N.detach(), log_mu_N).double()

    def total(values_N: Tensor) -> Tensor:
        return values_N.detach().double().sum()

    return LossTerms(
        loss=loss.detach().double(),
        tokens=torch.full_like(ratio_N.sum(), len(ratio_N)),
        ratio=total(ratio_N),
        ratio_squared=total(ratio_N**2),
        kl_behaviour=total(log_mu_N - log_pi_N),
        clipped=total(bounded_N),
        entropy=total(entropy_N),
        kl_reference=total(penalty_N),
    )
