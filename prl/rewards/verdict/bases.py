r"""Digits in a stated base: ``52_8``, ``(52)_{\text{eight}}``, ``52 base 8``, ``0xFF``.

A letter with an index is a symbol, and no digit of a number, unless the word ``base`` stands there.
"""

from __future__ import annotations

import re

from prl.rewards.verdict.kinds import Based
from prl.rewards.verdict.node import UnreadableError

MAX_DIGITS = 200
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_BASED = re.compile(
    r"\(?\s*([0-9A-Fa-f]+)\s*\)?\s*(?:_\s*\{?|(?=\(?\s*(?:in )?base\b))"  # the digits, and before the base
    r"\s*\(?\s*(?:(?:in )?base\s*)?(\d{1,2}|[a-z]+)\s*\)?\s*\}?"
)
_PREFIXED = re.compile(r"0([box])([0-9A-Fa-f]+)")
_PREFIXES = {"b": 2, "o": 8, "x": 16}
_NAMES = dict(zip(("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), range(2, 11), strict=True))
_NAMES |= {"eleven": 11, "twelve": 12, "sixteen": 16, "binary": 2, "octal": 8, "decimal": 10, "hexadecimal": 16}


def based(text: str) -> Based | None:
    """The number, or None where no base is stated. Raises UnreadableError where it has digits that its base has not."""
    if prefixed := _PREFIXED.fullmatch(text):
        letter, digits = prefixed.groups()
        return _number(digits, _PREFIXES[letter])
    match = _BASED.fullmatch(_TEXT.sub(r" \1 ", text).strip())
    if match is None:
        return None
    digits, name = match.groups()
    base = int(name) if name.isdigit() else _NAMES.get(name, 0)
    if "base" not in text and not _may_have_digits(digits, base):
        return None
    return _number(digits, base)


def _may_have_digits(digits: str, base: int) -> bool:
    """Whether ``digits`` with ``base`` below them are no symbol with an index: ``a_n``, ``F_2``, ``2a_3`` are."""
    if digits.isdigit():
        return base > 0
    return len(digits) > 1 and all(digit.isdigit() or ord(digit.upper()) - ord("A") + 10 < base for digit in digits)


def _number(digits: str, base: int) -> Based:
    try:
        if len(digits) <= MAX_DIGITS and base > 1:
            return Based(int(digits, base), base)
    except ValueError:
        pass
    raise UnreadableError(f"{digits[:MAX_DIGITS]} is no number in base {base}")
