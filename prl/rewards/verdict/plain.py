r"""Plain numbers, compared without a worker: most answers are one, and a short one cannot take long.

- A text is plain that is an integer, with thousands separators or without, a decimal, or a fraction of two integers
  (``3/4``, ``\frac{3}{4}``), of at most ``MAX_CHARS`` characters. Everything else is for ``same.py``.
- What is said here of two plain numbers is what ``same.py`` says of them.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from prl.rewards.verdict.policy import Policy

MAX_CHARS = 40
_PLAIN = re.compile(
    r"([-+]?)(?:\\[dt]?frac\{(\d+)\}\{(\d+)\}|(\d+)/(\d+)|([1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.(\d+))?)", re.ASCII
)


class Plain(NamedTuple):
    """A number that was read."""

    value: Fraction
    is_decimal: bool
    """It was written with a decimal point, so that it may be rounded."""
    text: str
    """Without separators."""


def read_plain(text: str) -> Plain | None:
    """The number that a text is; None where it is none, or not a plain one."""
    if len(text) > MAX_CHARS or (match := _PLAIN.fullmatch(text.strip())) is None:
        return None
    sign, above, below, over, under, whole, decimals = match.groups()
    if whole is None:
        numerator, denominator = int(above or over), int(below or under)
        if denominator == 0:
            return None
        value = Fraction(numerator, denominator)
    else:
        whole = whole.replace(",", "")
        value = Fraction(int(whole + (decimals or "")), 10 ** len(decimals or ""))
    cleaned = match.group().replace(",", "").replace("dfrac", "frac").replace("tfrac", "frac")
    return Plain(-value if sign == "-" else value, decimals is not None, cleaned)


def compare_plain(gold: str, answer: str, policy: Policy) -> tuple[float, str] | None:
    """The verdict on two plain numbers and its reason; None where either is none."""
    right, given = read_plain(gold), read_plain(answer)
    if right is None or given is None:
        return None
    if right.text == given.text:
        return 1.0, "same_text"
    tolerance = policy.relative_tolerance if right.is_decimal or given.is_decimal else 0.0
    return (1.0, "same_value") if close_rationals(right.value, given.value, tolerance) else (0.0, "other_value")


def close_rationals(a: Fraction, b: Fraction, tolerance: float) -> bool:
    """Whether two rationals are equal, or close to each other where neither is an integer."""
    if a == b or not tolerance or a.denominator == 1 or b.denominator == 1:
        return a == b
    return abs(a - b) <= Fraction(tolerance) * max(abs(a), abs(b))
