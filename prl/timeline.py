"""What every engine, every trainer rank and the controller did, and when: one lane each, in one state at a time.

Invariants:

- Entering a state ends the one before at the same moment, so a lane has neither gaps nor overlaps. A state that lasted
  less than ``MIN_SPAN_S`` is left out, and the next one begins where it did.
- A state that lasts is given out in pieces of at most ``PIECE_S``, so a run that is killed lacks no more than the last.
- Telling costs microseconds, and nothing is told per token. Spans wait here until they are taken, ``MAX_KEPT`` of them
  at most: of a disk that takes nothing for long, the oldest are missing afterwards.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec

from prl.virtual_time import VirtualTimeLoop

MIN_SPAN_S = 0.0005
PIECE_S = 10.0
MAX_KEPT = 50_000
MAX_WHY = 300
State = Literal[
    "starts", "generating", "paused", "loading", "training", "publishing", "waiting", "evaluating", "saving", "gone"
]


class Span(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of ``timeline.jsonl``; times are Unix time in seconds."""

    lane: str
    """An engine's name (``engine-0``), ``trainer rank 0``, ``controller`` or ``evaluation``."""
    state: str
    """A ``State``; of a file that another version of prl wrote, perhaps one more."""
    start: float
    end: float
    why: str | None = None
    """What it is for, or waits for."""
    step: int | None = None
    """The step, counted from 1, that is trained."""
    version: int | None = None
    """The version of the weights that are sent, received or evaluated."""
    n: int | None = None
    """Spans that were merged into this one, where there are more: the state is that of most of the time."""


class _Open(msgspec.Struct):
    state: State
    since: float
    """From where on it is not given out yet."""
    why: str | None
    step: int | None
    version: int | None
    began: float


def unix_time() -> float:
    """Unix time in seconds; in virtual time, the seconds since its loop was made."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return time.time()
    return loop.time() if isinstance(loop, VirtualTimeLoop) else time.time()


class Timeline:
    """See the module. ``clear`` makes a reason fit to be written down; without ``is_kept`` nothing is."""

    def __init__(
        self,
        *,
        is_kept: bool = False,
        now: Callable[[], float] = unix_time,
        clear: Callable[[str], str] = lambda text: text,
    ) -> None:
        self._is_kept, self._now, self._clear = is_kept, now, clear
        self._open: dict[str, _Open] = {}
        self._reasons: dict[str, str] = {}
        self._ended: deque[Span] = deque(maxlen=MAX_KEPT)

    def enter(
        self, lane: str, state: State, why: str | None = None, *, step: int | None = None, version: int | None = None
    ) -> None:
        """The lane is in this state from now on; ``why`` absent: for the reason that ``because`` gave."""
        if not self._is_kept:
            return
        if why is None:
            why = next((reason for prefix, reason in self._reasons.items() if lane.startswith(prefix)), None)
        before = self._open.get(lane)
        if before is not None and (before.state, before.why, before.step, before.version) == (
            state,
            why,
            step,
            version,
        ):
            return
        since = self._now() if before is None else self._end(lane, before)
        self._open[lane] = _Open(state, since, why, step, version, since)

    def leave(self, lane: str) -> None:
        """The lane ends."""
        if (before := self._open.pop(lane, None)) is not None:
            self._end(lane, before)

    @contextmanager
    def during(
        self, lane: str, state: State, why: str | None = None, *, step: int | None = None, version: int | None = None
    ) -> Iterator[None]:
        """The lane is in this state while the body lasts, and waits then."""
        self.enter(lane, state, why, step=step, version=version)
        try:
            yield
        finally:
            self.enter(lane, "waiting")

    def divide(self, lane: str, parts: Iterable[tuple[State, float, str | None]], rest: str) -> None:
        """What the state that the lane is in was, part after part from its beginning; since then it waits for ``rest``.

        Args:
            lane: its name.
            parts: state, seconds, and why. What was given out already stays as it is.
            rest: why it waits now.
        """
        doing = self._open.get(lane)
        if doing is None:
            return
        at, now = doing.began, self._now()
        for state, seconds, why in parts:
            at = min(at + seconds, now)
            if at - doing.since >= MIN_SPAN_S:
                self._keep(lane, msgspec.structs.replace(doing, state=state, why=why), at)
                doing.since = at
        doing.state, doing.why = "waiting", rest

    @contextmanager
    def because(self, lanes: str, why: str | None) -> Iterator[None]:
        """While the body lasts, why the lanes whose names begin like this wait, or are in whatever state they enter.

        None: for the reason that they have.
        """
        before = self._reasons.get(lanes)
        self._explain(lanes, before if why is None else why)
        try:
            yield
        finally:
            self._explain(lanes, before)

    def _explain(self, lanes: str, why: str | None) -> None:
        if why is None:
            self._reasons.pop(lanes, None)
        else:
            self._reasons[lanes] = why
        for lane in [lane for lane, doing in self._open.items() if doing.state == "waiting" and lane.startswith(lanes)]:
            self.enter(lane, "waiting")

    def take(self) -> list[Span]:
        """Every span that has ended since, and pieces of those that last; they are the caller's now."""
        now = self._now()
        for lane, doing in self._open.items():
            if now - doing.since >= PIECE_S:
                doing.since = self._end(lane, doing)
        taken = list(self._ended)
        self._ended.clear()
        return taken

    def end(self) -> None:
        """Every lane ends."""
        for lane in list(self._open):
            self.leave(lane)

    def _end(self, lane: str, doing: _Open) -> float:
        """Keep what was done until now; where that is too short, it is what comes next that began then."""
        now = self._now()
        if now - doing.since < MIN_SPAN_S:
            return doing.since
        self._keep(lane, doing, now)
        return now

    def _keep(self, lane: str, doing: _Open, until: float) -> None:
        why = None if doing.why is None else self._clear(doing.why)[:MAX_WHY]
        self._ended.append(
            Span(
                lane=lane,
                state=doing.state,
                start=round(doing.since, 4),
                end=round(until, 4),
                why=why,
                step=doing.step,
                version=doing.version,
            )
        )
