r"""Named rules for what is written in several ways, applied by ``text.clean`` in their order, each a linear scan.

A rule changes how something is written and never what it says; each has an example in its test.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple


class Rule(NamedTuple):
    """One rule."""

    name: str
    pattern: re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str]

    def __call__(self, text: str) -> str:
        """The text by this rule."""
        return self.pattern.sub(self.replacement, text)


_ANSWER = r"(?:so )?(?:the )?(?:final |correct |right )?answer(?: is\b:?| ?[:=])"
_MAGNITUDES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}


def _repeating(match: re.Match[str]) -> str:
    r"""``0.1\overline{6}`` is 1/6: (16 - 1) / 90."""
    whole, once, *periods = match.groups()
    period = next(filter(None, periods))
    shift = 10 ** len(once)
    value = (int(whole + once + period) - int(whole + once)) / Fraction(shift * (10 ** len(period) - 1))
    return rf"{{\frac{{{value.numerator}}}{{{value.denominator}}}}}"


def _magnitude(match: re.Match[str]) -> str:
    r"""``2.5 million`` is ``2.5 \cdot 10^6``; what stands in the same ``\text`` behind it stays in one."""
    opened, word, closed = match.groups()
    return rf" \cdot 10^{{{_MAGNITUDES[word.lower()]}}} " + (r"\text{" if opened and not closed else "")


def _reversed_brackets(match: re.Match[str]) -> str:
    """``]0,1[`` is the open interval, as in France."""
    opening, inner, closing = match.groups()
    return ("(" if opening == "]" else "[") + inner + (")" if closing == "[" else "]")


RULES = (
    Rule("colour", re.compile(r"\\(?:text)?color ?\{[a-zA-Z]+\}"), ""),
    Rule("backticks and check marks", re.compile(r"`|\\checkmark(?![a-zA-Z])|\u2713"), ""),
    Rule("words before the answer in text", re.compile(rf"^ ?\\text ?\{{ ?{_ANSWER} ?\}}", re.IGNORECASE), ""),
    Rule("words before the answer", re.compile(rf"^ ?(\\text ?\{{)? ?{_ANSWER} ?", re.IGNORECASE), r"\1"),
    Rule(
        "a sign before the answer",
        re.compile(r"^(?: ?(?:=|\\(?:approx|simeq|Rightarrow|rightarrow|implies|therefore|to)(?![a-zA-Z])))+"),
        "",
    ),
    Rule(
        "raised and lowered fraction", re.compile(r"(?:\{\})?\^\{?(\d{1,9})\}? ?/ ?_\{?(\d{1,9})\}?"), r"\\frac{\1}{\2}"
    ),
    Rule("over", re.compile(r"\{([^{}]*)\\over(?![a-zA-Z])([^{}]*)\}"), r"\\frac{\1}{\2}"),
    Rule("over, without braces", re.compile(r"^([^{}]*)\\over(?![a-zA-Z])([^{}]*)$"), r"\\frac{\1}{\2}"),
    Rule("choose", re.compile(r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}"), r"\\binom{\1}{\2}"),
    Rule(
        "repeating decimal",
        re.compile(
            r"(?<![\d.])(\d{1,20})\.(\d{0,20}?)(?:\\overline ?\{(\d{1,20})\}|\\dot ?\{?(\d)\}?(?!\d)|\((\d{1,20})\)"
            r"|(\d)\6{2,20}(?:\.\.\.|\\ldots)|(\d{2,6})\7{1,20}(?:\.\.\.|\\ldots))"
        ),
        _repeating,
    ),
    Rule("ellipsis behind a digit", re.compile(r"(?<=\d) ?\.{3,}"), r"\\ldots "),
    Rule("apostrophes between thousands", re.compile(r"(?<=\d)'(?=\d{3}(?!\d))"), ""),
    Rule(
        "magnitude in words",
        re.compile(r"(?<=[\d}]) ?(\\text ?\{)? ?(thousand|million|billion|trillion)(?![a-zA-Z]) ?(\})?", re.IGNORECASE),
        _magnitude,
    ),
    Rule("union in letters", re.compile(r"(?<=[)\]]) ?U ?(?=[(\[])"), r"\\cup "),
    Rule("reversed brackets", re.compile(r"^ ?([\[\]])([^\[\]]*)([\[\]]) ?$"), _reversed_brackets),
    Rule("name of a segment", re.compile(r"\\(?:overline|overleftrightarrow) ?\{([A-Z]{2})\}"), r"\1"),
    Rule(
        "fraction of units",
        re.compile(r"\\frac ?\{ ?\\text ?\{([^{}]*)\} ?\} ?\{ ?\\text ?\{([^{}]*)\} ?\}"),
        r" \\text{\1/\2}",
    ),
    Rule("braces around an exponent in text", re.compile(r"(\\text ?\{[^{}]*\^)\{(-?\d)\}"), r"\1\2"),
    Rule(
        "points behind abbreviated units",
        re.compile(r"(?<![a-zA-Z])(sq|cu|in|ft|hr|min|sec)\.(?= ?(?:$|[a-zA-Z}]))"),
        r"\1",
    ),
    Rule("exclamation", re.compile(r"!{3,} ?$"), ""),
)
"""In the order in which they are applied."""
