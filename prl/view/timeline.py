"""What each engine and trainer rank did when: ``timeline.jsonl``, for a picture that is some hundred pixels wide.

Invariants:

- A span that is at least a pixel wide is drawn as it was. Those that are shorter are merged pixel by pixel, and what is
  shown there is the state that had most of that time; merged neighbours of one state are one span.
- ``n`` says how many spans one stands for, so that what is shown accounts for every one of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection

import msgspec
import numpy as np
import numpy.typing as npt

from prl.timeline import Span
from prl.view.columns import Floats
from prl.view.files import Line

MAX_LANES, MAX_NAMES = 1000, 10_000
Ints = npt.NDArray[np.int64]
_NONE, _NUM_FACTS = -1, 5
_MOMENT_S = 1e-9
"""What a span that took no time counts for."""


class Shown(msgspec.Struct, kw_only=True):
    """One span of the picture."""

    lane: str
    state: str
    start: float
    end: float
    why: str | None
    step: int | None
    version: int | None
    n: int
    """Spans that this one stands for."""
    share: float
    """Of the time from ``start`` to ``end``, what was in ``state``: the rest were other states, and gaps."""


class _Names:
    """Texts as small numbers; those beyond ``MAX_NAMES`` are none."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.texts: list[str] = []

    def number(self, text: str | None) -> int:
        if text is None:
            return _NONE
        found = self._numbers.get(text)
        if found is None:
            if len(self.texts) >= MAX_NAMES:
                return _NONE
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found

    def text(self, number: int) -> str | None:
        return None if number == _NONE else self.texts[number]


class _Lane:
    def __init__(self) -> None:
        self.start, self.end = array("d"), array("d")
        self.facts = array("q")
        """State, why, step, version and n of each span, one after the other."""


class Timeline:
    """See the module."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(Span)
        self.clear()

    def clear(self) -> None:
        """Forget all spans."""
        self.num_malformed = 0
        self._lanes: dict[str, _Lane] = {}
        self._states, self._whys = _Names(), _Names()
        self.first, self.last = np.inf, -np.inf

    def add(self, lines: list[Line]) -> None:
        """Take lines."""
        for line in lines:
            try:
                span = self._decoder.decode(line.text)
                self._add(span)
            except (msgspec.MsgspecError, OverflowError, RecursionError):
                self.num_malformed += 1

    def _add(self, span: Span) -> None:
        lane = self._lanes.get(span.lane)
        if lane is None:
            if len(self._lanes) >= MAX_LANES:
                return
            lane = self._lanes[span.lane] = _Lane()
        state = self._states.number(span.state)
        if state == _NONE:
            return
        step = _NONE if span.step is None else span.step
        version = _NONE if span.version is None else span.version
        lane.facts.extend((state, self._whys.number(span.why), step, version, max(1, span.n or 1)))
        lane.start.append(span.start)
        lane.end.append(max(span.start, span.end))
        self.first, self.last = min(self.first, span.start), max(self.last, span.end)

    @property
    def lanes(self) -> list[str]:
        """Their names, in the order in which they came."""
        return list(self._lanes)

    @property
    def extent(self) -> tuple[float, float] | None:
        """Unix seconds of the first begin and the last end; None without a span."""
        return (float(self.first), float(self.last)) if self._lanes else None

    def shown(
        self, first: float | None, last: float | None, *, lanes: Collection[str], points: int
    ) -> tuple[float | None, float | None, list[Shown]]:
        """The spans from ``first`` to ``last`` (unix seconds; absent: all there is), ``points`` pixels wide.

        Args:
            first: see above.
            last: see above.
            lanes: names; none: all.
            points: pixels.
        """
        if self.extent is None:
            return first, last, []
        first = float(self.first) if first is None else first
        last = float(self.last) if last is None else last
        found = [
            span
            for name, lane in self._lanes.items()
            if not lanes or name in lanes
            for span in self._of_lane(name, lane, first, last, max(last - first, 1e-9) / points)
        ]
        return first, last, found

    def _of_lane(self, name: str, lane: _Lane, first: float, last: float, pixel_s: float) -> list[Shown]:
        start, end = np.frombuffer(lane.start), np.frombuffer(lane.end)
        facts: Ints = np.frombuffer(lane.facts, dtype=np.int64).reshape(-1, _NUM_FACTS)
        rows = np.flatnonzero((end >= first) & (start <= last))
        is_short = (end - start)[rows] < pixel_s
        shown = [
            self._shown(name, float(begin), float(until), fact, n=fact[-1], share=1.0)
            for begin, until, fact in zip(
                start[rows[~is_short]], end[rows[~is_short]], facts[rows[~is_short]].tolist(), strict=True
            )
        ]
        rows = rows[is_short]
        pixel = (((start[rows] + end[rows]) / 2 - first) / pixel_s).astype(np.int64)
        shown += self._merged(name, start[rows], end[rows], facts[rows], np.maximum(pixel, 0))
        shown.sort(key=lambda span: span.start)
        return shown

    def _merged(self, name: str, start: Floats, end: Floats, facts: Ints, pixel: Ints) -> list[Shown]:
        """Short spans, a pixel each, and then neighbours of one state together."""
        if not len(start):
            return []
        num_states, num_pixels = len(self._states.texts), int(pixel.max()) + 1
        cell = pixel * num_states + facts[:, 0]
        lasted = np.bincount(cell, end - start + _MOMENT_S, minlength=num_pixels * num_states)
        lasted = lasted.reshape(-1, num_states)
        state = lasted.argmax(axis=1)
        counts = np.bincount(pixel, minlength=num_pixels)
        starts, ends = np.full(num_pixels, np.inf), np.full(num_pixels, -np.inf)
        np.minimum.at(starts, pixel, start)
        np.maximum.at(ends, pixel, end)
        has_state = facts[:, 0] == state[pixel]
        example = np.zeros(num_pixels, dtype=np.int64)
        example[pixel[has_state]] = np.flatnonzero(has_state)  # the last of each pixel stays
        kept = np.flatnonzero(counts)
        state, counts, starts, ends, lasted = state[kept], counts[kept], starts[kept], ends[kept], lasted[kept]
        is_alone = counts == 1
        joins = (state[1:] == state[:-1]) & (np.diff(kept) == 1) & ~is_alone[1:] & ~is_alone[:-1]
        begins = np.concatenate([[0], np.flatnonzero(~joins) + 1])
        until = np.append(begins[1:], len(kept))
        chosen = facts[example[kept]].tolist()
        totals = np.add.reduceat(np.bincount(pixel, facts[:, -1], minlength=num_pixels)[kept], begins).astype(np.int64)
        extent = np.maximum.reduceat(ends, begins) - starts[begins]
        share = np.minimum(np.add.reduceat(lasted.max(axis=1), begins) / np.maximum(extent, _MOMENT_S), 1.0)
        return [
            self._shown(name, float(starts[a]), float(ends[a:b].max()), chosen[a], n=n, share=of_state)
            for a, b, n, of_state in zip(
                begins.tolist(), until.tolist(), totals.tolist(), share.round(4).tolist(), strict=True
            )
        ]

    def _shown(self, name: str, start: float, end: float, fact: list[int], *, n: int, share: float) -> Shown:
        state, why, step, version, _ = fact
        return Shown(
            lane=name,
            state=self._states.texts[state],
            start=start,
            end=end,
            why=self._whys.text(why),
            step=None if step == _NONE else step,
            version=None if version == _NONE else version,
            n=n,
            share=share,
        )
