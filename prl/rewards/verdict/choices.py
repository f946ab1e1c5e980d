r"""Whether the letter of a choice was chosen.

A single letter from A to J may stand in parentheses, in ``\text`` or before its text (``D``, ``(D)``, ``D. 24``),
behind the word option or choice, in either case. Whoever offers another letter besides has offered several values.
"""

from __future__ import annotations

import re

from prl.rewards.verdict.outcome import Outcome

_CHOICE = re.compile(r"(?:option |choice )?(?:\\text ?\{ ?)?\(?([A-J])\)?(?: ?\})?", re.IGNORECASE)
_CHOSEN = re.compile(
    r"(?:option |choice )?(?:\\text(?:bf)? ?\{ ?)?(?:\(([A-J])\)|([A-J])[).:])(?: ?\})?(.*)", re.DOTALL | re.IGNORECASE
)
_HEDGED_CHOICE = re.compile(r"(?:\b(?:or|and|maybe|not)\b|[,/&]) ?(?:\\text ?\{ ?)?\(?[A-J]\b", re.IGNORECASE)
MAX_CHOICE_CHARS = 500
"""A choice with its text is not longer."""


def choice(gold: str, answer: str) -> Outcome | None:
    """Where the right answer is the letter of a choice, whether this letter was chosen; None where it is no letter."""
    letter = _CHOICE.fullmatch(" ".join(gold[:MAX_CHOICE_CHARS].split()))
    if letter is None or len(answer) > MAX_CHOICE_CHARS:
        return None
    answer = " ".join(answer.split())
    chosen = _CHOSEN.fullmatch(answer) or _CHOICE.fullmatch(answer)
    if chosen is None:
        return None
    groups = chosen.groups()
    rest = groups[2] if len(groups) == 3 else ""  # noqa: PLR2004
    if rest and _HEDGED_CHOICE.search(rest):
        return Outcome(0.0, "several_values", "more than one choice is offered")
    given = str(groups[0] or groups[1]).upper()
    right = given == letter.group(1).upper()
    return Outcome(float(right), "same_choice" if right else "other_choice", f"{given} was chosen")
