"""Two curves of samples per second over staleness, compared where both reach.

Invariant: a curve never falls. What a side does at some staleness it may also do where staler data is allowed, so a
point that is both staler and slower than another one says nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import harness
import numpy as np

TARGET = 1.3


def best_at(points: Sequence[tuple[float, float]], wanted: float) -> float | None:
    """The best rate along a curve of (staleness, rate) at ``wanted`` or less; None where the curve does not reach.

    Between two neighbouring points the rate is interpolated linearly.
    """
    curve: list[tuple[float, float]] = []
    for staleness, rate in sorted(points):
        if not curve or rate > curve[-1][1]:
            curve.append((staleness, rate))
    if not curve or wanted < curve[0][0]:
        return None
    return float(np.interp(wanted, [point[0] for point in curve], [point[1] for point in curve]))


def compared(
    pipeline: Sequence[tuple[float, float]], conventional: Sequence[tuple[float, float]], levels: int = 9
) -> list[dict[str, float]]:
    """The ratio of both curves at evenly spaced staleness that both reach."""
    low = max(min(points)[0] for points in (pipeline, conventional))
    high = min(max(points)[0] for points in (pipeline, conventional))
    rows = []
    for wanted in np.linspace(low, high, levels).tolist() if high > low else []:
        ours, theirs = best_at(pipeline, wanted), best_at(conventional, wanted)
        if ours is not None and theirs is not None:
            rows.append({"at": wanted, "pipeline": ours, "conventional": theirs, "ratio": ours / theirs})
    return rows


def _middle(levels: Sequence[dict[str, float]]) -> float:
    """The median ratio; 0 where the curves have no staleness in common."""
    return statistics.median(level["ratio"] for level in levels) if levels else 0.0


def compare(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The ratios at equal ESS and at equal largest lag, and how well the model predicted.

    The spread of the headline is over the repeats: the rates of each, at the settings' median staleness.
    """
    sides: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for row in rows:
        sides[row["setting"].startswith("conventional")].append(row)

    def points(side: list[dict[str, Any]], what: str, repeat: int | None) -> list[tuple[float, float]]:
        staleness = [1 - row["ess"] if what == "ess" else float(row["lag_max"]) for row in side]
        rates = [row["samples_per_s"] for row in side]
        return list(
            zip(
                staleness, (rate["median"] if repeat is None else rate["values"][repeat] for rate in rates), strict=True
            )
        )

    def at_equal(what: str, repeat: int | None = None) -> list[dict[str, float]]:
        return compared(points(sides[False], what, repeat), points(sides[True], what, repeat))

    by_ess, by_lag = at_equal("ess"), at_equal("lag")
    by_repeat = [_middle(at_equal("ess", repeat)) for repeat in range(len(rows[0]["samples_per_s"]["values"]))]
    at_equal_ess = [{"ess": 1 - row.pop("at"), **row} for row in by_ess]
    at_equal_lag = [{"lag_max": row.pop("at"), **row} for row in by_lag]
    headline = _middle(at_equal_ess)
    misses = [abs(row["predicted_over_measured"] - 1) for row in rows]
    return {
        "headline": round(headline, 3),
        "headline_by_repeat": harness.spread(by_repeat),
        "target": f"at least {TARGET} at equal mean ESS",
        "target_met": headline >= TARGET,
        "ratio_at_equal_largest_lag": round(_middle(at_equal_lag), 3),
        "largest_miss_of_the_model": round(max(misses), 3),
        "median_miss_of_the_model": round(statistics.median(misses), 3),
        "at_equal_ess": at_equal_ess,
        "at_equal_largest_lag": at_equal_lag,
    }
