"""The tables of the algorithm, ``[loss]``, ``[kl]``, ``[advantage]`` and ``[overlong]``, and which loss reads what.

Invariants:

- An option that only some losses read is absent or has the value the loss uses: one that the named loss reads and
  nobody gave takes that loss's own default when the table is made, so the resolved configuration shows every number.
- An option that the named loss does not read stays as it was given; ``check.py`` refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from prl.config_fields import Fraction, NonNegative, NonNegativeFloat, PositiveFloat, Table, fill

LOSS_OPTIONS: Mapping[str, Mapping[str, float]] = {
    "reinforce": {"ratio_clip": 5.0},
    "ppo": {"clip_low": 0.2, "clip_high": 0.2},
    "cispo": {"clip_low": 1.0, "clip_high": 4.0},
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
    "decoupled_ppo": {"clip_low": 0.2, "clip_high": 0.2, "ratio_clip": 5.0},
    "masked_importance": {"mask_low": 0.5, "mask_high": 5.0},
}
"""The options that each loss reads, with its defaults. A loss of one's own reads ``loss.options`` instead."""


def is_own(name: str) -> bool:
    """Whether ``name`` is a loss from outside: ``package.module:name``, or an entry point in group ``prl.losses``."""
    return name not in LOSS_OPTIONS


class LossConfig(Table, frozen=True, kw_only=True):
    """``[loss]``: the policy loss. Its ratios are to the log-probabilities that the sampler recorded."""

    name: str = "reinforce"
    """``reinforce`` (truncated importance weights, the paper's), ``ppo`` (GRPO, DAPO), ``cispo``, ``gspo``,
    ``decoupled_ppo`` (AReaL), ``masked_importance`` (IcePop), or your own: ``package.module:name``, or an entry point
    in group ``prl.losses``."""
    ratio_clip: PositiveFloat | None = None
    """c: the truncation of the importance weight (reinforce, decoupled_ppo: 5)."""
    clip_low: Fraction | None = None
    """The ratio is clipped below at 1 - clip_low (ppo, decoupled_ppo: 0.2; gspo: 3e-4; cispo: 1, no bound)."""
    clip_high: NonNegativeFloat | None = None
    """The ratio is clipped above at 1 + clip_high (ppo, decoupled_ppo: 0.2, DAPO's clip-higher is 0.28; gspo: 4e-4;
    cispo: 4)."""
    mask_low: Fraction | None = None
    """Tokens with an importance weight below this teach nothing (masked_importance: 0.5)."""
    mask_high: Annotated[float, Meta(ge=1)] | None = None
    """Tokens with an importance weight above this teach nothing (masked_importance: 5)."""
    anchor: Literal["sampler", "recomputed"] = "sampler"
    """What a clipped ratio is relative to: the sampler's own log-probabilities, or those of the policy at the start of
    the step. ``decoupled_ppo`` needs ``recomputed``; the others know only the sampler's. A batch serves one step, so
    the ratio to ``recomputed`` is 1: ``decoupled_ppo`` then never clips, and its gradient is that of ``reinforce``."""
    aggregation: Literal["token_sum", "sequence_mean", "fixed_length"] = "token_sum"
    """How the tokens of a sequence are put together before the mean over the B sequences: their sum, their mean (GRPO,
    GSPO), or their sum over ``sampling.max_tokens`` (Dr. GRPO)."""
    entropy_bonus: NonNegativeFloat = 0.0
    """Coefficient of the policy's entropy, which is added to what is maximised, aggregated like the loss."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of a loss of your own."""

    def __post_init__(self) -> None:
        fill(self, LOSS_OPTIONS.get(self.name, {}))


class KlConfig(Table, frozen=True, kw_only=True):
    """``[kl]``: how far the policy may go from the model that it started as."""

    coefficient: NonNegativeFloat = 0.0
    """Factor of the penalty; 0 keeps no reference model. Under LoRA the reference is the model without its adapters."""
    estimator: Literal["k1", "k2", "k3"] | None = None
    """With r = reference / policy: k1 = -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r (the default). In the loss, k1
    has a gradient of mean 0 on policy and does not hold the policy back: take k2 or k3 there, k1 in the reward."""
    where: Literal["loss", "reward"] | None = None
    """``loss`` adds the estimate to the loss, aggregated like it (GRPO; the default); ``reward`` takes from each
    token's advantage what it and the rest of its sequence cost (REINFORCE++, PPO)."""

    def __post_init__(self) -> None:
        if self.coefficient > 0:
            fill(self, {"estimator": "k3", "where": "loss"})


class AdvantageConfig(Table, frozen=True, kw_only=True):
    """``[advantage]``: rewards of a group into advantages."""

    name: Literal["leave_one_out", "rloo", "group_mean", "dr_grpo", "group_mean_std", "reinforce_pp"] = "leave_one_out"
    """``leave_one_out``: R_i - mean of the others (the paper's); ``rloo`` is its name elsewhere. ``group_mean``: R_i -
    mean of the group; ``dr_grpo`` is the same and insists on the other half of Dr. GRPO, ``loss.aggregation =
    "fixed_length"``. ``group_mean_std``: that over the group's standard deviation (GRPO). ``reinforce_pp``: normalised
    over the whole batch (REINFORCE++)."""
    credit: Literal["episode", "reward_to_go"] = "episode"
    """What the turns of an ``[environment]``'s episode answer for. ``episode``: each for all of its reward.
    ``reward_to_go``: each for what is given after it was asked for, compared with the others' at the same turn
    (``credit.py``), so that rewards which are given between turns are credited where they were earned."""
    zero_variance: Literal["keep", "refill"] = "keep"
    """A group whose rewards are all equal teaches nothing: train on it all the same, or drop it and roll out another
    prompt in its slot (DAPO's dynamic sampling)."""
    max_refills: NonNegative | None = None
    """Most groups that ``zero_variance = "refill"`` drops per optimiser step (the default is 32); what comes after that
    is trained on, with a warning."""

    def __post_init__(self) -> None:
        if self.zero_variance == "refill":
            fill(self, {"max_refills": 32})


class OverlongConfig(Table, frozen=True, kw_only=True):
    """``[overlong]``: what becomes of completions that come near ``sampling.max_tokens`` or reach it."""

    buffer: NonNegative = 0
    """The last ``buffer`` tokens before ``sampling.max_tokens`` cost reward: from 0 at their start, linearly, to -1 at
    their end (DAPO, equation 13). 0 costs nothing."""
    mask: bool = False
    """Do not train on completions that ended at a length limit; their reward still counts in their group."""
