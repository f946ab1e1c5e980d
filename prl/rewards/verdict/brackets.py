"""Where a text can be taken apart: outside of its brackets. Round and square ones may pair, as intervals do."""

from __future__ import annotations

import re

_BRACKET = re.compile(r"\\[{}]|\\langle|\\rangle|[(\[{}\])]|\\.", re.DOTALL)


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    """The parts of ``text`` between separators that stand in no bracket."""
    parts, start = [], 0
    for match in outside(text, separator):
        parts.append(text[start : match.start()])
        start = match.end()
    return [*parts, text[start:]]


def outside(text: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    r"""Matches that stand in no bracket; one that would open in ``\text{`` counts as a whole."""
    found = []
    brackets = [(match.start(), match.group()) for match in _BRACKET.finditer(text)]
    depth, position = 0, 0
    for match in pattern.finditer(text):
        while position < len(brackets) and brackets[position][0] < match.start():
            bracket = brackets[position][1].removeprefix("\\")
            depth += 1 if bracket in ("(", "[", "{", "langle") else -1 if bracket in (")", "]", "}", "rangle") else 0
            position += 1
        if depth == 0:
            found.append(match)
    return found


def inside(text: str) -> str | None:
    """What stands between the first bracket and its partner, where that is the end of the text."""
    if not text.startswith(("(", "[", "{", r"\{", r"\langle")):
        return None
    depth = 0
    for match in _BRACKET.finditer(text):
        bracket = match.group().removeprefix("\\")
        depth += 1 if bracket in ("(", "[", "{", "langle") else -1 if bracket in (")", "]", "}", "rangle") else 0
        if depth == 0:
            first = re.match(r"\\\{|\\langle|.", text)
            assert first is not None
            return text[first.end() : match.start()] if match.end() == len(text) else None
    return None
