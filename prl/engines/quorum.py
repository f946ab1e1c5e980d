"""Whether enough engines are there, and how long a run waits until they are.

Invariants:

- Fewer than ``engine.min_engines`` that serve for ``engine.recovery_timeout_s``, or that may ever serve again, end the
  run with what each was lost of. Where no engine can be started in place of another, the first death does.
- Engines that were removed on purpose are not missed.
- No time passes while the trainer is started again (``deadlines``), without which nobody can join.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from prl.config import EngineConfig
from prl.deadlines import Deadlines
from prl.engines.seats import Seats
from prl.errors import EngineDeadError
from prl.waits import waiting


class Quorum:
    """See the module.

    Args:
        seats: who is there.
        config: deadlines, and how many must serve.
    """

    def __init__(self, seats: Seats, config: EngineConfig) -> None:
        self._seats, self._config = seats, config
        self.deadlines = Deadlines()
        """Of the waits for engines that come back: who is ready cannot join while the trainer is started again."""

    async def one_is_there(self) -> None:
        """Wait until an engine is alive. Raises EngineDeadError after ``engine.recovery_timeout_s``."""
        await self._in_time(lambda: bool(self._seats.there()), "an engine to be started again")

    async def one_serves(self) -> None:
        """Wait until streams can be placed. Raises EngineDeadError after ``engine.recovery_timeout_s``."""
        if self._seats.remake is None and not self._seats.serving():
            raise EngineDeadError("every engine is dead")
        await self._in_time(lambda: bool(self._seats.serving()), "an engine to serve again")

    async def too_few(self) -> str:
        """Wait until fewer than ``engine.min_engines`` have served for ``engine.recovery_timeout_s``; why."""
        if self._seats.remake is None:
            await self._seats.until(lambda: any(seat.state == "lost" for seat in self._seats.all))
            return self._losses()
        limit_s, enough = self._config.recovery_timeout_s, self._enough
        while True:
            await self._seats.until(lambda: sum(seat.is_there for seat in self._seats.staying()) < enough())
            with suppress(TimeoutError):
                async with self.deadlines.timeout(limit_s):
                    await self._seats.until(
                        lambda: len(self._seats.serving()) >= enough() or self._num_left() < enough()
                    )
                if self._num_left() >= enough():
                    continue
                tried = f"engine.max_restarts = {self._config.max_restarts}"
                return f"fewer than {enough()} engines (engine.min_engines) are left after {tried}: {self._losses()}"
            limit = f"engine.recovery_timeout_s = {limit_s:g} s"
            return f"fewer than {enough()} engines (engine.min_engines) served for {limit}: {self._losses()}"

    def _enough(self) -> int:
        """How many must serve: not more than there were, without those that were removed on purpose."""
        return min(self._config.min_engines, sum(seat.counts for seat in self._seats.staying()))

    def _num_left(self) -> int:
        return sum(not seat.stays_empty for seat in self._seats.staying())

    def _losses(self) -> str:
        return "; ".join(f"{seat.engine.name} is dead: {seat.why}" for seat in self._seats.all if seat.why)

    async def _in_time(self, condition: Callable[[], bool], what: str) -> None:
        limit_s = self._config.recovery_timeout_s
        try:
            async with self.deadlines.timeout(limit_s):
                with waiting("the engines", f"wait for {what}", limit_s=limit_s, on=self._seats.restarts.values):
                    await self._seats.until(condition)
        except TimeoutError:
            limit = f"engine.recovery_timeout_s = {limit_s:g} s"
            raise EngineDeadError(f"waited {limit} for {what}: {self._losses()}") from None
