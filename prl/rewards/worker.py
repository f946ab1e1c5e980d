"""A process that judges one text after another under hard limits: the side inside the process.

- A question is text in, a number out, as msgpack over the socket that is this process's stdin. No object of a symbolic
  library ever leaves the process, and nothing is pickled.
- Processor time is limited per question by the kernel (SIGXCPU), memory per process; wall-clock time is the parent's.
- The process ends when its parent does, or when the socket closes. It starts no process of its own.
"""

from __future__ import annotations

import math
import resource
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from prl import stacks
from prl.process import die_with_parent
from prl.wire import BlockingChannel, WireClosedError


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One text to judge."""

    text: str
    reference: str
    """What it is judged by: the right answer, or a pattern."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement of one question; the first of a process only says that it is ready."""

    value: float | None
    """None abstains."""
    reason: str = ""
    """A short key of why, such as ``other_value``, to be counted."""
    detail: str = ""
    """The same for people."""


def serve(judge: Callable[[Question], Reply]) -> None:
    """Answer questions until the parent is gone.

    The command line is the parent's pid, CPU seconds and memory in MiB; what follows is the module's own.
    """
    parent, cpu_s, memory_mib = (int(argument) for argument in sys.argv[1:4])
    die_with_parent(parent)
    stacks.answer_requests(f"reward {Path(sys.argv[0]).stem}")
    _limit(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":  # elsewhere the kernel does not keep it, or refuses it
        _limit(resource.RLIMIT_AS, memory_mib * 1024 * 1024)
    channel: BlockingChannel[Question] = BlockingChannel(socket.socket(fileno=0), Question)
    channel.send(Reply(value=None, reason="ready"))
    while True:
        try:
            question = channel.receive()
        except WireClosedError:
            return
        # The limit counts from the start of the process, so that each question moves it on by its own allowance.
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + cpu_s)
        try:
            reply = judge(question)
        except MemoryError:
            reply = Reply(value=0.0, reason="exhausted_memory")
        channel.send(reply)


def _limit(what: int, soft: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
