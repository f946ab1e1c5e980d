"""Plain numbers, compared without a worker as one would."""

from __future__ import annotations

import itertools

import pytest

from prl.rewards.verdict.plain import compare_plain, read_plain
from prl.rewards.verdict.policy import Policy
from prl.rewards.verdict.same import verdict

NUMBERS = [
    *("0", "-0", "7", "+7", "007", "7.0", "7.00", "-7", "1,000", "1000", "12,345,678.50", "12345678.5", "1/2", "2/4"),
    *("0.5", "0.50", r"\frac{1}{2}", r"\dfrac{2}{4}", "-1/2", "-0.5", "0.33", "1/3", "0.33333333", "0.3333333", "14/2"),
    *("1.0000001", "1", "1000000000000000000000", "1000000000000000000001", "0.1", "1/10", " 7 ", r"-\frac{1}{2}"),
]


@pytest.mark.parametrize("policy", [Policy(), Policy(relative_tolerance=0.0), Policy(relative_tolerance=0.01)])
def test_it_says_what_the_rules_say(policy: Policy) -> None:
    """Of every pair, value and reason."""
    for gold, answer in itertools.product(NUMBERS, repeat=2):
        outcome = verdict(gold, answer, policy)
        assert (gold, answer, compare_plain(gold, answer, policy)) == (gold, answer, (outcome.value, outcome.reason))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "-",
            "1/0",
            "1,00",
            "0,123",
            "1,2345",
            ".5",
            "5.",
            "1e5",
            "5 m",
            "x",
            "--5",
            "1 1/2",
            "1.5/2",
            "5%",
            "$5",
        ),
        *("9" * 41, "\u0667", "\u00bd", r"\frac12", r"\frac{1}{0}", "1_000", "(5)", "1/2/3", "5, 6"),
    ],
)
def test_what_is_left_to_the_rules(text: str) -> None:
    """What is not plain is not judged here, whatever the other side is."""
    assert read_plain(text) is None
    assert compare_plain(text, "5", Policy()) is None
