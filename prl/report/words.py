"""Text and numbers as a report shows them."""

from __future__ import annotations

import html
import math
from typing import Any

_KEPT = "\n\t"


def shown(value: Any, limit: int = 2000) -> str:
    """Text for HTML: escaped, cut in its middle beyond ``limit``, and without characters that turn or hide others."""
    text = value if isinstance(value, str) else _plain(value)
    text = "".join(c if c.isprintable() or c in _KEPT else "\N{REPLACEMENT CHARACTER}" for c in text)
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return html.escape(text, quote=True)


def short(value: float) -> str:
    """A number for an axis or a table."""
    if not math.isfinite(value):
        return "-"
    if value == 0 or abs(value) < 1e-12:  # noqa: PLR2004 -- what rounding left of 0
        return "0"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.4g}"


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "unset"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
