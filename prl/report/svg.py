"""A panel as SVG within a page: no script, readable in light and dark, in print, and without its colours.

Curves are told apart by their dashes too, and stand in the legend as they are drawn; a picture has its words for those
who do not see it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator

import numpy as np

from prl.report.curves import Curve, Panel
from prl.report.words import short, shown
from prl.view.columns import Floats

WIDTH, HEIGHT = 460, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 8, 30
_DASHES = ("", "6 3", "2 2", "8 3 2 3", "1 4", "10 4")
NUM_COLOURS = 6
_ROW = 16
_FLAT = 1e-12


class _Scale:
    """Values to pixels, over a range that begins and ends at a tick."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        if high - low < _FLAT * max(1.0, abs(high)):
            pad = abs(high) * 0.1 or 1.0
            low, high = low - pad, high + pad
        rough = (high - low) / 4
        size = 10.0 ** math.floor(math.log10(rough))
        step = size * min((factor for factor in (1, 2, 5, 10) if factor * size >= rough), default=10)
        self.low, self.high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        self.ticks = [self.low + index * step for index in range(round((self.high - self.low) / step) + 1)]
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        return self._start + (value - self.low) / (self.high - self.low) * (self._end - self._start)


def svg(panel: Panel) -> str:
    """The picture with its title, as a figure."""
    curves = panel.curves
    x = _Scale(*_ends([curve.x for curve in curves]), _LEFT, WIDTH - _RIGHT)
    y = _Scale(*_ends([values for curve in curves for values in (curve.low, curve.high)]), HEIGHT - _BOTTOM, _TOP)
    legend = len(curves) > 1
    height = HEIGHT + (_ROW * math.ceil(len(curves) / 2) + 4 if legend else 0)
    parts = [*_axes(x, y)]
    for index, curve in enumerate(curves):
        parts += _curve(curve, index, x, y)
    if legend:
        for index, curve in enumerate(curves):
            parts += _entry(curve, index)
    unit = f' <span class="unit">{shown(panel.unit)}</span>' if panel.unit else ""
    return (
        f"<figure><figcaption>{shown(panel.title)}{unit}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(_words(panel), quote=True)}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _ends(arrays: list[Floats]) -> tuple[float, float]:
    values = np.concatenate(arrays)
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)


def _axes(x: _Scale, y: _Scale) -> Iterator[str]:
    bottom = HEIGHT - _BOTTOM
    for tick in y.ticks:
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{short(tick)}</text>'
    for tick in x.ticks:
        yield f'<line class="axis" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        anchor = "end" if x(tick) > WIDTH - 2 * _RIGHT else "middle"
        yield f'<text x="{x(tick):.1f}" y="{bottom + 16}" text-anchor="{anchor}">{short(tick)}</text>'
    yield f'<text x="{(_LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 2}" text-anchor="middle">step</text>'
    yield f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>'


def _curve(curve: Curve, index: int, x: _Scale, y: _Scale) -> Iterator[str]:
    colour = f"c{index % NUM_COLOURS}"
    across = [x(value) for value in curve.x]
    if curve.has_points:
        for at, mean, low, high in zip(across, curve.mean, curve.low, curve.high, strict=True):
            yield f'<line class="{colour}" x1="{at:.1f}" x2="{at:.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}"/>'
            yield f'<circle class="{colour} dot" cx="{at:.1f}" cy="{y(mean):.1f}" r="3"/>'
    elif not np.array_equal(curve.low, curve.high):
        there = [f"{at:.1f},{y(value):.1f}" for at, value in zip(across, curve.high, strict=True)]
        back = [f"{at:.1f},{y(value):.1f}" for at, value in zip(across, curve.low, strict=True)]
        yield f'<polygon class="{colour} band" points="{" ".join(there + back[::-1])}"/>'
    points = " ".join(f"{at:.1f},{y(value):.1f}" for at, value in zip(across, curve.mean, strict=True))
    yield f'<polyline class="{colour} line" stroke-dasharray="{_dash(index)}" points="{points}"/>'


def _entry(curve: Curve, index: int) -> Iterator[str]:
    left, top = _LEFT + (WIDTH - _LEFT) // 2 * (index % 2), HEIGHT + 8 + _ROW * (index // 2)
    style = f'class="c{index % NUM_COLOURS} line" stroke-dasharray="{_dash(index)}"'
    yield f'<line {style} x1="{left}" x2="{left + 26}" y1="{top}" y2="{top}"/>'
    yield f'<text x="{left + 32}" y="{top + 4}">{shown(curve.label, 28)}</text>'


def _dash(index: int) -> str:
    return _DASHES[index % len(_DASHES)]


def _words(panel: Panel) -> str:
    told = "; ".join(
        f"{curve.label}: {short(curve.mean[0])} at step {short(curve.x[0])}, {short(curve.mean[-1])} at step"
        f" {short(curve.x[-1])}"
        for curve in panel.curves
    )
    return f"{panel.title}. {told}"
