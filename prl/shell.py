"""One coroutine run to an exit code from the command line, and the end of everything that it started.

- A thread that hangs in a reward must not keep the process: the executor is left behind, and whoever owns the process
  decides (``cli.py``).
- The first SIGINT or SIGTERM does what the command says; the second, at any time, kills every descendant and leaves
  with 130. It is a plain signal handler, not the event loop's, so that it works while the loop is blocked.
"""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from prl.errors import PrlError

OK, FAILED, INTERRUPTED = 0, 1, 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = b"\x1b[?25h\n"


def run_to_exit(main: Coroutine[Any, Any, int]) -> int:
    """Run ``main`` on a loop of its own and return its exit code."""
    loop = _new_event_loop()
    executor = ThreadPoolExecutor(thread_name_prefix="prl")
    loop.set_default_executor(executor)
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - not there on every system
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@contextmanager
def first_signal(react: Callable[[], object]) -> Iterator[None]:
    """``react`` to the first SIGINT or SIGTERM, in the event loop; from then on the next kills everything."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    came = False

    def first() -> None:
        nonlocal came
        if came:  # several signals came before the loop looked
            _kill_everything(0, None)
        came = True
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, _kill_everything)
        react()

    for number in _SIGNALS:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _kill_everything(_: int, __: FrameType | None) -> None:
    """SIGKILL to every descendant, then leave without another word: what is stuck may not be waited for.

    All of them are stopped first, until no new one is found: one that is about to fork would leave an orphan.
    """
    stopped: set[int] = set()
    while new := set(_descendants(os.getpid())) - stopped:
        _signal_each(new, signal.SIGSTOP)
        stopped |= new
    _signal_each(stopped, signal.SIGKILL)
    if os.isatty(1):
        os.write(1, _SHOW_CURSOR)
    os._exit(INTERRUPTED)


def _signal_each(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    """Children, their children and so on. Empty where there is no /proc: there each child watches its parent."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def failure_message(what: str, error: Exception) -> str:
    """One message that ``what`` failed; above it the traceback where the error is a bug."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    text = str(error) if isinstance(error, PrlError) else f"{type(error).__name__}: {error}"
    trace = "" if isinstance(error, PrlError) else "".join(traceback.format_exception(error))
    return f"{trace}prl: {what} failed: {text}\n"
