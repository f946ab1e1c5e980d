"""The accelerators, and how long they take: who is slowed down by whom, and the curves of ``[simulate]``.

Invariants:

- Where engines and ranks have accelerators of their own nobody slows anybody down. Sharing, all that are at work at a
  moment get an equal part of what there is, and never more than one accelerator each; of that ``sharing`` is left while
  engines and ranks are both among them.
- A change of speed is told to everybody that is at work *after* each has counted what it did until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise

from prl.config_simulate import DecodeConfig
from prl.engines.paced_way import Way


class Machine:
    """See the module.

    Args:
        num_accelerators: in all; None where each has its own.
        per_engine: accelerators of one engine.
        num_ranks: that train together, one accelerator each.
        sharing: what is left of the speed while engines and ranks are both at work.
    """

    def __init__(self, *, num_accelerators: int | None, per_engine: int, num_ranks: int, sharing: float = 1.0) -> None:
        self._sharing = sharing
        self._num_accelerators, self._per_engine, self._num_ranks = num_accelerators, per_engine, num_ranks
        self._engines: dict[Way, None] = {}
        self._trains = False
        self._speed = 1.0
        self._left_s = self._since = 0.0
        self._trained: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def speed(self) -> float:
        """Of everybody who is at work now, against each alone."""
        return self._speed

    def busy(self, way: Way, *, is_busy: bool) -> None:
        """An engine begins or ends computing."""
        if self._num_accelerators is None:
            return
        if is_busy:
            self._engines[way] = None
        else:
            del self._engines[way]
        self._changed(but=way)

    async def train(self, seconds: float) -> None:
        """Be at work on a step that takes so long alone, or on what passes between two."""
        if not seconds:
            return
        loop = asyncio.get_running_loop()
        if self._num_accelerators is None:
            await asyncio.sleep(seconds)
            return
        self._left_s, self._since, self._trained = seconds, loop.time(), loop.create_future()
        self._trains = True
        self._changed()
        self._set_timer()
        try:
            await self._trained
        finally:
            self._trains = False
            if self._timer is not None:
                self._timer.cancel()
            self._trained = self._timer = None
            self._changed()

    def _changed(self, but: Way | None = None) -> None:
        """Somebody began or ended: share anew."""
        speed = speed_of(
            self._num_accelerators or 1,
            decoding=len(self._engines) * self._per_engine,
            training=self._trains * self._num_ranks,
            sharing=self._sharing,
        )
        if speed == self._speed:
            return
        others = [way for way in self._engines if way is not but]
        for way in others:
            way.settle()
        self._settle()
        self._speed = speed
        for way in others:
            way.retime()
        if self._timer is not None:
            self._set_timer()

    def _settle(self) -> None:
        now = asyncio.get_running_loop().time()
        self._left_s -= (now - self._since) * self._speed
        self._since = now

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, self._left_s) / self._speed
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._done)

    def _done(self) -> None:
        if self._trained is not None and not self._trained.done():
            self._trained.set_result(None)


def speed_of(num_accelerators: int, *, decoding: int, training: int, sharing: float) -> float:
    """Of everybody who is at work, against each alone, where so many accelerators would be kept busy by either side."""
    both = sharing if decoding and training else 1.0
    return both * min(1.0, num_accelerators / max(1, decoding + training))


def step_time_of(config: DecodeConfig, grain: int, num_streams: int) -> Callable[[int], float]:
    """Seconds of ``grain`` decode steps with h sequences, h up to ``num_streams``.

    ``utilisation`` is the paper's U(h): h tokens at the share U(h) of a peak of one token a flash take h / U(h) flashes
    (arXiv 2509.19128, appendix A).
    """
    known = [grain * _step_s(config, count) for count in range(1, num_streams + 1)]
    return lambda count: known[min(count, num_streams) - 1]


def _step_s(config: DecodeConfig, count: int) -> float:
    if config.utilisation:
        return config.flash_s * count / _between([(0.0, 0.0), *sorted(config.utilisation)], count)
    if config.table:
        points = sorted(config.table)
        return _between(points, count) * max(1.0, count / points[-1][0])
    return (config.base_s or 0.0) + config.per_sequence_s * count


def _between(points: Sequence[tuple[float, float]], at: float) -> float:
    """Linear between points in ascending order, constant outside."""
    for (left, low), (right, high) in pairwise(points):
        if left <= at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return points[0][1] if at < points[0][0] else points[-1][1]
