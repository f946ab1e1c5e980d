"""Which engine a stream runs on: bookkeeping only, nothing waits here.

Invariants:

- Every stream that was placed and has not left is counted on exactly one engine.
- ``spread`` takes the engine with the fewest open streams, the lowest index among equals. ``together`` does the same
  for the first member of a group and keeps its other members there until the group's last open stream has left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal


class Placement:
    """The open streams of the engines, whichever there are."""

    def __init__(self, rule: Literal["spread", "together"]) -> None:
        self._rule = rule
        self.running: Counter[int] = Counter()
        """Open streams by engine index."""
        self._home: dict[int, int] = {}
        self._members: Counter[int] = Counter()

    def place(self, group: int, usable: Sequence[int]) -> int:
        """Count a stream of ``group`` on one of the ``usable`` engines (at least one) and return its index."""
        _, index = min(zip(map(self.running.__getitem__, usable), usable, strict=True))
        if self._rule == "together":
            if self._home.get(group) not in usable:
                self._home[group] = index
            index = self._home[group]
            self._members[group] += 1
        self.running[index] += 1
        return index

    def leave(self, group: int, index: int) -> None:
        """Uncount a stream that ``place`` put on engine ``index``."""
        self.running[index] -= 1
        if self._rule == "together":
            self._members[group] -= 1
            if not self._members[group]:
                del self._members[group], self._home[group]
