"""The calculator: Python's own answers, and nothing that costs time."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.environments.calculator import calculate, value_of

EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: (
        st.builds("{} {} {}".format, inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner)
        | st.builds("({})".format, inner)
        | st.builds("-{}".format, inner)
    ),
    max_leaves=12,
)


@settings(deadline=None)  # the machine may be busy
@given(EXPRESSIONS)
def test_integers_are_worked_out_as_python_does(expression: str) -> None:
    """Precedence, associativity and signs are Python's; so is a division by 0 an error."""
    try:
        expected = eval(expression)
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="division by 0"):
            value_of(expression)
    else:
        assert value_of(expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("(17 + 25) * 3", "126"),
        ("1/3", "1/3 = 0.333333333333"),
        ("0.1 + 0.2", "3/10 = 0.3"),
        ("2 ** 3 ** 2", "512"),
        ("-2^2", "-4"),
        ("2 ** -1", "1/2 = 0.5"),
        ("6 \u00d7 7 \u00f7 2 \u2212 1", "20"),
        ("7 // -2", "-4"),
    ],
)
async def test_answers_are_exact(expression: str, expected: str) -> None:
    """Rational numbers, decimals read as what they say."""
    assert await calculate(expression) == expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "ends too early"),
        ("1 +", "ends too early"),
        ("(1", "ends too early"),
        ("1 2", "nothing can be made of '2'"),
        ("1 / (2 - 2)", "division by 0"),
        ("0 ** -1", "division by 0"),
        ("__import__('os')", "is no arithmetic"),
        ("9 ** 9 ** 9", "too large"),
        ("2 ** 0.5", "must be an integer"),
        ("(" * 200 + "1" + ")" * 200, "nested more than 50 deep"),
        ("2 ** " * 90 + "1", "nested more than 50 deep"),
        ("*".join(["9" * 120] * 4) + "**9", "too large"),
        ("1" * 501, "at most 500 characters"),
    ],
)
def test_what_is_no_arithmetic_is_said(expression: str, message: str) -> None:
    """Bombs are refused at once, like nonsense."""
    begun = time.perf_counter()
    with pytest.raises(ValueError, match=message):
        value_of(expression)
    assert time.perf_counter() - begun < 0.2


def test_a_value_beyond_floats_is_still_exact() -> None:
    """2 to the 2000th."""
    assert value_of("2 ** 2000 / 3") == Fraction(2**2000, 3)
