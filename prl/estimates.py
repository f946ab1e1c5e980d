"""What a sample of rewards says about its mean, and of pass@k. Pure.

- Answers to one prompt are not independent: the spread of a mean is that of the prompts' means (the cluster-robust
  variance; Miller 2024, "Adding Error Bars to Evals", arXiv 2411.00640, section 2.2). Each prompt weighs the same.
- Values within [0, 1] have Wilson's score interval for as many independent answers as would be that certain (Wilson
  1927; the effective sample size after Korn and Graubard 1998, in the score interval as Franco et al. 2019 compare it).
  It stays within [0, 1], and it has a width where every answer was right. Other values have the normal interval.
- Intervals are asymptotic: from some thirty prompts on they cover what they say.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

Z_95 = 1.96


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def pass_at_k(num_answers: int, num_passed: int, k: int) -> float:
    """Probability that at least one of ``k`` answers passes, unbiased: 1 - C(n - c, k) / C(n, k).

    Chen et al. 2021 (arXiv 2107.03374), equation 1: the share of the k-subsets of the n answers that hold one of the
    c that passed.

    Args:
        num_answers: n, the answers that were sampled independently, at least ``k``.
        num_passed: c, how many of them passed.
        k: at least 1.
    """
    if not (1 <= k <= num_answers and 0 <= num_passed <= num_answers):
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, got k = {k}, n = {num_answers}, c = {num_passed}")
    return 1 - math.comb(num_answers - num_passed, k) / math.comb(num_answers, k)


def estimate(values_by_prompt: Sequence[Sequence[float]]) -> Estimate:
    """Mean and interval of the values of at least one prompt, each with at least one value."""
    means = [statistics.fmean(values) for values in values_by_prompt]
    mean = statistics.fmean(means)
    if min(map(min, values_by_prompt)) >= 0 and max(map(max, values_by_prompt)) <= 1:
        return _wilson(min(mean, 1.0), _effective_size(values_by_prompt, means, mean))
    width = Z_95 * math.sqrt(_variance_of_mean(means)) if len(means) > 1 else math.inf
    return Estimate(mean=mean, low=mean - width, high=mean + width)


def _variance_of_mean(means: Sequence[float]) -> float:
    return statistics.variance(means) / len(means)


def _effective_size(values_by_prompt: Sequence[Sequence[float]], means: Sequence[float], mean: float) -> float:
    """How many independent right-or-wrong answers would be as certain as these.

    At least the number of prompts: no values within [0, 1] spread more than prompts that are all right or all wrong.
    At most the number of values where each is 0 or 1, and where the prompts' means are all the same.
    """
    num_prompts, num_values = len(means), sum(map(len, values_by_prompt))
    if num_prompts == 1 or mean in {0.0, 1.0}:
        return num_prompts
    if min(means) == max(means):
        return num_values
    variance = _variance_of_mean(means)  # 0 where the means differ by less than can be squared
    size = max(num_prompts, mean * (1 - mean) / variance) if variance > 0 else num_values
    is_binary = all(value in {0.0, 1.0} for values in values_by_prompt for value in values)
    return min(size, num_values) if is_binary else size


def _wilson(mean: float, size: float) -> Estimate:
    spread = Z_95 * math.sqrt(mean * (1 - mean) / size + Z_95**2 / (4 * size**2))
    centre, scale = mean + Z_95**2 / (2 * size), 1 + Z_95**2 / size
    low, high = (centre - spread) / scale, (centre + spread) / scale
    return Estimate(mean=mean, low=min(mean, max(0.0, low)), high=max(mean, min(1.0, high)))
