"""Where the time of a step goes, with a clock and engines by hand."""

from __future__ import annotations

from prl.lap import Lap, LapMeter


class Clock:
    """Time and engines by hand."""

    def __init__(self) -> None:
        self.now, self.tokens, self.busy_s, self.stream_s = 100.0, 5000, 70.0, 300.0

    def pass_time(self, seconds: float, *, tokens: int = 0, busy_s: float = 0.0, streams: int = 0) -> None:
        """Let time go by, with what the engines did."""
        self.now += seconds
        self.tokens += tokens
        self.busy_s += busy_s
        self.stream_s += streams * seconds

    def meter(self) -> LapMeter:
        """A meter on this clock."""
        return LapMeter(lambda: self.now, lambda: (self.tokens, self.busy_s, self.stream_s))


def test_a_lap_is_what_happened_since_the_last() -> None:
    """Laps are laid end to end: what the engines do between two steps counts for the next, once."""
    clock = Clock()
    meter = clock.meter()
    clock.pass_time(2, tokens=10, busy_s=1)
    assert meter.lap() == Lap(time_s=2, wait_batch_s=0, engine_busy=0.5, tokens_generated=10, loop_lag_ms=0)
    clock.pass_time(1, tokens=4)
    clock.pass_time(3, tokens=2, busy_s=3)
    assert meter.lap() == Lap(time_s=4, wait_batch_s=0, engine_busy=0.75, tokens_generated=6, loop_lag_ms=0)


def test_what_was_in_flight_is_a_mean_over_the_time_of_the_lap() -> None:
    """The streams of all engines together: 8 for a second and none for three are 2."""
    clock = Clock()
    meter = clock.meter()
    clock.pass_time(1, streams=8)
    clock.pass_time(3)
    assert meter.lap().in_flight == 2
    assert meter.lap().in_flight == 0


def test_waits_and_lags_belong_to_their_lap() -> None:
    """The waits and the loop's lag (in milliseconds) are told once and start over, as do lost evaluations."""
    clock = Clock()
    meter = clock.meter()
    meter.wait_batch_s, meter.loop_lag_s, meter.eval_block_s, meter.evals_incomplete = 1.5, 0.25, 0.5, 1
    meter.checkpoint_s = 0.75
    clock.pass_time(2)
    first = meter.lap()
    assert (first.eval_block_s, first.evals_incomplete, first.checkpoint_s) == (0.5, 1, 0.75)
    assert (first.wait_batch_s, first.loop_lag_ms) == (1.5, 250)
    clock.pass_time(2)
    second = meter.lap()
    assert (second.wait_batch_s, second.loop_lag_ms, second.eval_block_s, second.evals_incomplete) == (0, 0, 0, 0)
    assert second.checkpoint_s == 0


def test_a_restart_forgets_what_was_before() -> None:
    """The start of the run, with its evaluation, belongs to no step."""
    clock = Clock()
    meter = clock.meter()
    clock.pass_time(60, tokens=1000, busy_s=50)
    meter.loop_lag_s = meter.wait_batch_s = 9.0
    meter.restart()
    clock.pass_time(2, tokens=10, busy_s=2)
    assert meter.lap() == Lap(time_s=2, wait_batch_s=0, engine_busy=1, tokens_generated=10, loop_lag_ms=0)


def test_a_lap_of_no_time() -> None:
    """Two laps in one tick of a coarse clock divide by nothing; a share stays a share."""
    clock = Clock()
    meter = clock.meter()
    clock.pass_time(0, tokens=1, busy_s=1)
    lap = meter.lap()
    assert lap.time_s > 0
    assert lap.engine_busy == 1.0
