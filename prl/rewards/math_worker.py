"""The verdict of ``verdict/`` on one answer, inside a worker process (see ``worker.py``).

The argument is the policy, as JSON. A process starts in a moment, since no symbolic library is loaded.
"""

from __future__ import annotations

import sys

import msgspec

from prl.rewards.verdict.policy import Policy
from prl.rewards.verdict.same import verdict
from prl.rewards.worker import Question, Reply, serve


def judge(question: Question, policy: Policy) -> Reply:
    """1.0 for right, 0.0 for wrong, None where the right answer has no meaning or a formula is ``unread``."""
    outcome = verdict(question.reference, question.text, policy)
    return Reply(value=outcome.value, reason=outcome.reason, detail=outcome.detail)


if __name__ == "__main__":
    asked_for = msgspec.json.decode(sys.argv[4], type=Policy)
    serve(lambda question: judge(question, asked_for))
