r"""Letters of a choice: how they may be written, and what is none."""

from __future__ import annotations

import pytest

from prl.rewards.verdict.choices import MAX_CHOICE_CHARS, choice


@pytest.mark.parametrize("gold", ["D", "(D)", r"\text{D}", "d", " option D "])
@pytest.mark.parametrize("answer", ["D", "(d)", "D. 24", "(D) 24", r"\text{(D)} 24", "choice  D", "D: a or the"])
def test_a_letter_may_be_dressed(gold: str, answer: str) -> None:
    """In parentheses, as text, with what it stands for: it is the one that was chosen."""
    outcome = choice(gold, answer)
    assert outcome is not None
    assert (outcome.value, outcome.reason, outcome.detail) == (1.0, "same_choice", "D was chosen")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [("A", "other_choice"), ("(C) 24", "other_choice"), ("D. or E", "several_values"), ("D) & B", "several_values")],
)
def test_another_letter_or_a_second_one_is_wrong(answer: str, reason: str) -> None:
    """Which of both it was is told."""
    outcome = choice("D", answer)
    assert outcome is not None
    assert (outcome.value, outcome.reason) == (0.0, reason)


@pytest.mark.parametrize(
    ("gold", "answer"), [("24", "D"), ("K", "K"), ("D", "24"), ("D", "D" * 2), ("D", "D. " + "x" * MAX_CHOICE_CHARS)]
)
def test_what_is_no_letter_is_left_to_the_other_rules(gold: str, answer: str) -> None:
    """A right answer that is none, a letter behind J, a value, and a text that is too long."""
    assert choice(gold, answer) is None
