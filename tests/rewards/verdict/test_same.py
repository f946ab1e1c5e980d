r"""Verdicts by kind: what is the same answer written otherwise, and what only looks like it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from prl.rewards.verdict.policy import Policy
from prl.rewards.verdict.same import verdict

KINDS = Path(__file__).parents[2] / "cases" / "math_kinds.jsonl"
MORE = KINDS.with_name("math_more.jsonl")


class Pair(msgspec.Struct, frozen=True):
    """One row of the file."""

    kind: str
    gold: str
    answer: str
    same: bool


PAIRS = [msgspec.json.decode(line, type=Pair) for line in KINDS.read_bytes().splitlines()]


def named(pairs: list[Pair]) -> list[object]:
    """Each pair with its kind as its name."""
    return [pytest.param(pair.gold, pair.answer, id=f"{pair.kind}: {pair.gold} {pair.answer}") for pair in pairs]


@pytest.mark.parametrize(("gold", "answer"), named([pair for pair in PAIRS if pair.same]))
def test_the_same_written_otherwise(gold: str, answer: str) -> None:
    """An answer that means the right one is right."""
    assert verdict(gold, answer, Policy()).value == 1.0


@pytest.mark.parametrize(("gold", "answer"), named([pair for pair in PAIRS if not pair.same]))
def test_what_is_not_the_same(gold: str, answer: str) -> None:
    """An answer that means something else, more, less or nothing is not right."""
    outcome = verdict(gold, answer, Policy())
    assert outcome.value == 0.0 or outcome.reason == "unread"


MORE_PAIRS = [msgspec.json.decode(line, type=Pair) for line in MORE.read_bytes().splitlines()]


@pytest.mark.parametrize("kind", sorted({pair.kind for pair in MORE_PAIRS}))
def test_more_of_each_kind(kind: str) -> None:
    """Spellings and traps by the dozen, each decided by the rules alone."""
    pairs = [pair for pair in MORE_PAIRS if pair.kind == kind]
    outcomes = [(pair, verdict(pair.gold, pair.answer, Policy())) for pair in pairs]
    assert [(pair, outcome.reason) for pair, outcome in outcomes if outcome.value != float(pair.same)] == []


@pytest.mark.parametrize("gold", sorted({pair.gold for pair in PAIRS}))
def test_a_right_answer_is_right(gold: str) -> None:
    """Every answer that has a meaning verifies against itself."""
    assert verdict(gold, gold, Policy()).value == 1.0


@pytest.mark.parametrize(
    ("gold", "answer", "policy", "value"),
    [
        ("0.333", "1/3", Policy(relative_tolerance=0.01), 1.0),
        (r"\frac{1}{12}", "0.0833333333333333", Policy(relative_tolerance=0.0), 0.0),
        (r"25\%", "25", Policy(percent="value"), 0.0),
        (r"25\%", "0.25", Policy(percent="value"), 1.0),
        ("25", r"25\%", Policy(percent="value"), 0.0),
        ("5 m", "5", Policy(units="required"), 0.0),
        ("5", "5 m", Policy(units="required"), 0.0),
        ("5 m", "500 cm", Policy(units="required"), 1.0),
        ("5 m", "5 cm", Policy(units="ignored"), 1.0),
        ("52_8", "42", Policy(bases="value"), 1.0),
        ("52_8", "52", Policy(bases="value"), 0.0),
        ("42", "52_8", Policy(bases="value"), 1.0),
        ("", "5", Policy(), 0.0),
        ("", "5", Policy(empty_gold="abstain"), None),
    ],
)
def test_policies(gold: str, answer: str, policy: Policy, value: float | None) -> None:
    """What may be decided either way is decided as the policy says."""
    assert verdict(gold, answer, policy).value == value


@pytest.mark.parametrize(
    ("gold", "answer", "reason"),
    [
        ("", "5", "no_gold"),
        (r"\frac{", r"\frac{", "gold_unparsable"),
        ("5", r"\frac{5", "malformed_answer"),
        ("5", "5", "same_text"),
        ("5", "5.0", "same_value"),
        ("5", "6", "other_value"),
        ("5", "5 or 6", "several_values"),
        ("1, 2", "1", "other_kind"),
        ("5 m", "5 s", "other_unit"),
        ("5", "(10^7)!", "too_large"),
        ("5", "1/0", "undefined"),
        ("D", "A", "other_choice"),
        ("5", "5 is wrong", "unreadable_answer"),
        ("5", r"\int_0^5 dx", "unread"),
    ],
)
def test_reasons(gold: str, answer: str, reason: str) -> None:
    """Every verdict has a key to be counted by, and words for people."""
    outcome = verdict(gold, answer, Policy())
    assert outcome.reason == reason
    assert outcome.detail


BOMBS = [
    *(
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        r"\boxed{",
        "$",
        "1,",
        "1 ",
        "-",
        "9",
        "\\",
        " ",
        "a",
        "a ",
        "=",
        "<",
        r"\pm ",
        r"\text{",
    ),
    *(
        r"\text{a}",
        r"\frac{",
        "^",
        "x^",
        "2^",
        "!",
        "9!",
        "|",
        "_",
        "x_",
        "f(",
        "f(x)",
        r"\begin{pmatrix}",
        "&",
        r"\\",
        ".",
    ),
    *("1.", "%", "cm ", "m/", "one ", "hundred ", "and ", "1 or ", r"\cup ", "\u00b2", "\u00bd", "1+", "x+", r"\sqrt"),
    *(r"\sqrt[", r"\sin ", "1/", "e9", "1e9", r"\{", "{,}", "1{,}000", r"\log_", "(1,", "x=", r"\text{ or }", "x y "),
    *(
        "0.(3)",
        "3...",
        "1 million",
        "{1\\over 2}",
        "\\over ",
        r"\overline{3}",
        "^1/_2",
        "'",
        "U",
        "]0,1[",
        "half ",
        "a ",
        "sq. ",
    ),
    *("2 3/4 ", r"\frac12", "9^9", "x^9+", r"\binom99", "(x+1)^{99}", "5! ", r"\sin1", "3.5%"),
]


@pytest.mark.parametrize("unit", BOMBS)
def test_no_answer_takes_long(unit: str) -> None:
    """The longest answer that is read, of any one thing, is judged without a limit being needed."""
    for before in ("", "5"):
        for gold in ("7", "x+1"):
            assert verdict(gold, before + unit * (5000 // len(unit)), Policy()).value != 1.0
