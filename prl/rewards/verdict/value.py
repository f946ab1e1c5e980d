"""What a formula is worth, and whether two formulas are worth the same.

- Two formulas with symbols are the same where they agree, to 25 digits, at every point of ``POINTS`` at which both are
  real (and at four at least). So no identity needs to be known, and ``sqrt(1/n)`` is ``1/sqrt(n)`` while ``|x|`` is
  not ``x``.
- Numbers are equal exactly. Only where one side was written with a decimal point is there a tolerance, relative to the
  larger: such a number may be rounded. An integer is never approximated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import mpmath

from prl.rewards.verdict.node import Node, UnknownError, UnreadableError
from prl.rewards.verdict.operations import (
    CONSTANTS,
    DIGITS,
    OPERATIONS,
    Number,
    TooLargeError,
    UndefinedError,
    bounded,
    real,
)
from prl.rewards.verdict.plain import close_rationals

_AGREE = mpmath.mpf(10) ** -25
_MIN_POINTS = 4
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def evaluate(node: Node, at: Mapping[str, Fraction]) -> Number:
    """The value of a formula with its symbols as given. Raises UnreadableError."""
    match node.op:
        case "number":
            return node.value
        case "symbol":
            return at[node.name]
        case "constant":
            return CONSTANTS[node.name]()
    args = [evaluate(arg, at) for arg in node.args]
    try:
        value = OPERATIONS[node.op](*args)
    except KeyError:
        raise UnknownError(f"{node.op} is not understood") from None
    except UnreadableError:
        raise
    except (ZeroDivisionError, ValueError) as error:
        raise UndefinedError("it divides by zero, or has no value for another reason") from error
    except (OverflowError, MemoryError, TypeError, mpmath.libmp.libhyper.NoConvergence) as error:
        raise TooLargeError(str(error)) from None
    return bounded(value)


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
    with mpmath.workdps(DIGITS):
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
        return close_rationals(a, b, tolerance)
    a, b = real(a), real(b)
    if mpmath.isinf(a) or mpmath.isinf(b):
        return bool(a == b)
    scale = max(abs(a), abs(b))
    return bool(abs(a - b) <= max(_AGREE, tolerance) * (scale if scale > _AGREE else 1))
