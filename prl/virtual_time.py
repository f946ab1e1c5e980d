"""An asyncio event loop whose clock is virtual: hours of waiting pass in milliseconds, the same way every time.

Invariants:

- Time stands still while anything is ready to run. When nothing is, the clock jumps to the next timer; it never waits.
- When nothing is ready and no timer is set, no task can ever run again: that is a ``DeadlockError`` at once, which says
  where each task waits. A hang is therefore an error with a place, not a test that times out. A timer that is due after
  ``FOREVER_S`` is none: asyncio waits for a day at most at a time, and would take minutes to get there.
- A timer is run when the clock is at its time, however far that is: the resolution of the clock is never finer than
  that of its numbers. asyncio's own is 1 ns, which after 194 days adds nothing any more, and no timer would be due.
- One program has one course: the same callbacks run in the same order at the same virtual times. Tasks hash by the
  order of their creation, because ``TaskGroup`` and ``asyncio.wait`` keep them in sets, whose order would vary with
  their addresses.
- Work in a thread (``asyncio.to_thread``, ``run_in_executor``) is real, so while some is under way the clock runs in
  real time: a thread that answers before the next timer costs no virtual time, a slower one meets its deadline.
- Sockets, pipes and child processes have no virtual time; registering one is refused.

Code that is to run here reads the time from ``asyncio.get_running_loop().time()``, never from the ``time`` module.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from prl.stacks import places

FOREVER_S = 1e10
"""Seconds of virtual time, 300 years, that nothing waits for."""
RESOLUTION_S = 1e-9
T = TypeVar("T")


class DeadlockError(RuntimeError):
    """Nothing is ready and no timer is set: what is left to run waits for ever."""


class _NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks have the same order in every run."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, number: int, **kwargs: Any) -> None:
        # Before the base class, which puts the task into a set.
        self._number = number
        super().__init__(coro, **kwargs)

    def __hash__(self) -> int:
        return self._number


class _JumpingSelector(selectors.DefaultSelector):
    """The place where an event loop waits; here it moves the clock instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.num_threads_at_work = 0
        self.accepts_files = True
        self.deadlocked: Callable[[], DeadlockError]
        self.moved: Callable[[], None]

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if not self.accepts_files:
            msg = "sockets, pipes and child processes do not work in virtual time; use a real event loop for them"
            raise NotImplementedError(msg)
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Called with 0 while something is ready, else with the seconds to the next timer, or None without one.

        Asking the system costs as much as what a callback does, and only threads, or a signal, have anything to say.
        """
        if self.num_threads_at_work or timeout != 0:
            events = super().select(timeout if self.num_threads_at_work else 0)
            if events:
                return events
        if timeout is None:
            raise self.deadlocked()
        if timeout:
            self.now += timeout
            self.moved()
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that starts at time 0 and moves its clock from timer to timer."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)
        # The loop's own wake-up pipe is registered by now; nothing else may be.
        self._clock.accepts_files = False
        self._clock.deadlocked, self._clock.moved = self._deadlocked, self._moved
        self._numbers = itertools.count(1)
        self.set_task_factory(self._numbered_task)

    def time(self) -> float:
        """Seconds since the loop was made, in virtual time."""
        return self._clock.now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run ``callback`` at a virtual time, unless that is after ``FOREVER_S``."""
        if when > FOREVER_S:
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run ``func`` in a thread; the clock runs in real time until it is done."""
        future = super().run_in_executor(executor, func, *args)
        self._clock.num_threads_at_work += 1
        future.add_done_callback(self._thread_returned)
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """Join the threads; that is real time too."""
        self._clock.num_threads_at_work += 1
        try:
            await super().shutdown_default_executor(*args, **kwargs)
        finally:
            self._clock.num_threads_at_work -= 1

    def _moved(self) -> None:
        self._clock_resolution = max(RESOLUTION_S, math.ulp(self._clock.now))

    def _thread_returned(self, _: asyncio.Future[Any]) -> None:
        self._clock.num_threads_at_work -= 1

    def _numbered_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> _NumberedTask:
        return _NumberedTask(coro, loop=loop, number=next(self._numbers), **kwargs)

    def _deadlocked(self) -> DeadlockError:
        waiting = sorted(asyncio.all_tasks(self), key=hash)
        where = {task.get_name(): " > ".join(places(task)) or "no coroutine" for task in waiting}
        listed = "".join(f"\n  {name} waits at {place}" for name, place in where.items())
        return DeadlockError(f"deadlock at virtual time {self.time():g} s: nothing is ready, no timer is set{listed}")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` on a virtual-time loop of its own and return its result, like ``asyncio.run``.

    Raises:
        DeadlockError: what is left waits for ever.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
