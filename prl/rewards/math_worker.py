r"""The verdict of math-verify on one answer, inside a worker process (see ``worker.py``).

Its own time limits are switched off: they need SIGALRM in a main thread, and the process has limits already. What it
would read or judge wrongly is handled before it:

- equal after normalisation is right, whatever it says;
- words (of three letters and more) are compared as text, ``listen`` is not ``silent``; so is what holds an ellipsis or
  a quantifier, which it would drop;
- two different units are different answers; a unit that only one side states is ignored;
- ``\sqrt(2)``, ``1 1/4``, ``1e2`` and ``\$5`` are rewritten to what they mean;
- without a decimal point on either side, rationals are equal exactly and not to six digits.
"""

from __future__ import annotations

import re
from typing import Any

from prl.rewards.answer import normalise
from prl.rewards.worker import Question, Reply, serve

_TEXT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[^\W\d_]{3,}(?:[\s-]+[^\W\d_]+)*")
_UNIT = re.compile(r"(?<=[\d}])\s*\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}\s*$")
_LITERAL = re.compile(r"\\[lc]?dots|\.\.\.|\u2026|\\forall|\\exists")
_REWRITTEN = (
    (re.compile(r"\\?\$|\\[()\[\]]"), ""),
    (re.compile(r"\\sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\s*(-?)(\d{1,9})\s+(\d{1,9})/(\d{1,9})\s*"), r"\1\\left(\2+\\frac{\3}{\4}\\right)"),
    (re.compile(r"\s*(-?\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})\s*"), r"\1 \\cdot 10^{\2}"),
)
"""What is replaced anywhere, for the first two; what the whole answer must be, for the last two."""


def judge(question: Question) -> Reply:
    """1.0 for right, 0.0 for wrong, None where the right answer itself cannot be read."""
    gold, answer = question.reference, question.text
    if not gold.strip():
        return Reply(value=None, reason="gold_unparsable")
    if normalise(gold) == normalise(answer):
        return Reply(value=1.0)
    if _only_literally(gold, answer):
        return Reply(value=0.0)
    from math_verify import parse, verify  # noqa: PLC0415  (only a worker process needs it)

    right = parse(_readable(gold), parsing_timeout=None)
    if all(isinstance(reading, str) for reading in right):  # it adds the text itself as its last reading
        return Reply(value=None, reason="gold_unparsable")
    given = parse(_readable(answer), parsing_timeout=None)
    if given and "." not in gold + answer and _differ_exactly(right[0], given[0]):
        return Reply(value=0.0)
    return Reply(value=float(verify(right, given, timeout_seconds=None)))


def _only_literally(gold: str, answer: str) -> bool:
    """Whether two answers that are not equal as text are then different."""
    if _WORDS.fullmatch(_TEXT.sub(r"\1", gold).strip()) or _LITERAL.search(gold) or _LITERAL.search(answer):
        return True
    units = {normalise(match.group(1)) for side in (gold, answer) if (match := _UNIT.search(side))}
    return len(units) > 1


def _readable(answer: str) -> str:
    r"""The answer in the LaTeX that the parser understands, between dollar signs."""
    for pattern, replacement in _REWRITTEN[:2]:
        answer = pattern.sub(replacement, answer)
    for pattern, replacement in _REWRITTEN[2:]:
        answer = pattern.sub(replacement, answer) if pattern.fullmatch(answer) else answer
    return f"${answer}$"


def _differ_exactly(right: Any, given: Any) -> bool:
    """Whether both are rational numbers and not the same one."""
    if not (getattr(right, "is_rational", None) and getattr(given, "is_rational", None)):
        return False
    return bool((right - given).doit() != 0)


if __name__ == "__main__":
    import logging

    import math_verify  # noqa: F401  (imported before the parent hears that this process is ready)

    logging.disable()
    serve(judge)
