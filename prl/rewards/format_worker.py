"""Whether a text matches a regular expression, inside a worker process (see ``worker.py``)."""

from __future__ import annotations

import re

from prl.rewards.worker import Question, Reply, serve


def judge(question: Question) -> Reply:
    """1.0 or 0.0; ``reference`` is ``full:`` or ``partial:`` and the pattern."""
    mode, _, pattern = question.reference.partition(":")
    compiled = re.compile(pattern, re.DOTALL)
    found = compiled.fullmatch(question.text) if mode == "full" else compiled.search(question.text)
    return Reply(value=float(found is not None))


if __name__ == "__main__":
    serve(judge)
