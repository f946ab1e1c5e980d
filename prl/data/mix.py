"""Which row of which source stands at a position: a pure function of (lengths, weights, seed, shuffle, position).

- Each source goes through all its rows once an epoch of its own, in an order drawn from (seed, epoch) and its number.
- Sources share the positions block by block. A block holds each source as often as its weight says, to a thousandth;
  within a block their order is drawn from (seed, block), or is as even as it can be where nothing is shuffled.
- Nothing has to be replayed to go on from a position, and none is ever empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd
from typing import NamedTuple

from prl.errors import ConfigError
from prl.shuffle import Permutation

BLOCK = 1_000
"""Positions of a block, before the counts are divided by what they have in common."""


class Place(NamedTuple):
    """A row as the order meets it."""

    source: int
    row: int
    epoch: int
    """How often the source has gone through its rows before."""


class Mix:
    """The order of the rows of one or several sources."""

    def __init__(self, lengths: Sequence[int], weights: Sequence[float], *, seed: int, shuffle: bool) -> None:
        """Raises ConfigError for a weight so small that a block would not hold its source."""
        self._lengths, self._seed, self._shuffle = lengths, seed, shuffle
        self.counts = shares(weights, BLOCK)
        """Positions of a block that each source has."""
        if 0 in self.counts:
            number = self.counts.index(0)
            raise ConfigError(
                f"data.sources.{number}.weight = {weights[number]:g} is less than one prompt in {2 * BLOCK}: raise it,"
                " or leave the source out"
            )
        common = gcd(*self.counts)
        self.counts = [count // common for count in self.counts]
        self._size = sum(self.counts)
        turns = [((k + 0.5) / count, number) for number, count in enumerate(self.counts) for k in range(count)]
        self._turns = [number for _, number in sorted(turns)]
        self._block: tuple[int, list[tuple[int, int]]] = (-1, [])
        self._orders: dict[int, tuple[int, Permutation]] = {}
        self.span = self._size * max(ceil(n / count) + 1 for n, count in zip(lengths, self.counts, strict=True))
        """Among so many consecutive positions there is every row of every source."""

    def place(self, position: int) -> Place:
        """What stands at ``position``."""
        block, slot = divmod(position, self._size)
        number, nth = self._turns_of(block)[slot]
        epoch, index = divmod(block * self.counts[number] + nth, self._lengths[number])
        return Place(number, self._ordered(number, epoch, index), epoch)

    def epoch(self, position: int) -> int:
        """How often every source has been gone through before ``position``."""
        block = position // self._size
        return min(block * count // length for count, length in zip(self.counts, self._lengths, strict=True))

    def _turns_of(self, block: int) -> list[tuple[int, int]]:
        """For each slot of a block, whose turn it is, and the how manieth of that source in the block."""
        if self._block[0] != block:
            slots = range(self._size)
            if self._shuffle and self._size > 1:
                drawn = Permutation(self._size, self._seed, block, stream="mix")
                slots = [drawn[slot] for slot in slots]  # type: ignore[assignment]
            so_far = [0] * len(self.counts)
            turns = []
            for slot in slots:
                number = self._turns[slot]
                turns.append((number, so_far[number]))
                so_far[number] += 1
            self._block = block, turns
        return self._block[1]

    def _ordered(self, number: int, epoch: int, index: int) -> int:
        if not self._shuffle:
            return index
        known = self._orders.get(number)
        if known is None or known[0] != epoch:
            stream = f"source {number}" if len(self._lengths) > 1 else ""
            known = self._orders[number] = epoch, Permutation(self._lengths[number], self._seed, epoch, stream=stream)
        return known[1][index]


def shares(weights: Sequence[float], total: int) -> list[int]:
    """``total`` divided by ``weights``, as near as whole numbers come (largest remainders first, then the earlier)."""
    whole = sum(weights)
    exact = [weight / whole * total for weight in weights]
    counts = [int(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda number: (counts[number] - exact[number], number))
    for number in order[: total - sum(counts)]:
        counts[number] += 1
    return counts
