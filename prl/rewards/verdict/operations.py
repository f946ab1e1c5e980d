"""Arithmetic on the values of formulas: exact on rationals, to ``DIGITS`` digits on everything else, and bounded.

No number grows beyond ``MAX_BITS``: what would is a TooLargeError, so that no tower of powers takes long.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath

from prl.rewards.verdict.node import UnreadableError

MAX_BITS = 64_000
MAX_EXPONENT_BITS = 10_000_000
MAX_FACTORIAL = 5_000
DIGITS = 40

Number = Any
"""A Fraction where the value is rational, else mpmath's mpf or mpc."""


class TooLargeError(UnreadableError):
    """A value that is too large to be computed."""


class UndefinedError(UnreadableError):
    """A value that is none: a division by zero, the logarithm of zero."""


def bounded(value: Number) -> Number:
    """The value, rounded where it is too long to be exact. Raises UndefinedError where it is none."""
    if isinstance(value, Fraction):
        if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
            return mpmath.mpf(value.numerator) / value.denominator
        return value
    if isinstance(value, mpmath.mpc) and value.imag == 0:
        value = value.real
    if not mpmath.isinf(value) and not mpmath.isfinite(value):
        raise UndefinedError("no number")
    return value


def real(value: Number) -> Number:
    """A value that mpmath computes with."""
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits * abs(exponent) <= MAX_BITS or (abs(base) <= 1 and base.denominator == 1):
            if abs(exponent) > MAX_BITS:  # of 0, 1 and -1
                exponent = 2 + exponent % 2 if exponent > 0 else -2 - exponent % 2
            return base ** int(exponent)
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and base > 0:
        root = _exact_root(base, exponent.denominator)
        if root is not None:
            return _power(root, Fraction(exponent.numerator))
    base, exponent = real(base), real(exponent)
    if base == 0:
        return Fraction(0) if mpmath.re(exponent) > 0 else 1 / Fraction(0)
    size = abs(exponent) * (abs(mpmath.log(abs(base), 2)) + 10)
    if size > MAX_EXPONENT_BITS:
        raise TooLargeError("a power is too large")
    return mpmath.power(base, exponent)


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    """The root where it is rational and of a small degree."""
    if degree not in (2, 3, 4, 5, 6) or max(value.numerator, value.denominator).bit_length() > 2000:  # noqa: PLR2004
        return None
    parts = []
    for part in (value.numerator, value.denominator):
        with mpmath.workprec(part.bit_length() + 64):
            root = int(mpmath.nint(mpmath.root(part, degree)))
        if root**degree != part:
            return None
        parts.append(root)
    return Fraction(*parts)


def _root(value: Number, degree: Number) -> Number:
    """The real root of a negative number where the degree is odd, as in a textbook."""
    if not isinstance(degree, Fraction) or degree == 0:
        raise UnreadableError("the degree of a root")
    if isinstance(value, Fraction | mpmath.mpf) and value < 0 and degree.denominator == 1 and degree.numerator % 2:
        return -_power(-value, 1 / degree)
    return _power(value, 1 / degree)


def _factorial(value: Number) -> Number:
    if isinstance(value, Fraction) and value.denominator == 1:
        if 0 <= value <= MAX_FACTORIAL:
            return Fraction(math.factorial(int(value)))
        if value < 0:
            raise UndefinedError("the factorial of a negative number")
    if abs(value) > MAX_FACTORIAL:
        raise TooLargeError("a factorial is too large")
    return mpmath.factorial(real(value))


def _binomial(n: Number, k: Number) -> Number:
    if max(abs(n), abs(k)) > MAX_FACTORIAL:
        raise TooLargeError("a binomial coefficient is too large")
    if isinstance(n, Fraction) and isinstance(k, Fraction) and n.denominator == k.denominator == 1 and n >= 0:
        return Fraction(math.comb(int(n), int(k)) if k >= 0 else 0)
    return mpmath.binomial(real(n), real(k))


def _add(a: Number, b: Number) -> Number:
    return bounded(a + b if isinstance(a, Fraction) == isinstance(b, Fraction) else real(a) + real(b))


def _multiply(a: Number, b: Number) -> Number:
    return bounded(a * b if isinstance(a, Fraction) == isinstance(b, Fraction) else real(a) * real(b))


def _divide(a: Number, b: Number) -> Number:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a / b
    if (b := real(b)) == 0:
        raise ZeroDivisionError
    return real(a) / b


def _rounded(how: Callable[[Number], Number], value: Number) -> Number:
    if isinstance(value, Fraction):
        return Fraction(how(value))
    if isinstance(value, mpmath.mpc) or abs(value) > mpmath.mpf(10) ** 30:
        raise TooLargeError("a number is too large to be rounded")
    return Fraction(int(mpmath.floor(value) if how is math.floor else mpmath.ceil(value)))


def _called(name: str) -> Callable[[Number], Number]:
    function = getattr(mpmath, {"ln": "log", "arcln": "exp"}.get(name, name.replace("arc", "a")))

    def call(value: Number) -> Number:
        if value == 0 and name in ("ln", "log"):
            raise UndefinedError("the logarithm of zero")
        if value == 1 and name in ("ln", "log"):
            return Fraction(0)
        if abs(value) > MAX_EXPONENT_BITS and name not in ("ln", "log"):
            raise TooLargeError(f"the argument of {name} is too large")
        if isinstance(value, Fraction) and value == 0 and name in _ZERO_AT_ZERO:
            return Fraction(0)
        return _snapped(function(real(value)))

    return call


def _snapped(value: Number) -> Number:
    """A value that misses an integer or a half by rounding alone is exactly that: the sine of pi is 0."""
    if isinstance(value, mpmath.mpf) and abs(value) < 1e6:  # noqa: PLR2004
        twice = mpmath.nint(2 * value)
        if abs(2 * value - twice) < mpmath.mpf(10) ** (5 - DIGITS):
            return Fraction(int(twice), 2)
    return value


_ZERO_AT_ZERO = frozenset(["sin", "tan", "arcsin", "arctan", "sinh", "tanh"])
CONSTANTS: dict[str, Callable[[], Number]] = {
    "pi": lambda: +mpmath.pi,
    "e": lambda: +mpmath.e,
    "i": lambda: mpmath.mpc(0, 1),
    "infinity": lambda: mpmath.inf,
}
OPERATIONS: dict[str, Callable[..., Number]] = {
    "+": lambda *terms: functools.reduce(_add, terms),
    "-": lambda a, b: _add(a, -b),
    "*": lambda *factors: functools.reduce(_multiply, factors),
    "/": _divide,
    "negative": lambda a: -a,
    "inverse": lambda a: _divide(Fraction(1), a),
    "^": _power,
    "root": _root,
    "!": _factorial,
    "binom": _binomial,
    "abs": abs,
    "floor": lambda a: _rounded(math.floor, a),
    "ceil": lambda a: _rounded(math.ceil, a),
    "log_base": lambda a, b: _snapped(_divide(mpmath.log(real(a)), mpmath.log(real(b)))),
    **{
        name: _called(name)
        for name in (
            *("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"),
            *("ln", "log", "exp"),
        )
    },
}
