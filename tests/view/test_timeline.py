"""Spans, and what is left of them in a picture of few pixels."""

from __future__ import annotations

from typing import Any

import msgspec

from prl.view.files import Line
from prl.view.timeline import Timeline


def filled(*spans: Any) -> Timeline:
    """A timeline of these; tuples are of lane, state, start and end."""
    found = Timeline()
    rows = [
        dict(zip(("lane", "state", "start", "end"), span, strict=True)) if isinstance(span, tuple) else span
        for span in spans
    ]
    found.add([Line(0, msgspec.json.encode(row)) for row in rows])
    return found


def test_what_is_a_pixel_wide_stays_as_it_was() -> None:
    """With its reason, step and version; lanes stand in the order in which they came."""
    why = {"lane": "engine 0", "state": "paused", "start": 5.0, "end": 9.0, "why": "version 3", "version": 3}
    timeline = filled(("trainer", "training", 0.0, 10.0), why, "no span", {"lane": 1})
    assert (timeline.lanes, timeline.num_malformed, timeline.extent) == (["trainer", "engine 0"], 2, (0.0, 10.0))
    first, last, spans = timeline.shown(None, None, lanes=(), points=10)
    assert (first, last) == (0.0, 10.0)
    assert msgspec.to_builtins(spans[1]) == {**why, "step": None, "n": 1, "share": 1.0}


def test_what_is_narrower_is_merged_to_the_state_that_had_most_of_the_time() -> None:
    """A thousand short steps are one bar that says so, and says how much of it was so; every span is accounted for."""
    short = [
        span
        for step in range(1000)
        for span in (("trainer", "waiting", step, step + 0.2), ("trainer", "training", step + 0.2, step + 1.0))
    ]
    thinned = {"lane": "trainer", "state": "saving", "start": 1000.0, "end": 1200.0, "n": 3}
    timeline = filled(*short, thinned)
    _, _, spans = timeline.shown(None, None, lanes=["trainer"], points=60)
    assert [(span.state, span.n, round(span.share, 2)) for span in spans] == [
        ("training", 2000, 0.8),
        ("saving", 3, 1.0),
    ]
    assert (spans[0].start, spans[0].end) == (0.0, 1000.0)


def test_a_merged_span_does_not_claim_the_gaps() -> None:
    """What happens for a moment of every second is a bar that says how little of it was so."""
    timeline = filled(*(("controller", "publishing", step, step + 0.1) for step in range(1000)))
    _, _, (span,) = timeline.shown(None, None, lanes=(), points=60)
    assert (span.n, round(span.share, 2)) == (1000, 0.1)


def test_a_short_span_between_long_ones_is_still_there() -> None:
    """What is alone in its pixel is drawn, and gaps are not filled."""
    timeline = filled(("e", "generating", 0, 50), ("e", "paused", 50, 50.001), ("e", "generating", 60, 100))
    _, _, spans = timeline.shown(0, 100, lanes=(), points=100)
    assert [(span.state, span.n) for span in spans] == [("generating", 1), ("paused", 1), ("generating", 1)]


def test_only_what_touches_the_range_is_shown() -> None:
    """Of the lanes asked for; a range without a span, and a timeline without one, are empty."""
    timeline = filled(("a", "x", 0, 5), ("a", "y", 5.5, 9), ("b", "x", 0, 9))
    _, _, spans = timeline.shown(6, 7, lanes=["a"], points=100)
    assert [span.state for span in spans] == ["y"]
    assert timeline.shown(20, 30, lanes=(), points=10)[2] == []
    assert filled().shown(None, None, lanes=(), points=10) == (None, None, [])
