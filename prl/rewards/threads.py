"""Daemon threads for rewards that are plain functions.

- A call never runs on the event loop, and its result comes back to the loop that asked.
- A thread cannot be killed. One whose caller gave up is *stuck*: it is counted, never handed another call, and it
  keeps neither ``close`` nor the end of the process waiting. If its call does return, the thread is used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Threads:
    """As many threads as calls are under way. Made, used and closed on one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[_Thread] = []
        self._closed = False
        self.num_stuck = 0
        """Threads whose caller has given up and whose call has not returned."""

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function`` in a thread. The caller owns the deadline: cancelling leaves the thread stuck."""
        thread = self._idle.pop() if self._idle else _Thread(self._name)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def returned(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                self.num_stuck -= 1
            elif error is None:
                future.set_result(result)
            elif isinstance(error, StopIteration):  # which no future takes
                future.set_exception(RuntimeError(f"the call raised StopIteration: {error}"))
            else:
                future.set_exception(error)
            if self._closed:
                thread.end()
            else:
                self._idle.append(thread)

        def call() -> None:
            try:
                result, error = function(*arguments), None
            except BaseException as raised:  # noqa: BLE001  (every exception is handed to the caller)
                result, error = None, raised
            with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile: nobody is left to tell
                loop.call_soon_threadsafe(returned, result, error)

        thread.calls.put(call)
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self.num_stuck += 1
            raise

    def close(self) -> None:
        """End the idle threads; stuck ones end when their call returns."""
        self._closed = True
        while self._idle:
            self._idle.pop().end()


class _Thread:
    """One daemon thread and the calls it is to make; None ends it."""

    def __init__(self, name: str) -> None:
        self.calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while (call := self.calls.get()) is not None:
            call()

    def end(self) -> None:
        self.calls.put(None)
