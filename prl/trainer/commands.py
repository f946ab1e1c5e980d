"""Commands to all ranks of a trainer, and what is said of one that did not succeed.

Invariants:

- One command at a time, each with the deadline of its config key. One that was interrupted, by that or by its caller,
  leaves the ranks in the middle of it: nothing can be asked of them any more, and to ``failed`` it is a death.
- Every way a rank can fail ends as an error that names the rank, the command it was in and the last lines of its log,
  within seconds.
- A command of the weight transfer that every rank answered with its failure leaves them as they were: the cause may be
  an engine. Any other failure leaves nothing to ask.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TypeVar

from prl.config import Config
from prl.deadlines import awake_timeout
from prl.errors import TrainerDeadError, TrainerError
from prl.trainer import protocol
from prl.trainer.external import External
from prl.trainer.ranks import RankFailure, Ranks
from prl.trainer.torchrun import Torchrun, first
from prl.waits import waiting

R = TypeVar(
    "R",
    protocol.Ready,
    protocol.Trained,
    protocol.Scored,
    protocol.Rescored,
    protocol.Written,
    protocol.Meeting,
    protocol.Done,
)


class Commands:
    """See the module.

    Args:
        config: deadlines.
        ranks: to whom.
        launched: how they were started, and so what is known of their ends.
    """

    def __init__(self, config: Config, ranks: Ranks, launched: Torchrun | External) -> None:
        self._config, self._ranks, self._launched = config, ranks, launched
        self._under_way: str | None = None
        self._closed = False
        self._interrupted = asyncio.Event()
        self.busy_s = 0.0
        """Seconds of all commands that succeeded, the start not counted."""

    @property
    def are_idle(self) -> bool:
        """Whether every rank is there and waits for a command."""
        return self._under_way is None and not self._ranks.any_ended.is_set() and not self._ranks.missing()

    def close(self) -> None:
        """Take none any more."""
        self._closed = True

    async def ask(
        self,
        what: str,
        kind: type[R],
        commands: Sequence[protocol.Setup | protocol.Command],
        timeout_s: float | None = None,
        key: str = "trainer.step_timeout_s",
    ) -> list[R]:
        """One command to every rank; returns their replies, all of type ``kind``.

        Raises:
            TrainerDeadError: a rank is gone or hangs, or they were left in the middle of a command.
            TrainerError: a rank failed, or another command is under way.
        """
        if self._interrupted.is_set():
            raise TrainerDeadError(f"cannot {what}: the trainer was interrupted {self._under_way}")
        if self._closed or self._under_way is not None:
            raise TrainerError(
                f"cannot {what}: the trainer is {self._under_way or 'closed'}; it takes one command at a time"
            )
        self._under_way = f"in {what!r}"
        timeout_s = self._config.trainer.step_timeout_s if timeout_s is None else timeout_s
        started = time.monotonic()
        try:
            async with awake_timeout(timeout_s):
                with waiting("the trainer", what, limit_s=timeout_s):
                    outcome = await self._ranks.ask(commands, what)
        except asyncio.CancelledError:
            self._interrupted.set()
            raise
        except TimeoutError:
            self._interrupted.set()
            raise TrainerDeadError(
                f"the trainer did not finish {what!r} within {key} = {timeout_s:g} s{self._launched.last_lines()}"
            ) from None
        if isinstance(outcome, RankFailure):
            described = await self._describe(outcome, self._under_way)
            if outcome.in_step and isinstance(commands[0], protocol.Meet | protocol.Connect | protocol.Publish):
                self._under_way = None
            error = TrainerDeadError if outcome.failed is None else TrainerError
            raise error(described)
        if kind is not protocol.Ready:
            self.busy_s += time.monotonic() - started
        replies = [reply for reply in outcome if isinstance(reply, kind)]
        if len(replies) != len(commands):
            raise TrainerError(f"a rank answered {what!r} with {[type(reply).__name__ for reply in outcome]}")
        self._under_way = None
        return replies

    async def failed(self) -> str:
        """Wait until a rank is dead or hangs, or a command was interrupted; return which, why, and its last lines."""
        await first(self._ranks.watch(self._config.trainer.heartbeat_timeout_s), self._interrupted.wait())
        if not self._ranks.any_ended.is_set():
            return f"the trainer was interrupted {self._under_way}"
        return await self._describe(RankFailure(self._ranks.ends[0], None), self._under_way or "no command")

    async def _describe(self, failure: RankFailure, when: str) -> str:
        """One paragraph about a rank that failed or died."""
        rank, pid = failure.rank, self._ranks.pid(failure.rank)
        host = self._ranks.host(rank) if self._launched.spans_hosts else ""
        name = f"trainer rank {rank} (pid {pid}{f' on {host}' if host else ''})"
        if failure.failed is not None:
            details = f"\n{failure.failed.traceback}" if failure.failed.traceback else ""
            return f"{name} failed {when}: {failure.failed.error}{details}"
        if rank in self._ranks.hung:
            limit = f"trainer.heartbeat_timeout_s = {self._config.trainer.heartbeat_timeout_s:g} s"
            return f"{name} hangs {when}: no sign of life for {limit}{self._launched.last_lines(rank)}"
        how = await self._launched.how_it_ended(pid)
        return f"{name} {how or 'died'} {when}{self._launched.last_lines(rank)}"
