r"""Exact match after normalisation, and nothing looser."""

from __future__ import annotations

import pytest

from prl.rewards.answer import Answer, normalise
from tests.rewards.samples import completion, prompt


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,000", "1000"),
        ("1{,}000.50", "1000.5"),
        ("+007.50", "7.5"),
        ("-0", "0"),
        (".5", "0.5"),
        ("5.", "5"),
        ("\N{MINUS SIGN}3", "-3"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"$ \left( 1, 2 \right) $", "(1,2)"),
        (r"\text{ Evelyn }", "evelyn"),
        ("\N{FULLWIDTH DIGIT ONE}\N{FULLWIDTH DIGIT TWO}", "12"),
    ],
)
def test_equal_after_normalisation(one: str, other: str) -> None:
    """The stated rules make these the same."""
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1/2", "0.5"),
        ("0,1", "01"),
        ("1,00", "100"),
        ("12", "1 3"),
        ("10", "1"),
        ("100", "1"),
        ("7", "7,8"),
        ("1.05", "1.5"),
        ("-5", "5"),
        (r"\frac{1}{2}", "12"),
        ("leftover", "over"),
        ("", "0"),
        (".", "0"),
    ],
)
def test_different_after_normalisation(one: str, other: str) -> None:
    """Nothing beyond the stated rules is unified."""
    assert normalise(one) != normalise(other)


async def test_reward() -> None:
    """1 for the right answer, 0 for a wrong one and for none."""
    reward = Answer()
    assert await reward(completion("12 + 5 = 17"), prompt("17")) == 1.0
    assert await reward(completion(r"\boxed{16} or 17"), prompt("17")) == 0.0
    assert await reward(completion("?"), prompt("17")) == 0.0
    assert await reward(completion(""), prompt("42", text=r"say \boxed{42}")) == 0.0
    assert await Answer(extract="boxed")(completion("17"), prompt("17")) == 0.0
