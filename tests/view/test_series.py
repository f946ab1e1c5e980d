"""Columns of a run, and the curves drawn of them."""

from __future__ import annotations

import msgspec
import numpy as np

from prl.view import columns as columns_module
from prl.view import series
from prl.view.columns import Columns
from prl.view.files import Line


def filled(*rows: object) -> Columns:
    """Columns of these rows; bytes are a line as it is."""
    found = Columns("step")
    found.add([Line(0, row if isinstance(row, bytes) else msgspec.json.encode(row)) for row in rows])
    return found


def test_what_a_line_has_not_is_nan_and_what_is_no_line_is_counted() -> None:
    """Keys come and go; null, text and a number too large are no numbers; half a line, a list, no step are no lines."""
    columns = filled(
        {"step": 1, "a": 1.5},
        {"step": 2, "b": 2, "a": None},
        b'{"step": 3',
        [1],
        {"a": 1},
        {"step": "4"},
        b'{"step": 5, "a": 1' + b"0" * 400 + b', "slots": {"free": 3}, "name": "x", "is": true}',
    )
    assert (columns.num_rows, columns.num_malformed) == (3, 4)
    assert columns.names == ["step", "a", "b", "slots.free", "is"]
    np.testing.assert_equal(columns.column("a"), [1.5, np.nan, np.nan])
    np.testing.assert_equal(columns.column("slots.free"), [np.nan, np.nan, 3])
    np.testing.assert_equal(columns.column("never"), [np.nan] * 3)
    columns.clear()
    assert (columns.num_rows, columns.names) == (0, [])


def test_columns_are_bounded(monkeypatch: object) -> None:
    """A line with a million keys, or a histogram with a million bins, costs no more than the bounds say."""
    many = {f"k{index}": index for index in range(columns_module.MAX_COLUMNS + 10)}
    columns = filled({"step": 1, **many, "lag_histogram": [1] * (columns_module.MAX_BINS + 5)})
    assert len(columns.names) == columns_module.MAX_COLUMNS
    counts = columns.counts("lag_histogram", np.zeros(1, dtype=np.int64), 1)
    assert (counts.shape, counts[0, -1]) == ((1, columns_module.MAX_BINS), 6)


def test_buckets_keep_every_spike_and_the_mean_of_what_is_there() -> None:
    """Ten rows in three buckets: least and largest are those of the rows, NaN is nothing, steps are the last."""
    rows = [{"step": step, "a": None if step == 2 else 100 if step == 5 else step} for step in range(1, 11)]
    told = series.series(filled(*rows), ["a", "never"], x="step", first=None, last=None, points=3)
    assert told["total"] == 10
    assert list(told["step"]) == list(told["x"]) == [3, 6, 10]
    curve = told["series"]["a"]
    np.testing.assert_allclose(curve["mean"], [2, 110 / 3, 8.5])
    np.testing.assert_equal(curve["min"], [1, 4, 7])
    np.testing.assert_equal(curve["max"], [3, 100, 10])
    assert msgspec.json.encode(told["series"]["never"], enc_hook=np.ndarray.tolist).count(b"null") == 9


def test_what_is_counted_where_it_happened_is_0_elsewhere() -> None:
    """One drop in ten steps is a tenth of one a step, and not one; a count that nobody wrote is none."""
    rows = [{"step": step, **({"dropped_timeout": 1} if step == 3 else {})} for step in range(1, 11)]
    told = series.series(filled(*rows), ["dropped_timeout", "dropped_x"], x="step", first=None, last=None, points=1)
    curves = {
        key: [float(curve[which][0]) for which in ("mean", "min", "max")] for key, curve in told["series"].items()
    }
    np.testing.assert_equal(curves["dropped_timeout"], [0.1, 0.0, 1.0])
    assert np.isnan(curves["dropped_x"][0])


def test_a_range_is_of_steps_whatever_is_drawn_over() -> None:
    """Tokens and samples count from the run's start, and time is what steps took where nobody wrote when they ended."""
    rows = [{"step": step, "samples": 4, "tokens_trained": 10, "time_s": 2.0} for step in range(1, 6)]
    columns = filled(*rows)
    for x, expected in {"samples": [12, 16], "tokens": [30, 40], "at": [6, 8], "step": [3, 4]}.items():
        told = series.series(columns, ["samples"], x=x, first=3, last=4, points=100)
        assert list(told["x"]) == expected
        assert list(told["step"]) == [3, 4]
    written = filled({"step": 1, "at": 1e9}, {"step": 2, "at": 1e9 + 3})
    assert list(series.axis(written, "at")) == [1e9, 1e9 + 3]
    assert series.series(filled(), ["a"], x="at", first=None, last=None, points=5)["total"] == 0


def test_histograms_are_summed_over_buckets() -> None:
    """Rows of different lengths, one without, and only those of the range."""
    lags = [[5], [3, 2], None, [1, 1, 1], [9]]
    columns = filled(*({"step": step, "lag_histogram": lag} for step, lag in enumerate(lags)))
    steps, counts = series.histograms(columns, "lag_histogram", first=0, last=3, points=2)
    assert list(steps) == [1, 3]
    assert counts.tolist() == [[8, 2, 0], [1, 1, 1]]
    steps, counts = series.histograms(columns, "never", first=None, last=None, points=2)
    assert (list(steps), counts.shape) == ([1, 4], (2, 0))


def test_rewards_are_known_by_their_means() -> None:
    """``reward_mean`` is of all of them and is none of them."""
    columns = filled({"step": 1, "reward_mean": 1, "reward_answer_mean": 1, "reward_answer_zero_share": 0, "x_mean": 1})
    assert series.rewards(columns) == ["answer"]


def test_goodput_follows_from_the_tokens() -> None:
    """Trained / generated, and nothing where nothing was generated."""
    columns = filled({"step": 1, "tokens_generated": 10, "tokens_trained": 8}, {"step": 2, "tokens_generated": 0})
    np.testing.assert_equal(series.values(columns, "goodput"), [0.8, np.nan])
