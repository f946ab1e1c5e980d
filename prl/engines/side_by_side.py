"""One call of many engines at once, done by all of them or failed.

Invariants:

- The error names each engine that failed; soon after the first failure the others are cancelled.
- Failures are gathered as values, so that no task group closes on one (see ``failure.py``).
- ``pending`` says who has not answered. What a cancelled call was waiting for stays there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from prl.engines.base import Engine
from prl.errors import EngineDeadError, EngineError, PrlError
from prl.failure import failures_to
from prl.waits import waiting

FAILURE_GRACE_S = 0.5
"""After one engine failed, how long the others have to fail too and be named, before they are cancelled."""
T = TypeVar("T")


class SideBySide:
    """See the module."""

    def __init__(self) -> None:
        self.pending: dict[str, str] = {}
        """What each engine has not answered yet, by engine name."""

    async def __call__(
        self, call: str, work: Callable[[Engine], Awaitable[T]], engines: Sequence[Engine]
    ) -> dict[str, T]:
        """Do ``work``, which ``call`` names, with every engine; the results by engine name.

        Raises:
            EngineError: it failed on some; EngineDeadError where one of them is dead.
        """
        results: dict[str, T] = {}
        failures: dict[str, Exception] = {}
        tasks: dict[str, asyncio.Task[None]] = {}
        self.pending = {engine.name: call for engine in engines}

        async def one(engine: Engine) -> None:
            def fail(error: Exception) -> None:
                failures[engine.name] = error
                asyncio.get_running_loop().call_later(FAILURE_GRACE_S, cancel_all)

            with failures_to(fail, call), waiting(engine.name, call):
                results[engine.name] = await work(engine)
            del self.pending[engine.name]

        def cancel_all() -> None:
            for task in tasks.values():
                task.cancel()

        async with asyncio.TaskGroup() as group:
            for engine in engines:
                tasks[engine.name] = group.create_task(one(engine))
        if failures:
            self.pending = {}
            raise _as_one(call, failures, len(engines))
        return results


def _as_one(call: str, failures: dict[str, Exception], num_engines: int) -> Exception:
    """One error for all: a bug as it is, else an EngineError that names each engine."""
    for error in failures.values():
        if not isinstance(error, PrlError):
            return error
    dead = any(isinstance(error, EngineDeadError) for error in failures.values())
    what = "; ".join(f"{name}: {error}" for name, error in failures.items())
    combined = (EngineDeadError if dead else EngineError)(
        f"{call} failed on {len(failures)} of {num_engines} engines: {what}"
    )
    combined.__cause__ = next(iter(failures.values()))
    return combined
