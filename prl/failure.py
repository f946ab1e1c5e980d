"""The first failure of a run, raised to whoever waits on the run.

The loops run beside the task that calls ``step()``. When one of them fails, that task must see the *original* exception
at once, wherever it waits, and not an exception group after the fact. So a loop runs under ``guard``, which keeps the
first failure, and a wait runs under ``interrupts``, which the failure ends:

    async with asyncio.TaskGroup() as loops:          with failure.interrupts():
        loops.create_task(failure.guard("admit", ...))    await buffer.take(...)

Failures thus travel as values, and no task group ever closes on one: on Python 3.11 and 3.12 a cancellation that
arrives while a nested group is closing on a failure can be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, NoReturn

from prl.errors import PrlError
from prl.waits import waiting

PATIENCE_S = 10.0
"""How long a side that is in the middle of something may take to end when another has failed."""


def being_cancelled() -> bool:
    """Whether a CancelledError in this task was asked for, and did not leak out of what the task awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def raise_as_it_was(error: BaseException) -> NoReturn:
    """Raise ``error`` a second time, with the cause and context it had the first time."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context  # the traceback holds this frame


def failures_to(keep: Callable[[Exception], None], what: str) -> AbstractContextManager[None, bool]:
    """Give a failure of the block to ``keep`` and go on; only a cancellation that was asked for is raised.

    Inside a task group this is how a member fails without closing the group.
    """
    return _Keeping(keep, what)


class _Keeping:
    """See ``failures_to``. A class and no generator: every stream passes here, of a run and of a simulation."""

    def __init__(self, keep: Callable[[Exception], None], what: str) -> None:
        self._keep, self._what = keep, what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, asyncio.CancelledError) and not being_cancelled():
            leaked, error = error, PrlError(f"{self._what} was cancelled from within; this is a bug")
            error.__cause__ = leaked
        if not isinstance(error, Exception):
            return False
        self._keep(error)
        return True


class _Wait:
    """One ``interrupts`` block under way."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task, self._cancelling_before = task, task.cancelling()
        self._cancelled = False
        self.failure: BaseException | None = None
        """What interrupted it."""

    def interrupt(self, failure: BaseException) -> None:
        """End the wait, unless it is its own task that failed: that one meets the failure where the wait ends."""
        self.failure = failure
        if self._task is not asyncio.current_task(self._task.get_loop()):
            self._cancelled = self._task.cancel()

    def take_back(self) -> bool:
        """End the cancellation of ``interrupt``, whatever became of it; whether another one is under way."""
        left = self._task.uncancel() if self._cancelled else self._task.cancelling()
        return left > self._cancelling_before


class FirstFailure:
    """Holds the first failure and interrupts the waits under it."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._waits: list[_Wait] = []

    def set(self, error: BaseException) -> None:
        """Keep ``error`` if it is the first, and interrupt every wait."""
        if self.error is not None:
            return
        self.error = error
        for wait in self._waits:
            wait.interrupt(error)

    async def guard(self, name: str, loop: Coroutine[Any, Any, None]) -> None:
        """Run a loop that has no end of its own: its failure, or a return, is the run's failure."""
        with failures_to(self.set, f"the {name} loop"):
            await loop
            self.set(PrlError(f"the {name} loop ended although the run goes on; this is a bug"))

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Wait under this to be interrupted by the first failure, which is then raised here as it was.

        The interruption is a cancellation of this task that is taken back here. A cancellation that somebody else asked
        for goes on, and comes before the failure.
        """
        if self.error is not None:
            raise_as_it_was(self.error)
        task = asyncio.current_task()
        if task is None:
            msg = "FirstFailure.interrupts needs a running task"
            raise RuntimeError(msg)
        wait = _Wait(task)
        self._waits.append(wait)
        try:
            yield
        except asyncio.CancelledError:
            if wait.take_back() or wait.failure is None:
                raise
        except Exception as error:
            wait.take_back()
            if wait.failure is None or wait.failure is error:
                raise
            wait.failure.add_note(f"the wait that this failure ended then raised {error!r}")
        else:
            wait.take_back()
        finally:
            self._waits.remove(wait)
        if wait.failure is not None:
            raise_as_it_was(wait.failure)


class SideError(Exception):
    """One of several things done together failed; ``error`` is how, ``side`` which."""

    def __init__(self, side: str, error: Exception) -> None:
        super().__init__(f"{side}: {error}")
        self.side, self.error = side, error


async def together(
    pending: dict[str, str], what: str, *, patient: Collection[str] = (), **sides: Callable[[], Awaitable[Any]]
) -> dict[str, Any]:
    """Do things side by side: all results by side, or SideError with the first failure, the others cancelled.

    A ``patient`` side is not cancelled at once but given ``PATIENCE_S`` to end by itself: one that would be left in the
    middle of something.

    ``pending[side]`` says what a side is doing. It stays where the side is cancelled or fails, so that whoever owns the
    deadline can name who had not answered, and why.
    """
    failures: list[SideError] = []
    tasks: dict[str, asyncio.Task[Any]] = {}

    async def one(side: str, work: Callable[[], Awaitable[Any]]) -> Any:
        def fail(error: Exception) -> None:
            pending[side] = f"{what} failed: {error}"
            failures.append(SideError(side, error))
            for other in tasks.keys() - {side}:
                if other in patient:
                    asyncio.get_running_loop().call_later(PATIENCE_S, tasks[other].cancel)
                else:
                    tasks[other].cancel()

        pending[side] = what
        with failures_to(fail, f"the {what}"), waiting(f"the {side}", what):
            result = await work()
            del pending[side]
            return result
        return None

    async with asyncio.TaskGroup() as group:
        for side, work in sides.items():
            tasks[side] = group.create_task(one(side, work))
    if failures:
        raise failures[0] from failures[0].error
    return {side: task.result() for side, task in tasks.items()}


async def together_as_it_was(
    what: str, *, patient: Collection[str] = (), **sides: Callable[[], Awaitable[Any]]
) -> dict[str, Any]:
    """Do things side by side, as ``together`` does: all results by side, or the first failure as it was."""
    error: Exception | None = None
    results: dict[str, Any] = {}
    try:
        results = await together({}, what, patient=patient, **sides)
    except SideError as failed:
        error = failed.error
    if error is not None:
        raise_as_it_was(error)
    return results


@asynccontextmanager
async def running(loop: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``loop`` while the body runs, then cancel it.

    An exception of the body leaves as it was, in no group; one of the loop ends the body and does the same.
    """
    error: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(loop)
            try:
                yield
            except Exception as raised:  # noqa: BLE001 -- raised below, outside the group that would wrap it
                error = raised
            finally:
                task.cancel()
    except ExceptionGroup as failed:
        error = error or failed.exceptions[0]
    if error is not None:
        raise_as_it_was(error)
