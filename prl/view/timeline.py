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

from prl.view.files import Line

MAX_LANES, MAX_NAMES = 1000, 10_000
Ints = npt.NDArray[np.int64]
_NONE = -1


class Span(msgspec.Struct):
    """A line of the file."""

    lane: str
    state: str
    start: float
    end: float
    why: str | None = None
    step: int | None = None
    version: int | None = None


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
        """State, why, step and version of each span, one after the other."""


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
        step = _NONE if span.step is None else span.step
        version = _NONE if span.version is None else span.version
        lane.facts.extend((self._states.number(span.state), self._whys.number(span.why), step, version))
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
        start, end = np.array(lane.start), np.array(lane.end)
        facts: Ints = np.array(lane.facts).reshape(-1, 4)
        rows = np.flatnonzero((end >= first) & (start <= last) & (facts[:, 0] != _NONE))
        start, end, facts = start[rows], end[rows], facts[rows]
        is_short = end - start < pixel_s
        shown = [
            self._shown(name, float(begin), float(until), fact, 1)
            for begin, until, fact in zip(start[~is_short], end[~is_short], facts[~is_short].tolist(), strict=True)
        ]
        pixel = ((start + end) / 2 - first) // pixel_s
        shown += self._merged(name, start[is_short], end[is_short], facts[is_short], pixel[is_short].astype(np.int64))
        shown.sort(key=lambda span: span.start)
        return shown

    def _merged(
        self, name: str, start: npt.NDArray[np.float64], end: npt.NDArray[np.float64], facts: Ints, pixel: Ints
    ) -> list[Shown]:
        """Short spans, a pixel each, and then neighbours of one state together."""
        if not len(start):
            return []
        pixels, place = np.unique(pixel, return_inverse=True)
        num_states = len(self._states.texts)
        lasted = np.bincount(
            place * num_states + facts[:, 0], end - start + 1e-9, minlength=len(pixels) * num_states
        ).reshape(-1, num_states)
        state = lasted.argmax(axis=1)
        starts, ends = np.full(len(pixels), np.inf), np.full(len(pixels), -np.inf)
        np.minimum.at(starts, place, start)
        np.maximum.at(ends, place, end)
        counts = np.bincount(place, minlength=len(pixels))
        order = np.lexsort((end - start, facts[:, 0] == state[place], place))
        longest = order[np.searchsorted(place[order], np.arange(len(pixels)), side="right") - 1]
        joins = np.append(True, (state[1:] != state[:-1]) | (pixels[1:] - pixels[:-1] > 1) | (counts[1:] == 1))
        joins[1:] |= counts[:-1] == 1
        begins = np.flatnonzero(joins)
        until = np.append(begins[1:], len(pixels))
        chosen = facts[longest].tolist()
        totals = np.add.reduceat(counts, begins)
        return [
            self._shown(name, float(starts[a]), float(ends[a:b].max()), chosen[a], int(n))
            for a, b, n in zip(begins, until, totals, strict=True)
        ]

    def _shown(self, name: str, start: float, end: float, fact: list[int], n: int) -> Shown:
        state, why, step, version = fact
        return Shown(
            lane=name,
            state=self._states.texts[state],
            start=start,
            end=end,
            why=self._whys.text(why),
            step=None if step == _NONE else step,
            version=None if version == _NONE else version,
            n=n,
        )
