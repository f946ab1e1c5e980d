"""A worker process that does what the question says: a number back, or one of the ways to fail."""

from __future__ import annotations

import os
import sys
import threading

from prl.rewards.worker import Question, Reply, serve


def judge(question: Question) -> Reply:
    """``reference`` names what to do."""
    match question.reference:
        case "burn":
            while True:
                pass
        case "sleep":
            threading.Event().wait()
        case "memory":
            bytearray(1 << 40)
        case "die":
            sys.stderr.write("the last words\n")
            sys.stderr.flush()
            os._exit(3)
        case "raise":
            raise ValueError("a bug in the worker")
        case "pid":
            return Reply(value=float(os.getpid()))
    return Reply(value=float(question.text))


if __name__ == "__main__":
    serve(judge)
