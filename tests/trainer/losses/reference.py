"""The losses once more, in plain Python over single tokens of dual numbers: an independent reference in float64.

A ``Dual`` is a value and its derivatives by the log-probabilities it depends on, so the gradients here share nothing
with autograd.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

BOUND = 20.0


class Dual(NamedTuple):
    """A number and its derivatives by the variables with these indices."""

    value: float
    slopes: Mapping[int, float] = {}

    def times(self, factor: float) -> Dual:
        """This times a constant."""
        return Dual(self.value * factor, {index: slope * factor for index, slope in self.slopes.items()})

    def plus(self, other: Dual) -> Dual:
        """The sum of two."""
        slopes = dict(self.slopes)
        for index, slope in other.slopes.items():
            slopes[index] = slopes.get(index, 0.0) + slope
        return Dual(self.value + other.value, slopes)

    def map(self, value: float, slope: float) -> Dual:
        """A function of this that has this value and this derivative here."""
        return Dual(value, {index: slope * inner for index, inner in self.slopes.items()})

    def clip(self, low: float, high: float) -> Dual:
        """Between two constants; constant outside."""
        return self if low <= self.value <= high else Dual(min(max(self.value, low), high))

    def exp(self) -> Dual:
        """Its exponential."""
        return self.map(math.exp(self.value), math.exp(self.value))


class Token(NamedTuple):
    """One trained token."""

    pi: float
    mu: float
    anchor: float
    advantage: float
    sequence: int


def _log_pi(tokens: Sequence[Token], at: int) -> Dual:
    return Dual(tokens[at].pi, {at: 1.0})


def _weight(log_ratio: float) -> float:
    return math.exp(min(max(log_ratio, -BOUND), BOUND))


def _ratio(tokens: Sequence[Token], at: int, other: float) -> Dual:
    return _log_pi(tokens, at).plus(Dual(-other)).clip(-BOUND, BOUND).exp()


def _pessimistic(ratio: Dual, advantage: float, low: float, high: float) -> Dual:
    free, held = ratio.times(advantage), ratio.clip(1 - low, 1 + high).times(advantage)
    return (free if free.value <= held.value else held).times(-1)


def reinforce(tokens: Sequence[Token], at: int, *, ratio_clip: float) -> Dual:
    """-min(c, w) A log pi."""
    token = tokens[at]
    return _log_pi(tokens, at).times(-min(ratio_clip, _weight(token.pi - token.mu)) * token.advantage)


def ppo(tokens: Sequence[Token], at: int, *, clip_low: float, clip_high: float) -> Dual:
    """-min(w A, clip(w) A)."""
    return _pessimistic(_ratio(tokens, at, tokens[at].mu), tokens[at].advantage, clip_low, clip_high)


def cispo(tokens: Sequence[Token], at: int, *, clip_low: float, clip_high: float) -> Dual:
    """-clip(w) A log pi."""
    token = tokens[at]
    weight = min(max(_weight(token.pi - token.mu), 1 - clip_low), 1 + clip_high)
    return _log_pi(tokens, at).times(-weight * token.advantage)


def gspo(tokens: Sequence[Token], at: int, *, clip_low: float, clip_high: float) -> Dual:
    """-min(s A, clip(s) A), s of the whole sequence."""
    mates = [index for index, token in enumerate(tokens) if token.sequence == tokens[at].sequence]
    mean = Dual(0.0)
    for mate in mates:
        log_ratio = _log_pi(tokens, mate).plus(Dual(-tokens[mate].mu)).clip(-BOUND, BOUND)
        mean = mean.plus(log_ratio.times(1 / len(mates)))
    return _pessimistic(mean.exp(), tokens[at].advantage, clip_low, clip_high)


def decoupled_ppo(tokens: Sequence[Token], at: int, *, clip_low: float, clip_high: float, ratio_clip: float) -> Dual:
    """-min(c, prox / mu) min(u A, clip(u) A), u = pi / prox."""
    token = tokens[at]
    held = _pessimistic(_ratio(tokens, at, token.anchor), token.advantage, clip_low, clip_high)
    return held.times(min(ratio_clip, _weight(token.anchor - token.mu)))


def masked_importance(tokens: Sequence[Token], at: int, *, mask_low: float, mask_high: float) -> Dual:
    """-w A log pi inside, 0 outside."""
    token = tokens[at]
    weight = _weight(token.pi - token.mu)
    inside = mask_low <= weight <= mask_high
    return _log_pi(tokens, at).times(-weight * token.advantage) if inside else Dual(0.0)


LOSSES = {each.__name__: each for each in (reinforce, ppo, cispo, gspo, decoupled_ppo, masked_importance)}


def penalty(pi: float, reference: float, estimator: str) -> tuple[float, float]:
    """An estimate of KL at one token, and its derivative by log pi."""
    log_ratio = reference - pi
    inside = -BOUND <= log_ratio <= BOUND
    x = min(max(log_ratio, -BOUND), BOUND)
    value, slope = {
        "k1": (-x, 1.0),
        "k2": (x * x / 2, -x),
        "k3": (math.exp(x) - 1 - x, 1 - math.exp(x)),
    }[estimator]
    return value, slope if inside else 0.0


def weight(length: int, num_sequences: int, max_tokens: int, aggregation: str) -> float:
    """What a token of a sequence with ``length`` trained tokens weighs."""
    return {
        "token_sum": 1 / num_sequences,
        "sequence_mean": 1 / num_sequences / length,
        "fixed_length": 1 / num_sequences / max_tokens,
    }[aggregation]
