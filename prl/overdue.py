"""A wait that nothing but the end of its process can end, such as a collective that a peer never joins.

Past its deadline the process says what it waited for and where each of its threads stood, and ends. Whoever watches it
sees a death with its reason in the last lines of the log, and mends that as any other.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ends_process(limit_s: float, what: str) -> Iterator[None]:
    """End this process where the body, a call into a library without deadlines, takes longer than ``limit_s``.

    The body has to leave the interpreter lock free while it waits, as ctypes and torch do.
    """
    watch = threading.Timer(limit_s, _end, [f"{what} took longer than {limit_s:g} s (weights.timeout_s)"])
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _end(why: str) -> None:
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    sys.stderr.write(f"prl: {why}; nothing else can end it, so this process ends\n")
    sys.stderr.flush()
    os._exit(1)
