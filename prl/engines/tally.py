"""What engines that come and go have done together.

Invariant: no number falls, and none jumps, when an engine comes or goes. Tokens, and the seconds of all streams, are
those of all that ever counted. The busy time is the mean over the engines that count *while* they do: the sum over
every span between two changes of the mean of that span, so that its growth over any time is a share of it, 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prl.engines.base import EngineStatistics


class Tally:
    """The sum and the mean over ``snapshot()``: the statistics of the engines that count now."""

    def __init__(self, snapshot: Callable[[], Sequence[EngineStatistics]]) -> None:
        self._snapshot = snapshot
        self._tokens, self._busy_s, self._stream_s = 0, 0.0, 0.0

    def totals(self) -> tuple[int, float, float]:
        """Tokens generated, busy seconds as a mean over the engines, and the seconds of all streams added up."""
        now = self._snapshot()
        busy_s = sum(each.busy_s for each in now) / max(1, len(now))
        tokens, stream_s = sum(each.tokens_generated for each in now), sum(each.stream_s for each in now)
        return self._tokens + tokens, self._busy_s + busy_s, self._stream_s + stream_s

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Which engines count changes in here; the totals do not."""
        tokens, busy_s, stream_s = self.totals()
        yield
        tokens_after, busy_s_after, stream_s_after = self.totals()
        self._tokens += tokens - tokens_after
        self._busy_s += busy_s - busy_s_after
        self._stream_s += stream_s - stream_s_after
