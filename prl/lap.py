"""Where the time of a step goes.

Invariants:

- A lap runs from the end of one step to the end of the next, so nothing that engines do in between is lost.
- What is waited for belongs to the lap in which the wait ended, and to no other.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Lap(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a step went, and what the engines did meanwhile; each field is one of ``StepReport``."""

    time_s: float
    wait_batch_s: float
    engine_busy: float
    in_flight: float = 0.0
    tokens_generated: int
    loop_lag_ms: float
    eval_block_s: float = 0.0
    checkpoint_s: float = 0.0
    evals_incomplete: int = 0


class LapMeter:
    """See the module. The waits are added by whoever waits, to the lap under way."""

    def __init__(self, clock: Callable[[], float], engines: Callable[[], tuple[int, float, float]]) -> None:
        """Begin a lap.

        ``engines`` returns what they did since the start of the run: tokens generated, busy seconds (a mean over
        engines), and seconds of all streams added up.
        """
        self._clock, self._engines = clock, engines
        self.restart()

    def restart(self) -> None:
        """Begin a lap here."""
        self._begin(self._clock(), self._engines())

    def _begin(self, now: float, engines: tuple[int, float, float]) -> None:
        self._started_at, (self._tokens, self._busy_s, self._stream_s) = now, engines
        self.loop_lag_s = self.wait_batch_s = self.eval_block_s = self.checkpoint_s = 0.0
        self.evals_incomplete = 0

    def lap(self) -> Lap:
        """End the lap, begin the next, and say where the time went."""
        now, engines = self._clock(), self._engines()
        elapsed_s, (tokens, busy_s, stream_s) = max(now - self._started_at, 1e-9), engines
        lap = Lap(
            time_s=elapsed_s,
            wait_batch_s=self.wait_batch_s,
            engine_busy=min(1.0, max(0.0, busy_s - self._busy_s) / elapsed_s),
            in_flight=(stream_s - self._stream_s) / elapsed_s,
            tokens_generated=tokens - self._tokens,
            loop_lag_ms=1000 * self.loop_lag_s,
            eval_block_s=self.eval_block_s,
            checkpoint_s=self.checkpoint_s,
            evals_incomplete=self.evals_incomplete,
        )
        self._begin(now, engines)
        return lap
