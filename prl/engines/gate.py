"""Where new streams wait while all engines stand still for new weights.

Invariant: nobody waits here for ever. A wait ends as an error after ``timeout_s`` without any sign that somebody is at
work on going on; such a sign (``note_progress``) begins it anew, and it does not run out while no engine is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prl.deadlines import Deadlines
from prl.errors import EngineError
from prl.waits import waiting


class Gate:
    """See the module.

    Args:
        timeout_s: ``weights.timeout_s``.
        deadlines: of all that wait for streams to go on.
        may_come: whether no engine is there and one may be started: then there is reason to wait on.
    """

    def __init__(self, timeout_s: float, deadlines: Deadlines, may_come: Callable[[], bool]) -> None:
        self._timeout_s, self._deadlines, self._may_come = timeout_s, deadlines, may_come
        self._is_open = asyncio.Event()
        self._progress_at = 0.0
        self.num_waiting = 0

    @property
    def is_open(self) -> bool:
        """Whether streams pass."""
        return self._is_open.is_set()

    def open(self) -> None:
        """Whoever waits goes on."""
        self._is_open.set()

    def shut(self) -> None:
        """Nobody passes from now on."""
        self._is_open.clear()

    def note_progress(self) -> None:
        """Who waits has reason to wait on."""
        self._progress_at = asyncio.get_running_loop().time()

    async def passed(self) -> None:
        """Wait until it is open. Raises EngineError, in time."""
        if self.is_open:
            return
        self.num_waiting += 1
        try:
            while not self.is_open:
                await self._wait()
        finally:
            self.num_waiting -= 1

    async def _wait(self) -> None:
        """Until it opens, or for ``timeout_s`` if that was long enough to give up."""
        since = asyncio.get_running_loop().time()
        try:
            async with self._deadlines.timeout(self._timeout_s):
                with waiting("the engines", "stand still for new weights", limit_s=self._timeout_s):
                    await self._is_open.wait()
        except TimeoutError:
            if self._progress_at > since or self._may_come():
                return
            limit = f"{self._timeout_s:g} s (weights.timeout_s)"
            raise EngineError(f"a stream waited {limit} for the engines to resume") from None
