"""Numbers in words: ``seven``, ``twenty-one``, ``three hundred and five``."""

from __future__ import annotations

import re

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
_SCALES = {"thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
MAX_WORDS = 20


def number_in_words(text: str) -> int | None:
    """The integer that the words are, or None where they are none."""
    words = re.findall(r"[a-z]+", text.lower())
    if not 0 < len(words) <= MAX_WORDS:
        return None
    negative = words[0] in ("minus", "negative")
    total = part = 0
    seen = False
    for word in words[1:] if negative else words:
        if word in _VALUES:
            value = _VALUES[word]
            if part % 10 or (value >= 10 and part % 100):  # two numbers side by side  # noqa: PLR2004
                return None
            part += value
            seen = True
        elif word == "hundred" and 0 < part < 10:  # noqa: PLR2004
            part *= 100
        elif word in _SCALES and part:
            total += part * _SCALES[word]
            part = 0
        elif word != "and" or not seen:
            return None
    if not seen:
        return None
    return -(total + part) if negative else total + part
