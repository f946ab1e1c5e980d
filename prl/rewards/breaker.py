"""When a reward fails again and again: which failures may pass, and the breaker that pauses the reward until they have.

- Only what the world does may pass: a service that is down, a worker that was killed, a call that was late. A reward
  that gives no number, a file that is not there, or a request that was refused comes back the same way every time.
- ``max_failures`` failed calls in a row open the breaker where the last of them may pass. Calls then take turns, one
  at a time, each after a longer pause; the first that works closes the breaker and all go on. A call that was refused
  by an open breaker or failed as a probe waits for its next turn, so no completion is given up for the outage.
- While a breaker is open the deadlines of rollouts and evaluations stand still (``deadlines.py``): no prompt is at
  fault. After ``recovery_timeout_s`` without a call that worked the run ends, and says so once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prl.config import RewardConfig
from prl.deadlines import Deadlines
from prl.errors import RewardError
from prl.log import get_logger

FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 15.0
"""Pauses before the retries of a call, and before the probes of an open breaker: each twice the one before."""
_STAYS = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
_REFUSALS = range(400, 500)
_REFUSALS_THAT_PASS = {408, 425, 429}
"""HTTP statuses below 500 that ask for another try: too slow, too early, too many."""

log = get_logger(__name__)


def is_failure(error: Exception) -> bool:
    """Whether the world failed (a service, a worker, a file) and not the reward's code."""
    aiohttp: Any = sys.modules.get("aiohttp")  # an aiohttp error can only come from an imported aiohttp
    return isinstance(error, (OSError, RewardError)) or (aiohttp is not None and isinstance(error, aiohttp.ClientError))


def may_pass(error: Exception) -> bool:
    """Whether the same call may work a moment later."""
    status = getattr(error, "status", None)  # aiohttp.ClientResponseError's
    if status in _REFUSALS and status not in _REFUSALS_THAT_PASS:
        return False
    return is_failure(error) and not isinstance(error, _STAYS)


class Breaker:
    """See the module. Of one reward, on one event loop."""

    def __init__(self, label: str, config: RewardConfig) -> None:
        self._label, self._config = label, config
        self._turns = asyncio.Lock()
        self._open_since: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._num_probes = 0
        self._deadlines: Deadlines | None = None
        self.failures_in_row = 0
        self.num_opened = 0
        """Times that the reward was paused."""

    @property
    def is_open(self) -> bool:
        """Whether the reward is paused."""
        return self._open_since is not None

    def hold_while_open(self, deadlines: Deadlines) -> None:
        """These stand still while the reward is paused."""
        self._deadlines = deadlines

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A call may be made in the body: at once, or as a probe, alone and after a pause."""
        if self.is_open:
            async with self._turns:
                if self.is_open:
                    await asyncio.sleep(self._pause_s)
                    self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
                    self._num_probes += 1
                    yield
                    return
        yield

    def worked(self) -> None:
        """A call gave a verdict."""
        self.failures_in_row = 0
        if self._open_since is None:
            return
        seconds, self._open_since = _now() - self._open_since, None
        if self._deadlines is not None:
            self._deadlines.go_on(self)
        log.warning("a reward works again", reward=self._label, after_s=round(seconds, 1), probes=self._num_probes)

    def failed(self, why: str, *, passes: bool) -> RewardError | None:
        """A call failed; what ends the run if that was once too often. ``passes``: whether the failure may pass."""
        self.failures_in_row += 1
        if self.failures_in_row < self._config.max_failures:
            return None
        if self._open_since is None:
            if not passes:
                return RewardError(f"{self._so_often()}; the last time: {why}")
            self._open(why)
            return None
        limit_s, seconds = self._config.recovery_timeout_s, _now() - self._open_since
        if seconds < limit_s:
            return None
        return RewardError(
            f"{self._so_often()}, {self._num_probes} of them over {seconds:.0f} s while it was paused"
            f" (rewards.recovery_timeout_s = {limit_s:g}); the last time: {why}. See whether what it needs is up, then"
            " go on with --resume, which keeps what was sampled"
        )

    def _so_often(self) -> str:
        times = f"failed {self.failures_in_row} times in a row"
        return f"the reward {self._label!r} {times} (rewards.max_failures = {self._config.max_failures})"

    def _open(self, why: str) -> None:
        self._open_since, self._pause_s, self._num_probes = _now(), FIRST_PAUSE_S, 0
        self.num_opened += 1
        if self._deadlines is not None:
            self._deadlines.hold(self)
        log.warning(
            "a reward is paused: its calls fail one after the other; one at a time is tried until one works",
            reward=self._label,
            failures_in_row=self.failures_in_row,
            run_ends_in_s=self._config.recovery_timeout_s,
            why=why,
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
