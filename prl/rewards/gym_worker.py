"""The verdict of a reasoning-gym task on one answer, inside a worker process (see ``worker.py``).

The reference holds the prompt's field ``reasoning_gym``: task, options and the entry that the task made, as a Python
literal. The task's own ``score_answer`` judges; what it returns is the reward, partial credit included.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

import msgspec

from prl.data.gym_rows import make_task
from prl.rewards.worker import Question, Reply, serve


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What a prompt of ``data/gym_rows.py`` carries."""

    task: str
    options: dict[str, Any]
    entry: str


@lru_cache(maxsize=64)
def _task(task: str, options: str) -> Any:
    """A dataset of one problem: to judge, a task needs its options and none of its own problems."""
    return make_task(task, msgspec.json.decode(options), seed=0, size=1)


def judge(question: Question) -> Reply:
    """What the task gives for the answer."""
    reference = msgspec.json.decode(question.reference, type=Reference)
    task = _task(reference.task, msgspec.json.encode(reference.options).decode())
    return Reply(value=float(task.score_answer(question.text, ast.literal_eval(reference.entry))))


if __name__ == "__main__":
    import logging

    import reasoning_gym  # noqa: F401  (imported before the parent hears that this process is ready)

    logging.disable()
    serve(judge)
