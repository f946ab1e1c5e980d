"""Curves of a run for a picture that is some hundred points wide: a mean, a least and a largest value for each bucket.

Invariants:

- Buckets divide the rows asked for evenly and in order; the least and the largest of a bucket are those of its rows, so
  that no spike is lost by being drawn small.
- What a row has not is no value: the mean is over the rows that have one, and null where none has. A count that is
  written only where something happened (``dropped_<reason>``) is 0 elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from prl.view.columns import Columns, Floats

Axis = Literal["step", "at", "samples", "tokens"]
AXES: tuple[str, ...] = get_args(Axis)
REWARD, MEAN, DROPPED = "reward_", "_mean", "dropped_"


def axis(columns: Columns, x: str) -> Floats:
    """Where each row lies on ``x``.

    ``at`` is unix seconds; for a run that did not write them, the seconds that its steps took up to there.
    """
    if x == "samples":
        return np.cumsum(np.nan_to_num(columns.column("samples")))
    if x == "tokens":
        return np.cumsum(np.nan_to_num(columns.column("tokens_trained")))
    found = columns.column(x)
    if x == "at" and np.isnan(found).all():
        return np.cumsum(np.nan_to_num(columns.column("time_s")))
    return found


def values(columns: Columns, key: str) -> Floats:
    """A column, or one that follows from others: ``goodput``, tokens trained / tokens generated."""
    if key.startswith(DROPPED) and key in columns.names:
        return np.nan_to_num(columns.column(key))
    if key == "goodput" and key not in columns.names:
        generated = columns.column("tokens_generated")
        generated[generated == 0] = np.nan
        return columns.column("tokens_trained") / generated
    return columns.column(key)


def inside(positions: Floats, first: float | None, last: float | None) -> npt.NDArray[np.int64]:
    """The rows whose position is from ``first`` to ``last``."""
    kept = ~np.isnan(positions)
    if first is not None:
        kept &= positions >= first
    if last is not None:
        kept &= positions <= last
    return np.flatnonzero(kept)


def series(
    columns: Columns,
    keys: Sequence[str],
    *,
    x: str,
    first: float | None,
    last: float | None,
    points: int,
    by: str = "step",
) -> dict[str, Any]:
    """The curves of ``keys`` over ``x``, from ``first`` to ``last`` by the column ``by``; at most ``points``."""
    positions = axis(columns, x)
    rows = inside(columns.column(by), first, last)
    starts = _starts(len(rows), points)
    ends = np.append(starts[1:], len(rows)) - 1
    steps = columns.column("step")[rows]
    return {
        "x": positions[rows][ends] if len(rows) else [],
        "step": steps[ends] if len(rows) else [],
        "series": {key: _buckets(values(columns, key)[rows], starts) for key in keys},
        "total": len(rows),
    }


def histograms(
    columns: Columns, key: str, *, first: float | None, last: float | None, points: int
) -> tuple[Floats, Floats]:
    """Counts of a histogram, summed over buckets of steps: the last step of each, and buckets x bins."""
    steps = columns.column("step")
    rows = inside(steps, first, last)
    starts = _starts(len(rows), points)
    bucket = np.full(columns.num_rows, -1, dtype=np.int64)
    bucket[rows] = np.searchsorted(starts, np.arange(len(rows)), side="right") - 1
    ends = np.append(starts[1:], len(rows)) - 1
    return steps[rows][ends] if len(rows) else np.empty(0), columns.counts(key, bucket, len(starts))


def rewards(columns: Columns) -> list[str]:
    """Names of the rewards: ``answer`` where there is ``reward_answer_mean``."""
    return [
        name.removeprefix(REWARD).removesuffix(MEAN)
        for name in columns.names
        if name.startswith(REWARD) and name.endswith(MEAN) and name != "reward_mean"
    ]


def _starts(num_rows: int, points: int) -> npt.NDArray[np.int64]:
    """Where each bucket begins."""
    if num_rows <= points:
        return np.arange(num_rows)
    return np.arange(points) * num_rows // points


def _buckets(column: Floats, starts: npt.NDArray[np.int64]) -> dict[str, Floats]:
    if len(starts) == len(column):
        return {"mean": column, "min": column, "max": column}
    missing = ~np.isfinite(column)
    counts = np.add.reduceat((~missing).astype(float), starts)
    counts[counts == 0] = np.nan
    total = np.add.reduceat(np.where(missing, 0.0, column), starts)
    least = np.minimum.reduceat(np.where(missing, np.inf, column), starts)
    largest = np.maximum.reduceat(np.where(missing, -np.inf, column), starts)
    return {"mean": total / counts, "min": least, "max": largest}  # what is not finite is null in JSON
