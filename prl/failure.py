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
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from prl.errors import PrlError


class FirstFailure:
    """Holds the first failure and interrupts the waits under it."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._waiting: dict[asyncio.Task[Any], bool] = {}  # task -> was it interrupted

    def set(self, error: BaseException) -> None:
        """Keep ``error`` if it is the first, and interrupt every wait."""
        if self.error is not None:
            return
        self.error = error
        for task in self._waiting:
            self._waiting[task] = True
            task.cancel()

    async def guard(self, name: str, loop: Coroutine[Any, Any, None]) -> None:
        """Run a loop that has no end of its own: its failure, or a return, is the run's failure."""
        try:
            await loop
        except Exception as error:  # noqa: BLE001 -- kept and raised where the run is awaited
            self.set(error)
        else:
            self.set(PrlError(f"the {name} loop ended although the run goes on; this is a bug in prl"))

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Wait under this to be interrupted by the first failure, which is then raised here."""
        if self.error is not None:
            raise self.error
        task = asyncio.current_task()
        if task is None:
            msg = "FirstFailure.interrupts needs a running task"
            raise RuntimeError(msg)
        self._waiting[task] = False
        try:
            yield
        except asyncio.CancelledError:
            interrupted = self._waiting[task]
            if interrupted and self.error is not None and task.uncancel() == 0:
                raise self.error from None
            raise
        finally:
            del self._waiting[task]


class SideError(Exception):
    """One of several things done together failed; ``error`` is how, ``side`` which."""

    def __init__(self, side: str, error: Exception) -> None:
        super().__init__(f"{side}: {error}")
        self.side, self.error = side, error


async def together(pending: dict[str, str], what: str, **sides: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
    """Do things side by side: all results by side, or SideError with the first failure, the others cancelled.

    ``pending[side] = what`` stands while a side is under way, and stays when it is cancelled, so that whoever owns the
    deadline can name who had not answered.
    """
    failures: list[SideError] = []
    tasks: dict[str, asyncio.Task[Any]] = {}

    async def one(side: str, work: Callable[[], Awaitable[Any]]) -> Any:
        pending[side] = what
        result = None
        try:
            result = await work()
        except Exception as error:  # noqa: BLE001 -- raised below, with its side
            failures.append(SideError(side, error))
            for other in tasks.keys() - {side}:
                tasks[other].cancel()
        del pending[side]
        return result

    async with asyncio.TaskGroup() as group:
        for side, work in sides.items():
            tasks[side] = group.create_task(one(side, work))
    if failures:
        raise failures[0] from failures[0].error
    return {side: task.result() for side, task in tasks.items()}


@asynccontextmanager
async def running(loop: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``loop`` while the body runs, then cancel it. An exception of the body leaves as it is, in no group."""
    raised: Exception | None = None
    async with asyncio.TaskGroup() as group:
        task = group.create_task(loop)
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- raised below, outside the group that would wrap it
            raised = error
        finally:
            task.cancel()
    if raised is not None:
        raise raised
