"""What the examination measured, reduced to numbers, and how two lists of log-probabilities are compared.

- A gap is taken token by token between the log-probability that the engine reported when it sampled a token (log mu)
  and another one of the same token (log pi), mostly the trainer's.
- Everything here is finite, so that it can be written as JSON: a log-probability that is not counts as ``WORST`` off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

WORST = 1e4
"""Largest gap of a token: what stands for a log-probability that is not finite."""
_MAX_LOG_RATIO = 50.0
_TINY = 1e-300


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """How far log pi is from log mu over some tokens."""

    num_tokens: int
    mean: float
    """Mean of abs(log mu - log pi)."""
    max: float
    """Largest of them."""
    bias: float
    """Mean of log mu - log pi, signed: the k1 estimate of KL(mu, pi). As large as ``mean`` where mu is never lower."""
    kl: float
    """The k3 estimate of KL(mu, pi), mean of r - 1 - log r with r = pi / mu: never below 0."""
    ess: float
    """(sum r)^2 / (n sum r^2): 1 where both agree."""
    mass: float
    """Mean of r, with tokens drawn from mu the share of pi's probability that mu can sample: 1 up to chance, less
    where a filter cuts a tail off."""


def gap_of(pairs: Iterable[tuple[float, float]]) -> Gap:
    """Compare (log mu, log pi) pairs; of none, the gap of two that agree."""
    differences = [_difference(mu, pi) for mu, pi in pairs]
    count = max(1, len(differences))
    ratios = [math.exp(min(-d, _MAX_LOG_RATIO)) for d in differences] or [1.0]
    return Gap(
        num_tokens=len(differences),
        mean=math.fsum(map(abs, differences)) / count,
        max=max(map(abs, differences), default=0.0),
        bias=math.fsum(differences) / count,
        kl=math.fsum(r - 1 + d for r, d in zip(ratios, differences, strict=False)) / count,
        ess=math.fsum(ratios) ** 2 / max(len(ratios) * math.fsum(r * r for r in ratios), _TINY),
        mass=math.fsum(ratios) / len(ratios),
    )


def _difference(mu: float, pi: float) -> float:
    difference = mu - pi
    return max(-WORST, min(WORST, difference)) if math.isfinite(difference) else WORST


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """One completion as the engine reported it."""

    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    stopped: bool
    """It ended with a stop token, not at a length limit."""

    @property
    def ids(self) -> list[int]:
        """Prompt and completion."""
        return self.prompt_ids + self.token_ids

    def pairs(self, scores: Sequence[float], num_prefixed: int = 0) -> list[tuple[float, float]] | None:
        """(engine's, other's) of each token of the completion.

        Args:
            scores: of each token after the first of the sequence.
            num_prefixed: tokens that this sequence had more before the prompt (or, negative, fewer).

        Returns:
            None where the number of scores is not that of the tokens: something else was scored.
        """
        if len(scores) != len(self.ids) + num_prefixed - 1:
            return None
        return list(zip(self.logprobs, scores[-len(self.token_ids) :], strict=False))


class Forward(msgspec.Struct, frozen=True, kw_only=True):
    """One forward pass of each side over the probe, at temperature 1, without any sampling."""

    gap: Gap
    """The engine's score against the trainer's, read as the prefix that fits best."""
    exact: float
    """Mean of it where the trainer computes in float32."""
    rounded: float
    """Mean of it where the trainer computes in ``dtype``."""
    dtype: str
    """The shorter of the configured types, bfloat16 where both are float32."""
    rounding: float
    """Mean gap between the trainer in float32 and in ``dtype``: what rounding does to this model."""


class Nudged(msgspec.Struct, frozen=True, kw_only=True):
    """What followed when the trainer changed one group of tensors and pushed."""

    group: str
    num_tensors: int
    moved: float
    """Mean change of a log-probability in the trainer."""
    missed: float
    """Mean distance between that change and the engine's, as a share of ``moved``: 0 it followed, 1 it did not."""


class PromptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the rendered prompts look like."""

    num_prompts: int
    bos_token_id: int | None
    num_leading_bos: int
    """Most BOS tokens at the start of a prompt."""
    num_inner_bos: int
    """Most BOS tokens that a prompt's own text brought in, beyond those of its template."""
    starts_plain_text: bool
    """The tokenizer puts a BOS before plain text: the model was made for one."""
    keeps_history: bool | None
    """The template renders earlier turns as they were; None: there is no template."""
    num_too_long: int


class StopFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How completions end."""

    stop_token_ids: list[int]
    eos_token_id: int | None
    """The tokenizer's own."""
    pad_is_eos: bool
    num_stopped: int
    """Of the sampled completions."""
    num_sampled: int


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the causes are judged by."""

    temperature: float
    engine_dtype: str
    trainer_dtype: str
    tolerance: float
    """Largest accepted gap of a token at temperature 1."""
    gap: Gap
    """Engine against trainer on every sampled token, as training would see it."""
    num_misfits: int
    """Sequences for which the trainer returned another number of log-probabilities than they have tokens."""
    probe: Gap
    """The same on the sequences on which the hypotheses are tried."""
    by_temperature: dict[str, float]
    """Mean gap on the probe where the trainer scores at other temperatures."""
    by_prefix: dict[str, float]
    """Mean gap on the probe where the trainer scores with a BOS more or fewer."""
    sampler: Gap
    """The engine against itself at temperature 1: what it reported when it sampled against its score of the same
    tokens, which no sampling setting touches."""
    forward: Forward
    nudged: list[Nudged]
    num_retokenised: int
    """Sampled completions whose text gives other tokens."""
    kept: Gap
    """``gap`` over the completions whose text gives the same tokens."""
    changed: Gap
    """``gap`` over the others."""
    sampling_defaults: dict[str, float]
    """What the model folder's generation config would change in the distribution, if anything read it."""
    prompts: PromptFacts
    stops: StopFacts
