"""A permutation of n rows as a pure function of (seed, epoch).

``Permutation(n, seed, epoch)[i]`` is computed for one i at a time, so that to start in the middle of an epoch costs
nothing and a file of any size needs no table. A Feistel network over the next even number of bits permutes a power of
four; an index that lands outside 0..n-1 walks on along its cycle until it is inside, which keeps it a bijection.
"""

from __future__ import annotations

from hashlib import blake2b

_NUM_ROUNDS = 6


class Permutation:
    """A bijection of 0..n-1 onto itself, the same on every machine and every Python."""

    def __init__(self, n: int, seed: int, epoch: int, *, stream: str = "") -> None:
        """Another ``stream`` (a name) gives another order for the same seed and epoch."""
        self._n = n
        self._half_bits = max(1, ((n - 1).bit_length() + 1) // 2)
        self._key = blake2b(f"prl order {seed} {epoch}{stream and f' {stream}'}".encode(), digest_size=32).digest()

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self._n:
            raise IndexError(f"row {index} of {self._n}")
        value = self._feistel(index)
        while value >= self._n:
            value = self._feistel(value)
        return value

    def _feistel(self, value: int) -> int:
        mask = (1 << self._half_bits) - 1
        left, right = value >> self._half_bits, value & mask
        for step in range(_NUM_ROUNDS):
            message = bytes([step]) + right.to_bytes(8, "big")
            mixed = int.from_bytes(blake2b(message, digest_size=8, key=self._key).digest(), "big")
            left, right = right, left ^ (mixed & mask)
        return left << self._half_bits | right
