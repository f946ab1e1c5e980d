"""The main curves of runs: which they are, and over what they are drawn.

A panel is one picture with one scale. With several runs each panel has a curve of each run, and parts of a reward are
left to the report of one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from prl.report.gather import Told
from prl.view import series
from prl.view.columns import Floats

POINTS = 300
"""Of one curve."""
_PANELS = (
    ("Reward", "", ("reward_mean",)),
    ("Length", "tokens per sample", ("length_mean",)),
    ("Lag of trained tokens", "steps", ("lag_mean", "lag_max")),
    ("Effective sample size", "1 is on policy", ("ess",)),
    ("Gap between engine and trainer", "mean |difference| of log-probabilities", ("gap_mean", "gap_numerics")),
    ("Entropy", "nats", ("entropy",)),
    ("Divergence to the reference", "nats", ("kl_reference",)),
    ("Gradient norm", "", ("grad_norm",)),
    ("Throughput", "tokens per second", ("gen_tok_s", "train_tok_s")),
    ("Busy", "share of the time", ("trainer_busy", "engine_busy")),
)
_SHORT = {
    "lag_mean": "mean",
    "lag_max": "largest",
    "gap_mean": "all",
    "gap_numerics": "under the same weights",
    "gen_tok_s": "generated",
    "train_tok_s": "trained",
    "trainer_busy": "trainer",
    "engine_busy": "engines",
    "reward_mean": "all",
}


class Curve(NamedTuple):
    """One line with its range: least and largest of each bucket, or an interval."""

    label: str
    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    has_points: bool = False
    """Whether each point was measured by itself, as an evaluation is."""


class Panel(NamedTuple):
    """One picture."""

    title: str
    unit: str
    curves: list[Curve]


def panels(runs: Sequence[Told]) -> list[Panel]:
    """What there is to draw of ``runs``."""
    found = [_evaluations(runs)]
    for title, unit, keys in _PANELS:
        chosen = keys if len(runs) == 1 else keys[:1]
        curves = [curve for run in runs for key in chosen for curve in _of(run, key, is_only=len(runs) == 1)]
        of_first = _SHORT.get(keys[0], "") if len(runs) > 1 and keys[1:] else ""
        found.append(Panel(title, ", ".join(filter(None, (unit, of_first))), curves))
        if title == "Reward" and len(runs) == 1:
            names = series.rewards(runs[0].columns)
            parts = [curve for name in names for curve in _of(runs[0], f"reward_{name}_mean", label=name)]
            found.append(Panel("Reward by part", "", parts if names[1:] else []))
    return [panel for panel in found if panel.curves]


def _of(run: Told, key: str, *, is_only: bool = True, label: str | None = None) -> list[Curve]:
    """The curve of a column, if there is anything in it."""
    told = series.series(run.columns, [key], x="step", first=None, last=None, points=POINTS)
    curve = told["series"][key]
    kept = np.isfinite(curve["mean"])
    if not kept.any():
        return []
    name = label or (_SHORT.get(key, key) if is_only else run.name)
    x = np.asarray(told["x"])[kept]
    return [Curve(name, x, curve["mean"][kept], curve["min"][kept], curve["max"][kept])]


def _evaluations(runs: Sequence[Told]) -> Panel:
    curves = []
    for run in runs:
        whole = [line for line in run.evaluations if line.get("complete", True)]
        label = "mean reward" if len(runs) == 1 else run.name
        curves += _points(label, [(line["step"], line.get("reward_mean"), line.get("interval")) for line in whole])
        if len(runs) == 1:
            curves += [curve for k in _ks(whole) for curve in _points(f"pass@{k}", _passed(whole, k))]
    return Panel("Evaluations", "held-out prompts, with 95% intervals", curves)


def _ks(lines: Sequence[dict[str, Any]]) -> list[str]:
    found = {k for line in lines if isinstance(line.get("pass_at"), dict) for k in line["pass_at"]}
    return sorted(found, key=lambda k: (len(k), k))


def _passed(lines: Sequence[dict[str, Any]], k: str) -> list[tuple[Any, Any, Any]]:
    """Step, pass@k and its interval of each line that has them."""
    found = []
    for line in lines:
        told = line["pass_at"].get(k) if isinstance(line.get("pass_at"), dict) else None
        if isinstance(told, dict):
            found.append((line["step"], told.get("mean"), (told.get("low"), told.get("high"))))
    return found


def _points(label: str, rows: list[tuple[Any, Any, Any]]) -> list[Curve]:
    """A curve of single measurements; one without its interval has none drawn."""
    whole = [(x, mean, _interval(interval, mean)) for x, mean, interval in rows if _is_number(mean)]
    if not whole:
        return []
    x, mean = (np.array([row[index] for row in whole], dtype=float) for index in (0, 1))
    low, high = (np.array([row[2][index] for row in whole], dtype=float) for index in (0, 1))
    return [Curve(label, x, mean, low, high, has_points=True)]


def _interval(given: Any, mean: float) -> tuple[float, float]:
    if isinstance(given, list | tuple) and len(given) == 2 and all(map(_is_number, given)):  # noqa: PLR2004 -- two ends
        return float(given[0]), float(given[1])
    return mean, mean


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))
