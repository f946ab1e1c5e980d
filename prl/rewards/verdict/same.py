r"""The verdict on an answer, and why.

- Whatever the two texts are there is a verdict, in bounded time, with a reason that can be counted.
- What reads the same as the right answer is right, whether or not either is understood. Nothing else is right that is
  not understood: where a formula may mean something to a symbolic library, the verdict is left to it (``unread``).
- A right answer that has no meaning says nothing about an answer: no value, and not 0.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from prl.rewards.verdict.choices import choice
from prl.rewards.verdict.comparison import Comparison
from prl.rewards.verdict.kinds import Shape
from prl.rewards.verdict.node import UnknownError, UnreadableError
from prl.rewards.verdict.operations import TooLargeError, UndefinedError
from prl.rewards.verdict.outcome import Outcome
from prl.rewards.verdict.policy import Policy
from prl.rewards.verdict.shape import read
from prl.rewards.verdict.text import MalformedError, clean, literal


class Reading(msgspec.Struct, frozen=True):
    """A text that was read: its shape, or why it has none."""

    letters: str
    shape: Shape | None
    problem: str = ""
    is_unknown: bool = False
    """A symbolic library may know what it means."""


def verdict(gold: str, answer: str, policy: Policy) -> Outcome:  # noqa: C901, PLR0911 - one a reason
    """Compare an answer with the right one; ``unread`` where a formula of either is not understood here."""
    if not gold.strip():
        return Outcome(0.0 if policy.empty_gold == "wrong" else None, "no_gold", "there is no right answer")
    try:
        right = reading(gold)
    except MalformedError as error:
        return Outcome(None, "gold_unparsable", f"the right answer {gold!r} has no meaning: {error}")
    chosen = choice(gold, answer)
    if chosen is not None:
        return chosen
    try:
        given = reading(answer)
    except MalformedError as error:
        return Outcome(0.0, "malformed_answer", f"the answer {answer[:80]!r} has no meaning: {error}")
    if right.letters == given.letters and clean(gold) == clean(answer):
        return Outcome(1.0, "same_text", "it reads the same")
    if right.shape is None or given.shape is None:
        if right.letters == given.letters:
            return Outcome(1.0, "same_text", "it reads the same")
        which, problem = ("right answer", right.problem) if right.shape is None else ("answer", given.problem)
        detail = f"the {which} cannot be read: {problem}"
        if right.is_unknown or (given.is_unknown and right.shape is not None):
            return Outcome(None, "unread", detail)
        return Outcome(0.0, "unreadable_gold" if right.shape is None else "unreadable_answer", detail)
    try:
        return Comparison(policy).outcome(right.shape, given.shape)
    except TooLargeError as error:
        return Outcome(0.0, "too_large", f"the answer {answer[:80]!r} cannot be computed: {error}")
    except UndefinedError as error:
        return Outcome(0.0, "undefined", f"not both have a value: {error}")
    except UnreadableError as error:
        return Outcome(None, "unread", str(error))


@lru_cache(maxsize=4096)
def reading(text: str) -> Reading:
    """Read a text once, however often it is compared. Raises MalformedError."""
    cleaned = clean(text)
    try:
        return Reading(literal(cleaned), read(cleaned))
    except (UnreadableError, RecursionError) as error:
        return Reading(literal(cleaned), None, str(error), isinstance(error, UnknownError))
