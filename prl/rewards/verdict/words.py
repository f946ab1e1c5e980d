"""Numbers in words: ``seven``, ``twenty-one``, ``a hundred and five``, ``two thirds``, ``two and a half``.

``a`` is 1 only within such a number: alone it is a letter, or an article before what is no number.
"""

from __future__ import annotations

import re
from fractions import Fraction

_SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_VALUES = {name: value for value, name in enumerate(_SMALL)} | {name: 20 + 10 * i for i, name in enumerate(_TENS)}
_PARTS = {
    "half": 2,
    "halves": 2,
    "third": 3,
    "fourth": 4,
    "quarter": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
    "ninth": 9,
    "tenth": 10,
    "hundredth": 100,
}
NUMBER_WORDS = frozenset([*_VALUES, *_PARTS, *(f"{name}s" for name in _PARTS), "hundred", "dozen", "thousand"])
"""Words that a number is made of, and that are never what is counted."""
_SCALES = {"thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
MAX_WORDS = 20


def number_in_words(text: str) -> Fraction | None:
    """The number that the words are, or None where they are none."""
    words = re.findall(r"[a-z]+", text.lower())
    if not 0 < len(words) <= MAX_WORDS:
        return None
    negative = words[0] in ("minus", "negative")
    words = words[1:] if negative else words
    value = _fraction(words)
    if value is None:
        whole = _integer(words)
        value = None if whole is None else Fraction(whole)
    return -value if negative and value is not None else value


def _fraction(words: list[str]) -> Fraction | None:
    """``two thirds``, ``a half``, ``half``, and behind a whole number and ``and``; None where they are none."""
    below = _PARTS.get(words[-1], _PARTS.get(words[-1].removesuffix("s"))) if words else None
    if below is None:
        return None
    before = words[:-1]
    if not before:
        return Fraction(1, 2) if words[-1] == "half" else None  # a third alone is an ordinal
    if "and" in before:
        at = len(before) - 1 - before[::-1].index("and")
        whole, part = _integer(before[:at]), _num_parts(before[at + 1 :])
        return None if whole is None or part is None or part >= below else whole + Fraction(part, below)
    above = _num_parts(before)
    return None if above is None else Fraction(above, below)


def _num_parts(words: list[str]) -> int | None:
    return 1 if words in (["a"], ["an"]) else _integer(words)


def _integer(words: list[str]) -> int | None:
    total = part = 0
    seen = False
    if len(words) > 1 and words[0] == "a" and words[1] in (*_SCALES, "hundred", "dozen"):
        words = ["one", *words[1:]]
    for word in words:
        if word in _VALUES:
            value = _VALUES[word]
            if part % 10 or (value >= 10 and part % 100):  # two numbers side by side  # noqa: PLR2004
                return None
            part += value
            seen = True
        elif word == "hundred" and 0 < part < 10:  # noqa: PLR2004
            part *= 100
        elif word == "dozen" and part:
            part *= 12
        elif word in _SCALES and part:
            total += part * _SCALES[word]
            part = 0
        elif word != "and" or not seen:
            return None
    return total + part if seen else None
