"""What a formula is worth, and whether two formulas are worth the same.

- Rationals are computed exactly, everything else to 40 digits. No number grows beyond ``MAX_BITS``: what would is a
  TooLargeError, so that no tower of powers or factorial takes long.
- Two formulas with symbols are the same where they agree, to 25 digits, at every point of ``POINTS`` at which both are
  real (and at four at least). So no identity needs to be known, and ``sqrt(1/n)`` is ``1/sqrt(n)`` while ``|x|`` is
  not ``x``.
- Numbers are equal exactly. Only where one side was written with a decimal point is there a tolerance, relative to the
  larger: such a number may be rounded. An integer is never approximated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import mpmath

from prl.rewards.verdict.syntax import Node, UnknownError, UnreadableError

MAX_BITS = 64_000
MAX_EXPONENT_BITS = 10_000_000
MAX_FACTORIAL = 5_000
_DIGITS = 40
_AGREE = mpmath.mpf(10) ** -25
_MIN_POINTS = 4
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)

Number = Any
"""A Fraction where the value is rational, else mpmath's mpf or mpc."""


class TooLargeError(UnreadableError):
    """A value that is too large to be computed."""


class UndefinedError(UnreadableError):
    """A value that is none: a division by zero, the logarithm of zero."""


def evaluate(node: Node, at: Mapping[str, Fraction]) -> Number:
    """The value of a formula with its symbols as given. Raises UnreadableError."""
    match node.op:
        case "number":
            return node.value
        case "symbol":
            return at[node.name]
        case "constant":
            return _CONSTANTS[node.name]()
    args = [evaluate(arg, at) for arg in node.args]
    try:
        value = _OPERATIONS[node.op](*args)
    except KeyError:
        raise UnknownError(f"{node.op} is not understood") from None
    except UnreadableError:
        raise
    except (ZeroDivisionError, ValueError) as error:
        raise UndefinedError("it divides by zero, or has no value for another reason") from error
    except (OverflowError, MemoryError, TypeError, mpmath.libmp.libhyper.NoConvergence) as error:
        raise TooLargeError(str(error)) from None
    return _bounded(value)


def _bounded(value: Number) -> Number:
    if isinstance(value, Fraction):
        if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
            return mpmath.mpf(value.numerator) / value.denominator
        return value
    if isinstance(value, mpmath.mpc) and value.imag == 0:
        value = value.real
    if not mpmath.isinf(value) and not mpmath.isfinite(value):
        raise UndefinedError("no number")
    return value


def symbols(node: Node) -> set[str]:
    """The names of a formula's symbols."""
    found = {node.name} if node.op == "symbol" else set()
    return found.union(*(symbols(arg) for arg in node.args))


def has_decimal(node: Node) -> bool:
    """Whether some number in it was written with a decimal point."""
    return node.decimal or any(has_decimal(arg) for arg in node.args)


def is_complex(node: Node) -> bool:
    """Whether the imaginary unit stands in it."""
    return (node.op, node.name) == ("constant", "i") or any(is_complex(arg) for arg in node.args)


def same(one: Node, other: Node, relative_tolerance: float) -> bool:
    """Whether two formulas have the same value, wherever both have one. Raises UnreadableError."""
    names = sorted(symbols(one) | symbols(other))
    tolerance = relative_tolerance if has_decimal(one) or has_decimal(other) else 0.0
    with mpmath.workdps(_DIGITS):
        if not names:
            return close(evaluate(one, {}), evaluate(other, {}), tolerance)
        may_be_complex = is_complex(one) or is_complex(other)
        return agree(names, one, other, may_be_complex, lambda a, b: close(a, b, tolerance))


def agree(
    names: list[str], one: Node, other: Node, may_be_complex: bool, accept: Callable[[Number, Number], bool]
) -> bool:
    """Whether ``accept`` holds at every point where both have a value, and at enough of them."""
    num_valid = 0
    for point in points(names):
        try:
            a, b = evaluate(one, point), evaluate(other, point)
        except UndefinedError:
            continue
        if not may_be_complex and (isinstance(a, mpmath.mpc) or isinstance(b, mpmath.mpc)):
            continue
        if not accept(a, b):
            return False
        num_valid += 1
    return num_valid >= _MIN_POINTS


def points(names: list[str]) -> list[dict[str, Fraction]]:
    """Where formulas are compared: integers and fractions of either sign, another for each symbol."""
    found = []
    for index in range(16):
        point = {}
        for place, name in enumerate(names):
            size = Fraction(_PRIMES[(5 * index + 7 * place) % 12], (1, 1, 7, 30)[index % 4])
            negative = index >= 8 and (index + place) % 2 == 0 if len(names) > 1 else index % 8 >= 4  # noqa: PLR2004
            point[name] = -size if negative else size + place
        found.append(point)
    return found


def close(a: Number, b: Number, tolerance: float) -> bool:
    """Whether two values are equal, or with a tolerance, close to each other."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        if a == b or not tolerance or a.denominator == 1 or b.denominator == 1:
            return a == b
        return abs(a - b) <= Fraction(tolerance) * max(abs(a), abs(b))
    a, b = _float(a), _float(b)
    if mpmath.isinf(a) or mpmath.isinf(b):
        return bool(a == b)
    scale = max(abs(a), abs(b))
    return bool(abs(a - b) <= max(_AGREE, tolerance) * (scale if scale > _AGREE else 1))


def _float(value: Number) -> Number:
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits * abs(exponent) <= MAX_BITS or abs(base) <= 1 and base.denominator == 1:
            if abs(exponent) > MAX_BITS:  # of 0, 1 and -1
                exponent = 2 + exponent % 2 if exponent > 0 else -2 - exponent % 2
            return base ** int(exponent)
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and base > 0:
        root = _exact_root(base, exponent.denominator)
        if root is not None:
            return _power(root, Fraction(exponent.numerator))
    base, exponent = _float(base), _float(exponent)
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
    return mpmath.factorial(_float(value))


def _binomial(n: Number, k: Number) -> Number:
    if max(abs(n), abs(k)) > MAX_FACTORIAL:
        raise TooLargeError("a binomial coefficient is too large")
    if isinstance(n, Fraction) and isinstance(k, Fraction) and n.denominator == k.denominator == 1 and n >= 0:
        return Fraction(math.comb(int(n), int(k)) if k >= 0 else 0)
    return mpmath.binomial(_float(n), _float(k))


def _add(a: Number, b: Number) -> Number:
    return _bounded(a + b if isinstance(a, Fraction) == isinstance(b, Fraction) else _float(a) + _float(b))


def _multiply(a: Number, b: Number) -> Number:
    return _bounded(a * b if isinstance(a, Fraction) == isinstance(b, Fraction) else _float(a) * _float(b))


def _divide(a: Number, b: Number) -> Number:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a / b
    if (b := _float(b)) == 0:
        raise ZeroDivisionError
    return _float(a) / b


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
        if abs(value) > MAX_EXPONENT_BITS:
            if name not in ("ln", "log"):
                raise TooLargeError(f"the argument of {name} is too large")
        if isinstance(value, Fraction) and value == 0 and name in _ZERO_AT_ZERO:
            return Fraction(0)
        return _snapped(function(_float(value)))

    return call


def _snapped(value: Number) -> Number:
    """A value that misses an integer or a half by rounding alone is exactly that: the sine of pi is 0."""
    if isinstance(value, mpmath.mpf) and abs(value) < 1e6:  # noqa: PLR2004
        twice = mpmath.nint(2 * value)
        if abs(2 * value - twice) < mpmath.mpf(10) ** (5 - _DIGITS):
            return Fraction(int(twice), 2)
    return value


_ZERO_AT_ZERO = frozenset(["sin", "tan", "arcsin", "arctan", "sinh", "tanh"])
_CONSTANTS: dict[str, Callable[[], Number]] = {
    "pi": lambda: +mpmath.pi,
    "e": lambda: +mpmath.e,
    "i": lambda: mpmath.mpc(0, 1),
    "infinity": lambda: mpmath.inf,
    "infty": lambda: mpmath.inf,
}
_OPERATIONS: dict[str, Callable[..., Number]] = {
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
    "log_base": lambda a, b: _snapped(_divide(mpmath.log(_float(a)), mpmath.log(_float(b)))),
    **{
        name: _called(name)
        for name in (
            *("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"),
            *("ln", "log", "exp"),
        )
    },
}
