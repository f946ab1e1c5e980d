"""Ranks that torchrun starts on this host, as one child of this process.

Invariants:

- All ranks are here within ``trainer.start_timeout_s``, or the start fails and says which are missing. A child that
  ends before they are is an error at once. Both come with torchrun's last lines.
- How a rank ended is what torchrun says of it: it is given ``REPORT_S`` to write that down, and ends itself then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from prl.config import Config
from prl.errors import TrainerDeadError, TrainerError
from prl.process import Child, tail
from prl.trainer import launch
from prl.trainer.gathering import Gathering
from prl.trainer.ranks import Ranks
from prl.waits import waiting

REPORT_S = 2.0


class Torchrun:
    """See the module; ``logs`` is the folder of ``trainer.log`` and of the ranks' logs."""

    spans_hosts = False

    def __init__(self, config: Config, logs: Path) -> None:
        self._config, self._logs, self._log = config, logs, logs / "trainer.log"
        self.child: Child | None = None

    async def gather(
        self,
        gathering: Gathering,
        address: str,
        after: TrainerDeadError | None,  # noqa: ARG002 -- a death ends this child
    ) -> float:
        """Start torchrun and wait until every rank has connected to ``address``; returns the seconds that it took.

        Raises:
            TrainerError: they did not within ``trainer.start_timeout_s``, or cannot.
        """
        timeout_s, num_ranks = self._config.trainer.start_timeout_s, self._config.trainer.num_ranks
        clock = asyncio.get_running_loop().time
        began_at = clock()

        def missing() -> str:
            return f"{launch.named(gathering.ranks.missing())} of {num_ranks} did not connect"

        try:
            async with asyncio.timeout(timeout_s):
                with waiting("the trainer", missing, limit_s=timeout_s):
                    environment = await asyncio.to_thread(
                        launch.environment, self._config, address, gathering.token, self._logs
                    )
                    command = launch.torchrun_command(num_ranks)
                    self.child = await Child.start("the trainer", command, self._log, environment)
                    problem = await first(gathering.gather(), self.child.ended())
        except TimeoutError:
            raise TrainerError(
                f"trainer {missing()} within trainer.start_timeout_s = {timeout_s:g} s{self.last_lines()}"
            ) from None
        if problem is not None:
            raise TrainerError(f"the trainer did not start: {problem}")
        return clock() - began_at

    async def how_it_ended(self, pid: int) -> str | None:
        """How the rank with this pid ended, in words; None: nobody says."""
        if self.child is None:
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(REPORT_S):
                await self.child.ended()
        return launch.how_it_ended(self._log, pid)

    def last_lines(self, rank: int | None = None) -> str:
        """The end of a rank's log, or of torchrun's."""
        log = self._log if rank is None else launch.rank_log(self._logs, rank)
        return f"; last lines of {log}:\n{tail(log)}"

    async def ended(self, ranks: Ranks) -> None:  # noqa: ARG002 -- they end before it
        """Wait until it has ended by itself."""
        if self.child is not None:
            await self.child.ended()

    async def stop(self, grace_s: float) -> None:
        """End it, and every rank with it."""
        if self.child is not None:
            await self.child.stop(grace_s)


async def first(one: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any]) -> Any:
    """The result of whichever coroutine ends first; the other is cancelled."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one), group.create_task(other)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    return done.pop().result()
