"""How long completions are, drawn by prompt and seed. Pure.

Invariants:

- A length depends on the prompt's number and the stream's seed alone, so that two simulations which differ in how they
  schedule sample the same sequences.
- Lengths are in simulated tokens: a draw is divided by ``grain`` and rounded up or down at random, so that its mean
  stays what it was; it is at least 1 and at most the longest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist

from prl.config_simulate import LengthsConfig
from prl.errors import ConfigError
from prl.simulation import fraction

Quantile = Callable[[float], float]
_NORMAL = NormalDist()
_ALMOST_1 = 1 - 1e-12
_NUM_MET = 16
"""Sequences among which one is met by its length."""


class Lengths:
    """Draws lengths.

    Args:
        quantile: the length below which a share of all completions lies.
        longest: in tokens.
        grain: tokens of a simulated token.
        prompt_share: of the variance that is the prompt's own, 0 to 1.
        num_cut: prompts at the beginning that are drawn as a run that has gone on for long finds them under way.
        seed: of all draws.
        groups: in place of ``quantile``, the lengths of whole groups, of which each prompt has one.
    """

    def __init__(
        self,
        quantile: Quantile,
        *,
        longest: int,
        grain: int,
        prompt_share: float = 0.0,
        num_cut: int = 0,
        seed: int = 0,
        groups: Sequence[Sequence[float]] = (),
    ) -> None:
        self._quantile, self._longest, self._grain = quantile, longest, grain
        self._of_prompt, self._of_member = math.sqrt(prompt_share), math.sqrt(1 - prompt_share)
        self._num_cut, self._seed, self._groups = num_cut, seed, groups

    def __call__(self, prompt: int, seed: int) -> int:
        """The length of one completion in simulated tokens."""
        wanted = self._cut(prompt, seed) if prompt < self._num_cut else self._wanted(prompt, seed)
        return max(1, math.floor(min(wanted, self._longest) / self._grain + fraction(self._seed, prompt, seed, 1)))

    def _cut(self, prompt: int, seed: int) -> float:
        """What is left of one that is under way: a moment meets a sequence as often as it is long, anywhere in it."""
        met = [min(self._longest, self._wanted(prompt, seed + number)) for number in range(_NUM_MET)]
        place = fraction(self._seed, prompt, seed, 2) * sum(met)
        for length in met:
            if place <= length:
                return place
            place -= length
        return met[-1]

    def _wanted(self, prompt: int, seed: int) -> float:
        chance = fraction(self._seed, prompt, seed)
        if self._groups:
            group = self._groups[int(fraction(self._seed, prompt) * len(self._groups) * _ALMOST_1)]
            return group[int(chance * len(group) * _ALMOST_1)]
        if self._of_prompt:
            common = _NORMAL.inv_cdf(min(fraction(self._seed, prompt), _ALMOST_1))
            own = _NORMAL.inv_cdf(min(chance, _ALMOST_1))
            return self._quantile(_NORMAL.cdf(self._of_prompt * common + self._of_member * own))
        return self._quantile(chance)


def quantile_of(config: LengthsConfig, longest: int) -> Quantile:
    """The distribution that ``[simulate.lengths]`` names, but for ``file``."""
    mean = config.mean or longest / 4
    if config.kind == "fixed":
        return lambda _: mean
    if config.kind == "geometric":
        rate = -math.log1p(-1 / max(mean, 1 + 1e-9))
        return lambda share: max(1.0, math.ceil(-math.log1p(-min(share, _ALMOST_1)) / rate))
    if config.kind == "lognormal":
        middle = math.log(mean) - config.sigma**2 / 2
        return lambda share: math.exp(middle + config.sigma * _NORMAL.inv_cdf(min(max(share, 1e-12), _ALMOST_1)))
    return lambda share: math.ceil(share * longest)


def read_lengths(path: Path) -> list[list[float]]:
    """The lengths in a text file, by prompt; one number a line is one population for all prompts.

    Raises:
        ConfigError: it cannot be read, or holds something that is no length.
    """
    try:
        rows = [line.replace(",", " ").split() for line in path.read_text().splitlines()]
        groups = [[float(word) for word in row] for row in rows if row]
    except (OSError, ValueError) as error:
        raise ConfigError(f"simulate.lengths.path = {str(path)!r} holds no lengths: {error}") from error
    if not groups or any(not length >= 1 for group in groups for length in group):
        raise ConfigError(f"simulate.lengths.path = {str(path)!r} must hold lengths of at least 1 token")
    return [[length for group in groups for length in group]] if all(len(group) == 1 for group in groups) else groups
