"""The trackers of a run, seen from the run: a process each, which it starts, watches and, at the end, waits for.

Invariants:

- Nothing here, and nothing that a tracker does, is ever the run's failure, and no step waits for it: the processes read
  the run's files by themselves, and the event loop only looks at a small state file now and then.
- A process that died, or whose call takes longer than ``timeout_s``, is followed by another after a pause that doubles.
- Trouble of one tracker is said once, and once more when it is over; at the end it is said how much was not taken.
- The end of the run waits at most ``close_timeout_s`` for each, for all of them at once; then they are killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from prl.config import Config
from prl.config_trackers import TrackerConfig
from prl.log import get_logger
from prl.process import Child
from prl.trackers import state as state_file
from prl.trackers.base import labels_of
from prl.trackers.state import State

LOOK_EVERY_S = 2.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 5.0, 300.0

log = get_logger(__name__)


class Feed:
    """See the module: ``open``, ``watch`` beside the run, ``close`` when ``summary.json`` is there."""

    def __init__(self, config: Config, run_dir: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir, self._clock = run_dir, clock
        labels = labels_of(config.trackers)
        self._fed = [_Fed(run_dir, label, config.trackers[at], at, clock) for at, label in enumerate(labels)]

    async def open(self, first_step: int) -> None:
        """Start the processes; ``first_step`` steps are done. The folder has its ``config.toml``, and no summary."""
        part = f"{os.getpid()}-{self._clock():.3f}"
        for fed in self._fed:
            await fed.start(part, first_step)

    async def watch(self) -> None:
        """Look on until cancelled."""
        while self._fed:
            await asyncio.sleep(LOOK_EVERY_S)
            for fed in self._fed:
                try:
                    await fed.look()
                except Exception:
                    log.exception("a tracker could not be looked at; this is a bug, and no failure of the run")

    async def close(self, num_steps: int) -> None:
        """Wait for the processes, in bounded time, and say what of ``num_steps`` steps they could not send."""
        async with asyncio.TaskGroup() as group:
            for fed in self._fed:
                group.create_task(fed.close(num_steps))

    def states(self) -> dict[str, State]:
        """How far each was when it was looked at last, by its label."""
        return {fed.label: fed.state for fed in self._fed}


class _Fed:
    """One tracker with the process that feeds it."""

    def __init__(
        self, run_dir: Path, label: str, config: TrackerConfig, index: int, clock: Callable[[], float]
    ) -> None:
        self.label, self.state = label, State()
        self._run_dir, self._config, self._index, self._clock = run_dir, config, index, clock
        self._child: Child | None = None
        self._part, self._first_step = "", 0
        self._started_at = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._restart_at: float | None = None
        self._is_troubled = self._is_said = False

    async def start(self, part: str, first_step: int) -> None:
        self._part, self._first_step = part, first_step
        self._started_at, self._restart_at = self._clock(), None
        module = (sys.executable, "-m", "prl.trackers.child")
        arguments = (str(self._run_dir), str(self._index), part, str(first_step))
        log_file = self._run_dir / "logs" / f"tracker-{self.label}.log"
        try:
            self._child = await Child.start(f"tracker-{self.label}", [*module, *arguments], log_file)
        except OSError as error:
            self._later(f"its process cannot be started: {error}")

    async def look(self) -> None:
        """Read how far it is, and start it again where it died or hangs."""
        now = self._clock()
        if self._restart_at is not None:
            if now >= self._restart_at:
                await self.start(self._part, self._first_step)
            return
        assert self._child is not None
        self.state = await asyncio.to_thread(state_file.read, self._run_dir, self.label)
        if self._child.returncode is not None:
            how = (await self._child.ended()).splitlines()[0]
            self._later(f"{self.state.error}; {how}" if self.state.error else how)
        elif (hung := self._hung(now)) is not None:
            await self._child.stop(0)
            self._later(hung)
        elif self.state.error:
            self._trouble(self.state.error)
        elif not self._is_said and self.state.part == self._part:
            log.info("a tracker has the run", tracker=self.label, id=self.state.id, url=self.state.url)
            self._is_said = True
        elif self._is_troubled and self.state.part == self._part:
            log.info("a tracker goes on", tracker=self.label)
            self._is_troubled, self._pause_s = False, _FIRST_PAUSE_S

    def _hung(self, now: float) -> str | None:
        """Why it counts as hanging, if it does: before its first word, or in a call."""
        doing, since = self.state.doing, self.state.since
        if since < self._started_at:
            doing, since = "start", self._started_at
        if not doing or now - since <= self._config.timeout_s:
            return None
        return f"{doing} took longer than timeout_s = {self._config.timeout_s:g} s"

    def _later(self, why: str) -> None:
        self._restart_at = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
        self._trouble(why)

    def _trouble(self, why: str) -> None:
        if not self._is_troubled:
            log.warning("a tracker takes nothing now; the run goes on, and tries again", tracker=self.label, why=why)
        self._is_troubled = True

    async def close(self, num_steps: int) -> None:
        limit_s, has_end = self._config.close_timeout_s, (self._run_dir / "summary.json").exists()
        if has_end and self._restart_at is not None:
            await self.start(self._part, self._first_step)  # the last chance
        if (child := self._child) is None:
            return
        if has_end:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await child.ended()
        await child.stop(0)
        self.state = await asyncio.to_thread(state_file.read, self._run_dir, self.label)
        num_unsent = max(0, num_steps - max(0, self.state.sent.get("metrics.jsonl", 0)))
        is_finished = self.state.is_finished and self.state.part == self._part
        if is_finished and not self.state.num_dropped:
            return
        why = self.state.error or f"it took longer than close_timeout_s = {limit_s:g} s"
        log.warning(
            "a tracker lacks points; all are in metrics.jsonl",
            tracker=self.label,
            steps_not_sent=num_unsent,
            points_refused=self.state.num_dropped,
            why=why,
        )
