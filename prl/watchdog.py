"""What notices that a run stands still, says who waits for whom, and acts or ends it.

Invariants:

- A run stands still when nothing that it waits for has shown a sign of life for ``run.stall_timeout_s``: no token, no
  slot changing, no step, no message of a rank, no wait ended and another begun. What has a deadline of its own is left
  alone until that has passed; so a long step or save whose rank gives signs of life is no stall. Nor is a caller that
  asks for nothing.
- Then the chain and the stacks of every process are written to ``stalls/`` in the run folder, and where that helps
  something is done, once. What still stands after that ends the run with ``StallError``: the chain, and that file.
- What may take any time (reading data) is only warned of, with the same file.
- A heartbeat measures how late the event loop is; ``blocked.py`` says what held it up. A loop that is blocked for
  ``run.stall_timeout_s`` has stalled, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec

from prl import stacks
from prl.blocked import LoopMonitor
from prl.chain import Waiting, chain, leaves, lines, quiet_s
from prl.errors import StallError
from prl.log import get_logger
from prl.waits import Waits

PULSE_S = 0.1
BLOCKED_WARNING_S = 0.2
"""A function that holds up the event loop for longer is warned of ..."""
LATE_S = 0.5
"""... and a delay of this length that has no such cause is noted in the log file."""
FOLDER = "stalls"

log = get_logger(__name__)


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Who waits for whom in a run."""

    chain: str
    """One line: from the run to what has not moved for the longest time."""
    run: Waiting
    loops: list[Waiting]
    """What each loop beside it waits for."""

    @classmethod
    def of(cls, waits: Waits, now: float) -> Self:
        """At the time ``now``."""
        run = waits.run_at(now)
        return cls(chain=chain(run), run=run, loops=waits.loops_at(now))


class Watchdog:
    """See the module. ``run`` it beside the run, from its first moment to its last.

    Args:
        waits: what everybody waits for.
        run_dir: where ``stalls/`` is.
        stall_timeout_s: how long nothing may move.
        progress: anything that changes when something moved.
        on_lag: told how late each heartbeat was, in seconds.
        act: does something about a stall; what it did, or None.
    """

    def __init__(
        self,
        waits: Waits,
        run_dir: Path,
        *,
        stall_timeout_s: float,
        progress: Callable[[], object],
        on_lag: Callable[[float], None],
        act: Callable[[Waiting], str | None],
    ) -> None:
        self._waits, self._run_dir, self._stall_timeout_s = waits, run_dir, stall_timeout_s
        self._progress, self._on_lag, self._act = progress, on_lag, act
        self._moved_at = 0.0
        self._look_at = 0.0
        self._acted_on: object = None
        self._warned_of: str | None = None
        self._beat: Callable[[], object] = lambda: None

    async def run(self) -> None:
        """Keep time until cancelled. Raises StallError."""
        loop = asyncio.get_running_loop()
        self._loop, clock = loop, loop.time
        progress, self._moved_at = self._progress(), clock()
        monitor = LoopMonitor(PULSE_S, self._run_dir, stall_s=self._stall_timeout_s, on_stall=self._blocked)
        self._beat = monitor.beat
        with monitor:
            while True:
                asleep_at = clock()
                await asyncio.sleep(PULSE_S)
                now = clock()
                self._note_lag(now - asleep_at - PULSE_S, monitor)
                if (latest := self._progress()) != progress or now - asleep_at > self._stall_timeout_s:
                    progress, self._moved_at = latest, now
                if now - self._moved_at > self._stall_timeout_s and now >= self._look_at:
                    await self._look(now, progress)

    def _note_lag(self, lag_s: float, monitor: LoopMonitor) -> None:
        self._on_lag(lag_s)
        where = monitor.beat()
        if where is not None and lag_s > BLOCKED_WARNING_S:
            log.warning("blocking code held up the event loop", where=where, seconds=round(lag_s, 3))
        elif lag_s > LATE_S:
            why = "no function was seen in its way: the machine is busy, or C code or garbage collection held Python"
            log.info("the event loop came late", why=why, seconds=round(lag_s, 3))  # nothing that a user could mend
        if (verdict := monitor.verdict) is not None:
            raise verdict

    # ---- standing still ----------------------------------------------------------------------------------------------

    async def _look(self, now: float, progress: object) -> None:
        """The counters stand: see whether what the run waits for lives, or has time left."""
        waiting, limit_s = self._waits.run_at(now), self._stall_timeout_s
        if self._waits.is_idle or (quiet := quiet_s(waiting)) <= limit_s:
            self._look_at = now + 1.0
            if any(leaf.endless and leaf.seconds > limit_s for leaf in leaves(waiting)):
                await self._warn(waiting)
            return
        what = f"nothing moved for {min(quiet, now - self._moved_at):.0f} s (run.stall_timeout_s): {chain(waiting)}"
        where = await self.dumped(what)
        if self._progress() != progress:
            return  # it moved while the stacks were written
        acted = None if self._acted_on == progress else self._act(waiting)
        if acted is None:
            raise StallError(f"{what}; {where}")
        log.warning("the run stood still: it goes on without what held it up", why=what, done=acted, stacks=where)
        self._acted_on, self._moved_at = progress, now

    async def _warn(self, waiting: Waiting) -> None:
        """Of what may take any time, once."""
        if self._warned_of != waiting.who:
            self._warned_of = waiting.who
            what = f"it takes long: {chain(waiting)}"
            where = await self.dumped(what)
            log.warning("the run waits, without a deadline", why=what, stacks=where)

    def _blocked(self, where: str, seconds: float) -> StallError | None:
        """In the monitor's thread: the loop has been in one place for too long."""
        what = f"the event loop was blocked for {seconds:.0f} s (run.stall_timeout_s) in {where}"
        try:
            tree = self._tree(self._loop.time())
        except (RuntimeError, LookupError):  # the loop went on in the midst of it
            tree = ["who waits for whom could not be read"]
        file = self._dump(what, tree, self._loop)
        return None if self._waits.is_idle else StallError(f"{what}; {file}")

    async def dumped(self, what: str) -> str:
        """Write who waits for whom, as it is now, and the stacks of every process; says where. The heart beats on."""
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(None, self._dump, what, self._tree(loop.time()), loop)
        while not writing.done():
            await asyncio.wait([writing], timeout=PULSE_S)
            self._beat()
        return writing.result()

    def _tree(self, now: float) -> list[str]:
        """Who waits for whom. On the loop: what is read there changes with it."""
        tree = ["the run", *lines(self._waits.run_at(now), "  "), "", "beside it"]
        return tree + [line for each in self._waits.loops_at(now) for line in lines(each, "  ")]

    def _dump(self, what: str, tree: list[str], loop: asyncio.AbstractEventLoop) -> str:
        """Blocking, from any thread."""
        at = datetime.now(UTC)
        path = self._run_dir / FOLDER / f"{at:%Y%m%dT%H%M%S_%f}.txt"
        children = stacks.processes()
        told = [f"{at:%Y-%m-%d %H:%M:%S} UTC", what, "", *tree, "", "the controller", stacks.own_stacks(loop)]
        for child in children:
            told += ["", f"process {child.pid}, {child.state}: {child.name}", child.stacks]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(told), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            return f"the stacks could not be written to {path}: {error.strerror}"
        return f"the stacks of every process are in {path}"
