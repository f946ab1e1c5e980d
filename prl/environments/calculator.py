"""A calculator as a tool: exact arithmetic on rational numbers, read here and never executed.

Invariant: whatever the text, working it out takes milliseconds: its length, its depth, the size of its numbers and of
its powers are bounded.
"""

from __future__ import annotations

import contextlib
import re
from fractions import Fraction

from prl.environments.session import Session
from prl.environments.tools import Tool, run_tools
from prl.types import Prompt

MAX_LENGTH, MAX_DEPTH, MAX_BITS = 500, 50, 4096
_TOKEN = re.compile(r"\s*(?:(\d+\.?\d*|\.\d+)|(\*\*|//|[-+*/%^()]))")
_SAME = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-"})


async def calculator(session: Session, prompt: Prompt) -> None:
    """Let the model calculate on its way to an answer, which ``[[rewards]]`` judge."""
    messages = prompt.messages or [{"role": "user", "content": prompt.text}]
    await run_tools(session, messages, [CALCULATOR])


async def calculate(expression: str) -> str:
    """The value of an expression: an integer, or a fraction with its decimals. Raises ValueError."""
    value = value_of(expression)
    if value.denominator == 1:
        return str(value.numerator)
    with contextlib.suppress(OverflowError):
        return f"{value.numerator}/{value.denominator} = {float(value):.12g}"
    return f"{value.numerator}/{value.denominator}"


CALCULATOR = Tool(
    name="calculator",
    description="Work out an arithmetic expression of numbers, + - * / // % ** and parentheses.",
    parameters={
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "such as (17 + 25) * 3"}},
        "required": ["expression"],
    },
    call=calculate,
)


def value_of(expression: str) -> Fraction:
    """The exact value of an arithmetic expression; precedence is Python's, ``^`` is a power too.

    Raises:
        ValueError: it is none, too long or too deep, divides by 0, or its value is too large.
    """
    if not isinstance(expression, str) or len(expression) > MAX_LENGTH:
        raise ValueError(f"an expression is a text of at most {MAX_LENGTH} characters")
    text, tokens, at = expression.translate(_SAME).strip(), list[str](), 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"{text[at : at + 20]!r} is no arithmetic")
        tokens.append(match[1] or match[2])
        at = match.end()
    reader = _Reader(tokens)
    value = reader.sum(0)
    if reader.next is not None:
        raise ValueError(f"nothing can be made of {reader.next!r}")
    return value


class _Reader:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._at = tokens, 0

    @property
    def next(self) -> str | None:
        """The token that comes; None at the end."""
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self) -> str:
        if (token := self.next) is None:
            raise ValueError("the expression ends too early")
        self._at += 1
        return token

    def sum(self, depth: int) -> Fraction:
        """Terms added and subtracted."""
        _check_depth(depth)
        value = self._product(depth)
        while self.next in ("+", "-"):
            value = value + self._product(depth) if self._take() == "+" else value - self._product(depth)
        return _bounded(value)

    def _product(self, depth: int) -> Fraction:
        value = self._signed(depth)
        while (operator := self.next) in ("*", "/", "//", "%"):
            self._take()
            value = _bounded(_combined(value, operator, self._signed(depth)))
        return value

    def _signed(self, depth: int) -> Fraction:
        sign = 1
        while self.next in ("+", "-"):
            sign = -sign if self._take() == "-" else sign
        return sign * self._power(depth)

    def _power(self, depth: int) -> Fraction:
        base = self._atom(depth)
        if self.next not in ("**", "^"):
            return base
        self._take()
        _check_depth(depth)
        return _power_of(base, self._signed(depth + 1))

    def _atom(self, depth: int) -> Fraction:
        token = self._take()
        if token == "(":  # noqa: S105 -- a parenthesis
            value = self.sum(depth + 1)
            if self._take() != ")":
                raise ValueError("a parenthesis is not closed")
            return value
        if not (token[0].isdigit() or token[0] == "."):
            raise ValueError(f"a number is missing before {token!r}")
        return Fraction(token)


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"parentheses and powers are nested more than {MAX_DEPTH} deep")


def _combined(left: Fraction, operator: str | None, right: Fraction) -> Fraction:
    if operator == "*":
        return left * right
    if right == 0:
        raise ValueError("division by 0")
    if operator == "/":
        return left / right
    return Fraction(left // right) if operator == "//" else left % right


def _power_of(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError("an exponent must be an integer")
    if base == 0 and exponent < 0:
        raise ValueError("division by 0")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent) > MAX_BITS:
        raise ValueError("the number is too large")
    return base ** int(exponent)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ValueError("the number is too large")
    return value
