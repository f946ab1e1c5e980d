r"""The verdict of math-verify on one answer, inside a worker process (see ``worker.py``).

It is asked what the rules of ``verdict/`` cannot read, since a command is not known there (``\int``, ``\sum``). Each
side is read as one formula, whole: never the number in it. Its own time limits are switched off: they need SIGALRM in
a main thread, and the process has limits already.
"""

from __future__ import annotations

from typing import Any

from prl.rewards.verdict.text import clean
from prl.rewards.worker import Question, Reply, serve


def judge(question: Question) -> Reply:
    """1.0 for right, 0.0 for wrong and for what cannot be read."""
    from math_verify import verify  # noqa: PLC0415 - only a worker process needs it

    right, given = _parsed(clean(question.reference)), _parsed(clean(question.text))
    if right is None:
        return Reply(value=0.0, reason="unreadable_gold", detail="the right answer is only equal to its own text")
    if given is None:
        return Reply(value=0.0, reason="unreadable_answer", detail="it is no formula that math-verify can read")
    correct = bool(verify([right], [given], timeout_seconds=None))
    return Reply(value=float(correct), reason="same_value" if correct else "other_value", detail="by math-verify")


def _parsed(formula: str) -> Any:
    """The symbolic value of a whole formula, or None."""
    from math_verify import LatexExtractionConfig, parse  # noqa: PLC0415 - only a worker process needs it

    found = parse(
        f"${formula}$",
        [LatexExtractionConfig(boxed_match_priority=-1)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return found[0] if found else None


if __name__ == "__main__":
    import logging

    import math_verify  # noqa: F401 - imported before the parent hears that this process is ready

    logging.disable()
    serve(judge)
