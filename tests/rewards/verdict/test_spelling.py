"""The rules of spelling, each by its own example, and by what it must leave alone."""

from __future__ import annotations

import pytest

from prl.rewards.verdict.spelling import RULES
from prl.rewards.verdict.text import clean

EXAMPLES = {
    "colour": (r"\textcolor{red}{7}", "{7}"),
    "backticks and check marks": ("`7`", "7"),
    "words before the answer in text": (r"\text{The answer is } 7", " 7"),
    "words before the answer": ("the final answer is: 7", "7"),
    "a sign before the answer": (r"\Rightarrow 7", " 7"),
    "raised and lowered fraction": ("1{}^1/_4", r"1\frac{1}{4}"),
    "over": (r"x+{1 \over 2}", r"x+\frac{1 }{ 2}"),
    "over, without braces": (r"1 \over 2", r"\frac{1 }{ 2}"),
    "choose": (r"{5 \choose 2}", r"\binom{5 }{ 2}"),
    "repeating decimal": (r"0.1\overline{6}", r"{\frac{1}{6}}"),
    "ellipsis behind a digit": ("3.14...", r"3.14\ldots "),
    "apostrophes between thousands": ("1'000'000", "1000000"),
    "magnitude in words": (r"2.5\text{ million dollars}", r"2.5 \cdot 10^{6} \text{dollars}"),
    "union in letters": ("(0,1) U (2,3)", r"(0,1)\cup (2,3)"),
    "reversed brackets": ("]0,1]", "(0,1]"),
    "name of a segment": (r"\overline{AB}", "AB"),
    "fraction of units": (r"60\frac{\text{km}}{\text{h}}", r"60 \text{km/h}"),
    "braces around an exponent in text": (r"\text{m s^{-2}}", r"\text{m s^-2}"),
    "points behind abbreviated units": ("4 sq. in.", "4 sq in"),
    "exclamation": ("7!!!", "7"),
}
LEFT_ALONE = {
    "colour": r"\textcircled{7}",
    "words before the answer": "7 is the answer",
    "a sign before the answer": r"x \Rightarrow 7",
    "over": r"\overline{AB}",
    "repeating decimal": "0.123456",
    "ellipsis behind a digit": "1, 2, ..., n",
    "apostrophes between thousands": "f'(1000)",
    "magnitude in words": "millions of people",
    "union in letters": "U(3)",
    "reversed brackets": "[0,1],[2,3]",
    "name of a segment": r"\overline{3}",
    "points behind abbreviated units": "5.5",
    "exclamation": "7!",
}


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_a_rule(rule: object) -> None:
    """It rewrites its example, and nothing that only looks like it (but for brackets that are as they should be)."""
    by_name = {each.name: each for each in RULES}
    name = rule.name  # type: ignore[attr-defined]
    before, after = EXAMPLES[name]
    assert by_name[name](before) == after
    if name in LEFT_ALONE:
        assert by_name[name](LEFT_ALONE[name]) == LEFT_ALONE[name]


def test_two_numbers_in_brackets_are_a_pair() -> None:
    """And not one with a separator, unless something else stands in the brackets, or belongs to them."""
    assert clean("(100,200)") == "(100, 200)"
    assert clean("(1,000 + 1)") == "(1000 + 1)"
    assert clean("f(1,234)") == "f(1234)"
