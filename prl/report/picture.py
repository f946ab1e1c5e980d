"""The main curves as a PNG, for a paper or a pull request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prl.errors import ConfigError, MissingExtraError
from prl.report.curves import Panel

_COLUMNS = 3
_DASHES: tuple[tuple[int, tuple[float, ...] | None], ...] = (
    (0, None),
    (0, (6, 3)),
    (0, (2, 2)),
    (0, (8, 3, 2, 3)),
    (0, (1, 4)),
)


def write(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw ``panels``.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ConfigError: there is nothing to draw, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 -- only for the picture
        from matplotlib.figure import Figure  # noqa: PLC0415 -- the same
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report", "a picture of the curves") from error
    if not panels:
        raise ConfigError(f"{title}: nothing was recorded that could be drawn")
    rows = math.ceil(len(panels) / _COLUMNS)
    figure = Figure(figsize=(4.2 * _COLUMNS, 2.7 * rows + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_plain(title))
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(rows, _COLUMNS, place + 1)
        axes.set_title(_plain(panel.title), fontsize=10)
        axes.set_ylabel(_plain(panel.unit), fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        for index, curve in enumerate(panel.curves):
            style = _DASHES[index % len(_DASHES)]
            (line,) = axes.plot(curve.x, curve.mean, linestyle=style, linewidth=1.5, label=_plain(curve.label))
            if curve.has_points:
                errors = np.abs(np.stack([curve.mean - curve.low, curve.high - curve.mean]))
                axes.errorbar(curve.x, curve.mean, errors, fmt="o", markersize=3, color=line.get_color())
            else:
                axes.fill_between(curve.x, curve.low, curve.high, alpha=0.18, linewidth=0, color=line.get_color())
        if panel.curves[1:]:
            axes.legend(fontsize=7)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _plain(text: str) -> str:
    """Nothing that matplotlib would take for a formula, and no leading _, which leaves a legend out."""
    return "".join(c if c.isprintable() else " " for c in text)[:60].replace("$", r"\$").lstrip("_")
