"""The way of an engine's decode steps: its streams move along it together, and are leapt from end to end.

Invariants:

- Decode steps are a continuous position: all running streams move along it together, one token per unit, and a unit
  takes ``step_s(streams)`` seconds divided by the speed that the machine leaves it. Between two events (a stream comes,
  ends or is closed, a pause, another speed) the pace is constant, so one timer for the next end is all there is to do.
- At most ``max_num_seqs`` streams run; the others wait, first in first out.
- Every stream ends once, whoever ends it and however its consumer fares in the same moment: at its length, where its
  consumer closes it, or where all are stopped, each with the tokens that it has sampled by then.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Protocol

from prl.engines.meter import Meter
from prl.errors import EngineError

ROUNDING = 1e-6
"""Positions that differ by less are the same."""


class Share(Protocol):
    """The part of the machine that an engine computes on."""

    def speed(self) -> float:
        """How fast it is now, 1 where nobody else is at work on it."""
        ...

    def busy(self, way: Way, *, is_busy: bool) -> None:
        """The engine begins or ends computing; whoever's speed that changes is told by ``retime``."""
        ...


class Stretch:
    """One stream: where on the way it began, and how many tokens it is long."""

    __slots__ = ("begin", "is_over", "length", "over")

    def __init__(self, length: int) -> None:
        self.length, self.begin = length, 0.0
        self.over: asyncio.Future[EngineError | None] = asyncio.get_running_loop().create_future()
        self.is_over = False

    def end(self, error: EngineError | None) -> None:
        """Tell the consumer, if it still waits."""
        self.is_over = True
        if not self.over.done():
            self.over.set_result(error)


class Way:
    """See the module.

    Args:
        max_num_seqs: streams that run at once.
        step_s: seconds of a decode step with so many streams.
        share: where it computes.
    """

    def __init__(self, *, max_num_seqs: int, step_s: Callable[[int], float], share: Share) -> None:
        self._max_num_seqs, self._step_s, self._share = max_num_seqs, step_s, share
        self.meter = Meter()
        self.position = self.sampled = 0.0
        """How far it is, and the tokens of all streams so far."""
        self.most_held = 0.0
        """Most tokens that its running streams had sampled at once."""
        self._since = self._begins = 0.0
        self._numbers = itertools.count()
        self._ends: list[tuple[float, int, Stretch]] = []
        self._num_running = 0
        self._waiting: deque[Stretch] = deque()
        self._paused = self._is_busy = False
        self._timer: asyncio.TimerHandle | None = None

    def num_streams(self) -> int:
        """Those that run and those that wait."""
        return self._num_running + len(self._waiting)

    def admit(self, length: int) -> Stretch:
        """Another stream of ``length`` tokens, at least one."""
        stretch = Stretch(length)
        self._waiting.append(stretch)
        self.settle()
        self._go_on()
        return stretch

    def drop(self, stretch: Stretch) -> None:
        """The consumer has closed it, if it is not over."""
        if stretch.is_over:
            return
        if stretch in self._waiting:
            self._waiting.remove(stretch)
            stretch.end(None)
            self._note_streams()
        else:
            self.settle()
            self._end(stretch, None)
            self._go_on()

    def stop(self, error: EngineError) -> None:
        """End every stream where it is."""
        self.settle()
        for stretch in [entry for _, _, entry in self._ends if not entry.is_over]:
            stretch.length = min(stretch.length, int(self.position - stretch.begin + ROUNDING))
            self._end(stretch, error)
        for stretch in self._waiting:
            stretch.length = 0
            stretch.end(error)
        self._ends.clear()
        self._waiting.clear()
        self.retime()
        self._note_streams()

    def pause(self) -> None:
        """Stand still, at once."""
        self.settle()
        self._paused = True
        self.meter.update(paused=True)
        self.retime()

    def resume(self) -> None:
        """Go on."""
        self._paused, self._since = False, _now()
        self.meter.update(paused=False)
        self.retime()

    def settle(self) -> None:
        """Be where the time since the last event has brought it, at the speed there was."""
        now = _now()
        if self._num_running and not self._paused and now > self._since:
            moved = (now - self._since) / self._step_s(self._num_running) * self._share.speed()
            self.position += moved
            self.sampled += moved * self._num_running
            self.most_held = max(self.most_held, self.position * self._num_running - self._begins)
        self._since = now

    def retime(self) -> None:
        """Set the timer by the speed there is from now on; ``settle`` comes before the speed changes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        is_busy = self._num_running > 0 and not self._paused
        if is_busy != self._is_busy:
            self._is_busy = is_busy
            self._share.busy(self, is_busy=is_busy)
        if is_busy and self._timer is None:  # telling the share may have set it
            left = max(0.0, self._ends[0][0] - self.position)
            delay_s = left * self._step_s(self._num_running) / self._share.speed()
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._arrive)

    def _arrive(self) -> None:
        """The next streams end here."""
        self._timer = None
        self.settle()
        here = self.position = max(self.position, self._ends[0][0])
        while self._ends and self._ends[0][0] <= here + ROUNDING:
            _, _, stretch = heapq.heappop(self._ends)
            if not stretch.is_over:
                self._end(stretch, None)
        self._go_on()

    def _go_on(self) -> None:
        """Let streams run that wait, and leap to the next end: that of a stream which still runs."""
        while self._ends and self._ends[0][2].is_over:
            heapq.heappop(self._ends)
        while self._waiting and self._num_running < self._max_num_seqs:
            stretch = self._waiting.popleft()
            stretch.begin = self.position
            self._begins += stretch.begin
            self._num_running += 1
            heapq.heappush(self._ends, (stretch.begin + stretch.length, next(self._numbers), stretch))
        self.retime()
        self._note_streams()

    def _end(self, stretch: Stretch, error: EngineError | None) -> None:
        self._num_running -= 1
        self._begins -= stretch.begin
        stretch.end(error)

    def _note_streams(self) -> None:
        self.meter.update(num_streams=self.num_streams())


def _now() -> float:
    return asyncio.get_running_loop().time()
