"""Which weights wrote which token of a stream, where decode steps are a position on the engine's way.

Invariants:

- Token i of a stream that began at position s was sampled at s + i, by the weights that served there. Each has its own
  version as long as at most ``MOST_SPANS`` versions wrote the stream. Where more did, the first token has its own, so
  that the largest lag is exact, and the others have that of the middle of their span, one of ``MOST_SPANS - 1`` equal
  ones, which leaves the mean lag what it was.
- Versions never decrease along a stream. One that sampled nothing has no spans.
"""

from __future__ import annotations

import math
from bisect import bisect_right

MOST_SPANS = 5
"""Chunks of one stream at most: each costs as much as all tokens in it."""


class ServedVersions:
    """The versions that an engine has served, from which position on."""

    def __init__(self) -> None:
        self._loads, self._versions = [-math.inf], [0]

    @property
    def latest(self) -> int:
        """The one that serves now."""
        return self._versions[-1]

    def serve(self, version: int, position: float) -> None:
        """Another one serves from ``position`` on, which no other was loaded behind."""
        self._loads.append(position)
        self._versions.append(version)

    def spans(self, begin: float, length: int) -> list[tuple[int, int]]:
        """The ``length`` tokens of a stream that began at ``begin``, in a row, as (the end, exclusive; the version)."""
        if length == 0:
            return []
        loads, versions = self._loads, self._versions
        first, last = bisect_right(loads, begin), bisect_right(loads, begin + length - 1)
        if last - first < MOST_SPANS:
            ends = [min(length, math.ceil(loads[at] - begin)) for at in range(first, last)]
            found = zip([*ends, length], versions[first - 1 : last], strict=True)
            return [(end, version) for (end, version), before in zip(found, [0, *ends], strict=True) if end > before]
        spans = [(1, versions[first - 1])]
        for piece in range(1, MOST_SPANS):
            before, end = spans[-1][0], 1 + (length - 1) * piece // (MOST_SPANS - 1)
            if end > before:
                spans.append((end, versions[bisect_right(loads, begin + (before + end - 1) / 2) - 1]))
        return spans
