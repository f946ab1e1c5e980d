"""The proof that a weight update moved what it should: both sides' log-probabilities of a few fixed tokens.

Invariants:

- An engine's differ from the trainer's by the tolerance at most, of the same version.
- They have moved where the trainer's have, since the last proof: a transfer that reports success and moved nothing does
  not pass, unless the trainer's own moved by less than ``STANDS_STILL`` of the tolerance. Old and new weights are then
  the same as far as can be told.
- Every engine is judged by itself, whichever group it was updated with, and named in what is found wrong.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from prl.errors import WeightSyncError

STANDS_STILL = 0.1
"""Less than this part of how far the trainer's log-probabilities moved is no movement; less than this part of the
tolerance is too little of the trainer's to judge by, for rounding moves an engine's as far."""


class Proof:
    """The judge of each version's answers, and what the last ones were.

    Args:
        probe: the tokens; at least one.
        tolerance: accepted difference.
        gap_of: makes one number of the probe's differences, their maximum or a mean.
    """

    def __init__(self, probe: list[int], tolerance: float, gap_of: Callable[[list[float]], float]) -> None:
        self.token_ids = probe if len(probe) > 1 else probe * 2  # a log-probability needs a token before its own
        self._tolerance, self._gap_of = tolerance, gap_of
        self._proven: tuple[list[float], dict[str, list[float]]] | None = None
        self.gap_mean: float | None = None
        """The mean of the probe's differences at the last proof, of the worst engine; None before the first."""
        self.gap: float | None = None
        """How far the log-probabilities of the worst engine were from the trainer's at the last proof."""

    def judge(self, version: int, expected: list[float], by_engine: dict[str, list[float]]) -> None:
        """Compare at least one engine with what the trainer says. Raises WeightSyncError."""
        self.gap = self._largest_gap(version, expected, by_engine)
        self.gap_mean = max(statistics.fmean(_differences(expected, found)) for found in by_engine.values())
        self._check_moved(version, expected, by_engine)
        self._proven = expected, by_engine

    def _largest_gap(self, version: int, expected: list[float], by_engine: dict[str, list[float]]) -> float:
        largest = 0.0
        for engine, found in by_engine.items():
            gap = self._gap_of(_differences(expected, found))
            if gap > self._tolerance:
                raise WeightSyncError(
                    f"{engine} does not serve the trainer's weights of version {version}: on {len(expected)} tokens the"
                    f" log-probabilities differ by {gap:.3g}, above weights.verify_tolerance = {self._tolerance:g}"
                )
            largest = max(largest, gap)
        return largest

    def _check_moved(self, version: int, expected: list[float], by_engine: dict[str, list[float]]) -> None:
        """Refuse an engine that agrees within the tolerance, but says what it said at the last proof."""
        if self._proven is None:
            return
        before, before_by_engine = self._proven
        moved = self._gap_of(_differences(before, expected))
        if moved <= STANDS_STILL * self._tolerance:
            return
        for engine, found in by_engine.items():
            if engine not in before_by_engine:
                continue
            stood = self._gap_of(_differences(before_by_engine[engine], found))
            if stood < STANDS_STILL * moved:
                raise WeightSyncError(
                    f"{engine} does not serve the trainer's weights of version {version}: on {len(expected)} tokens the"
                    f" trainer's log-probabilities moved by {moved:.3g} since the last proof, its own by {stood:.3g}"
                )


def _differences(expected: list[float], found: list[float]) -> list[float]:
    """Differences between two lists of log-probabilities; infinite where they cannot be compared."""
    if not len(expected) == len(found) > 0:
        return [math.inf]
    gaps = [abs(a - b) for a, b in zip(expected, found, strict=True)]
    return gaps if all(map(math.isfinite, gaps)) else [math.inf]
