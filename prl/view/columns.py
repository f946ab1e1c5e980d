"""Lines of numbers as columns: ``metrics.jsonl`` a step, ``gauges.jsonl`` a second.

Invariants:

- Row i of every column is line i; what a line has not, or has as null or as text, is NaN there.
- A list of numbers is a histogram: its counts, by index. A table's entries are columns named ``table.entry``.
- A file that is made to hurt costs no more than ``MAX_COLUMNS`` columns and ``MAX_BINS`` bins.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from prl.view.files import Line

MAX_COLUMNS = 2000
MAX_BINS = 256
Floats = npt.NDArray[np.float64]


class Columns:
    """See the module. A line counts where it is an object with the number ``key``."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._decoder = msgspec.json.Decoder(dict[str, Any])
        self.clear()

    def clear(self) -> None:
        """Forget all lines."""
        self.num_rows = self.num_malformed = 0
        self._columns: dict[str, array[float]] = {}
        self._histograms: dict[str, _Histogram] = {}

    def add(self, lines: list[Line]) -> None:
        """Take lines."""
        for line in lines:
            try:
                row = self._decoder.decode(line.text)
            except (msgspec.MsgspecError, RecursionError):
                self.num_malformed += 1
                continue
            if type(row.get(self._key)) not in {int, float}:
                self.num_malformed += 1
                continue
            self._add("", row)
            self.num_rows += 1

    def _add(self, prefix: str, row: dict[str, Any]) -> None:
        for key, value in row.items():
            kind = type(value)
            if kind is float or kind is int:
                self._number(prefix + key, value)
            elif kind is bool:
                self._number(prefix + key, float(value))
            elif kind is dict and not prefix:
                self._add(f"{key}.", value)
            elif kind is list:
                self._histogram(prefix + key, value)

    def _number(self, key: str, value: float) -> None:
        column = self._columns.get(key)
        if column is None:
            if len(self._columns) >= MAX_COLUMNS:
                return
            column = self._columns[key] = array("d")
        if (missing := self.num_rows - len(column)) > 0:
            column.extend([np.nan] * missing)
        elif missing < 0:  # a key of the line's own that looks like a table's entry
            return
        try:
            column.append(value)
        except OverflowError:
            column.append(np.nan)

    def _histogram(self, key: str, counts: list[Any]) -> None:
        if key not in self._histograms:
            if len(self._histograms) >= MAX_COLUMNS:
                return
            self._histograms[key] = _Histogram()
        self._histograms[key].add(self.num_rows, counts)

    @property
    def names(self) -> list[str]:
        """Columns of numbers, in the order in which they came."""
        return list(self._columns)

    @property
    def histogram_names(self) -> list[str]:
        """Lists of numbers."""
        return list(self._histograms)

    def column(self, name: str) -> Floats:
        """A copy of one, as long as there are rows; NaN where there is nothing."""
        found = np.full(self.num_rows, np.nan)
        if name in self._columns:
            values = np.array(self._columns[name])
            found[: len(values)] = values[: self.num_rows]
        return found

    def counts(self, name: str, bucket: npt.NDArray[np.int64], num_buckets: int) -> Floats:
        """A histogram summed over rows: row i goes to ``bucket[i]``, or nowhere where that is negative.

        Returns:
            Counts, ``num_buckets`` x bins.
        """
        if name not in self._histograms:
            return np.zeros((num_buckets, 0))
        return self._histograms[name].summed(bucket, num_buckets)


class _Histogram:
    """Lists of different lengths, end to end."""

    def __init__(self) -> None:
        self._rows, self._bins, self._counts = array("q"), array("q"), array("d")
        self._num_bins = 0

    def add(self, row: int, counts: list[Any]) -> None:
        for index, count in enumerate(counts):
            if (type(count) is int or type(count) is float) and abs(count) < 1e300:  # noqa: PLR2004 -- a float holds it
                at = min(index, MAX_BINS - 1)
                self._num_bins = max(self._num_bins, at + 1)
                if count:
                    self._rows.append(row)
                    self._bins.append(at)
                    self._counts.append(count)

    def summed(self, bucket: npt.NDArray[np.int64], num_buckets: int) -> Floats:
        if not self._rows:
            return np.zeros((num_buckets, self._num_bins))
        rows, bins = (np.frombuffer(each, dtype=np.int64) for each in (self._rows, self._bins))
        where = bucket[rows]
        kept = where >= 0
        cell = where[kept] * self._num_bins + bins[kept]
        flat = np.bincount(cell, np.frombuffer(self._counts)[kept], minlength=num_buckets * self._num_bins)
        return flat.astype(float).reshape(num_buckets, self._num_bins)
