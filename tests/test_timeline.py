"""The timeline: one state at a time on each lane, nothing lost and nothing twice."""

from __future__ import annotations

import random
import time
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from prl.engines.lane import Lane
from prl.timeline import MAX_KEPT, MAX_WHY, MIN_SPAN_S, PIECE_S, Span, State, Timeline

STATES: list[State] = ["generating", "paused", "loading", "waiting"]


class Clock:
    """Time by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timeline = Timeline(is_kept=True, now=lambda: self.now)

    def taken(self) -> list[tuple[str, str, float, float]]:
        """Lane, state and times of what ended since."""
        return [(span.lane, span.state, span.start - 1000, span.end - 1000) for span in self.timeline.take()]


def test_a_state_ends_where_the_next_begins() -> None:
    """Each lane by itself; the state that it is in now is not told before it ends."""
    clock = Clock()
    clock.timeline.enter("a", "starts")
    clock.timeline.enter("b", "waiting")
    clock.now += 2
    clock.timeline.enter("a", "generating")
    clock.now += 1
    clock.timeline.enter("a", "paused", "new weights", version=3)
    assert clock.taken() == [("a", "starts", 0, 2), ("a", "generating", 2, 3)]
    clock.now += 1
    clock.timeline.end()
    a, b = clock.timeline.take()
    assert a == Span(lane="a", state="paused", start=1003, end=1004, why="new weights", version=3)
    assert b == Span(lane="b", state="waiting", start=1000, end=1004)
    assert clock.taken() == []


def test_the_same_state_goes_on() -> None:
    """Who enters it again says nothing new; with another reason, step or version it is another span."""
    clock = Clock()
    for step in (1, 1, 2):
        clock.timeline.enter("a", "training", step=step)
        clock.now += 1
    clock.timeline.leave("a")
    assert [(span.step, span.end - span.start) for span in clock.timeline.take()] == [(1, 2.0), (2, 1.0)]


def test_what_took_no_time_is_left_out() -> None:
    """And the next state begins where it did, so there is no gap."""
    clock = Clock()
    clock.timeline.enter("a", "waiting")
    clock.now += MIN_SPAN_S / 2
    clock.timeline.enter("a", "training")
    clock.now += 1
    clock.timeline.enter("a", "publishing")
    clock.timeline.enter("a", "waiting")
    clock.now += 1
    clock.timeline.leave("a")
    assert [(lane, state) for lane, state, _, _ in clock.taken()] == [("a", "training"), ("a", "waiting")]


def test_what_lasts_is_told_in_pieces() -> None:
    """A run that is killed lacks no more than the last piece."""
    clock = Clock()
    clock.timeline.enter("a", "generating")
    clock.now += PIECE_S - 1
    assert clock.taken() == []
    clock.now += 2
    assert clock.taken() == [("a", "generating", 0, PIECE_S + 1)]
    clock.now += 1
    clock.timeline.leave("a")
    assert clock.taken() == [("a", "generating", PIECE_S + 1, PIECE_S + 2)]


def test_a_lane_that_waits_says_why() -> None:
    """The reason is given by whoever knows it, before the wait or in it, and holds for the lanes of that name alone."""
    clock, timeline = Clock(), None
    timeline = clock.timeline
    for lane in ("trainer rank 0", "trainer rank 1", "engine-0"):
        timeline.enter(lane, "waiting")
    clock.now += 1
    with timeline.because("trainer rank", "batch 7"), timeline.because("trainer rank", None):
        clock.now += 1
        with timeline.during("trainer rank 0", "saving", "a checkpoint"):
            clock.now += 1
        clock.now += 1
    clock.now += 1
    timeline.end()
    spans = timeline.take()
    assert [(span.state, span.why) for span in spans if span.lane == "trainer rank 0"] == [
        ("waiting", None),
        ("waiting", "batch 7"),
        ("saving", "a checkpoint"),
        ("waiting", "batch 7"),
        ("waiting", None),
    ]
    assert [span.why for span in spans if span.lane == "trainer rank 1"] == [None, "batch 7", None]
    assert [span.why for span in spans if span.lane == "engine-0"] == [None]


def test_a_reason_is_short_and_holds_no_secret() -> None:
    """The death of an engine comes with the end of its log."""
    clock = Clock()
    timeline = Timeline(is_kept=True, now=lambda: clock.now, clear=lambda text: text.replace("s3cret", "(hidden)"))
    timeline.enter("a", "gone", "s3cret " + "x" * 1000)
    clock.now += 1
    timeline.end()
    (span,) = timeline.take()
    assert span.why is not None
    assert span.why.startswith("(hidden) xxx")
    assert len(span.why) == MAX_WHY


def test_spans_that_nobody_takes_are_bounded() -> None:
    """The newest stay."""
    clock = Clock()
    for number in range(MAX_KEPT + 10):
        clock.timeline.enter("a", "training", step=number)
        clock.now += 1
    spans = clock.timeline.take()
    assert (len(spans), spans[-1].step) == (MAX_KEPT, MAX_KEPT + 8)


def test_a_timeline_that_is_not_kept_keeps_nothing() -> None:
    """A pool or a trainer by itself tells nobody."""
    timeline = Timeline()
    with timeline.during("a", "saving"):
        pass
    timeline.end()
    assert timeline.take() == []


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_a_lane_has_no_gap_and_no_overlap(seed: int) -> None:
    """Whatever happens on it, and whenever somebody takes what there is."""
    draw, clock, spans = random.Random(seed), Clock(), list[Span]()
    for _ in range(draw.randint(1, 40)):
        clock.timeline.enter(draw.choice("ab"), draw.choice(STATES), draw.choice([None, "x"]))
        clock.now += draw.choice([0.0, 0.0001, 0.3, 5, 25])
        if draw.random() < 0.3:
            spans += clock.timeline.take()
    clock.timeline.end()
    spans += clock.timeline.take()
    for lane in "ab":
        of_lane = [span for span in spans if span.lane == lane]
        assert all(first.end == second.start for first, second in pairwise(of_lane))
        assert all(span.end > span.start for span in of_lane)


def test_an_engine_generates_while_it_has_streams_and_nothing_holds_it() -> None:
    """Streams that come and go while it is held show when it is released."""
    clock = Clock()
    lane = Lane(clock.timeline, "engine-0")

    def after(seconds: float) -> None:
        clock.now += seconds

    lane.hold("starts")
    after(1)
    lane.release()
    after(1)
    lane.streams(1)
    lane.streams(2)
    after(1)
    lane.hold("paused", "new weights")
    lane.streams(0)
    after(1)
    lane.hold("loading", version=2)
    lane.streams(1)
    after(1)
    lane.release()
    after(1)
    lane.streams(0)
    after(1)
    lane.end()
    lane.streams(1)
    assert [state for _, state, _, _ in clock.taken()] == [
        *("starts", "waiting", "generating", "paused", "loading", "generating", "waiting")
    ]


def test_telling_costs_microseconds() -> None:
    """Ten thousand changes, which are those of hours of a run."""
    timeline = Timeline(is_kept=True)
    started = time.process_time()
    for step in range(5000):
        with timeline.during("trainer rank 0", "training", step=step):
            pass
    assert time.process_time() - started < 0.5


def test_a_state_is_divided_afterwards() -> None:
    """Into what it was, without a gap; what was given out before stays, and after the parts the lane waits."""
    clock = Clock()
    with clock.timeline.during("trainer rank 0", "training", step=7):
        clock.now += PIECE_S + 2
        assert clock.taken() == [("trainer rank 0", "training", 0, PIECE_S + 2)]
        clock.now += 8
        parts = [("training", 4, None), ("waiting", 9, "sums"), ("training", 1, None), ("waiting", 4, "shards")]
        clock.timeline.divide("trainer rank 0", parts, "answers")
        clock.timeline.divide("trainer rank 1", parts, "answers")  # which is no lane
        clock.now += 1
    clock.timeline.end()
    spans = clock.timeline.take()
    assert [(span.state, span.start - 1000, span.end - 1000, span.why, span.step) for span in spans] == [
        ("waiting", 12, 13, "sums", 7),
        ("training", 13, 14, None, 7),
        ("waiting", 14, 18, "shards", 7),
        ("waiting", 18, 21, "answers", 7),
    ]
