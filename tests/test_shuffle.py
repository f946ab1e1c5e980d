"""The order of an epoch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prl.shuffle import Permutation


@given(n=st.integers(1, 300), seed=st.integers(0, 2**40), epoch=st.integers(0, 2**20))
def test_every_row_exactly_once(n: int, seed: int, epoch: int) -> None:
    """An epoch holds each row once."""
    order = Permutation(n, seed, epoch)
    assert sorted(order[i] for i in range(n)) == list(range(n))


def test_order_is_pinned() -> None:
    """The order never changes between versions and machines: saved cursors would point elsewhere."""
    order = Permutation(10, 0, 0)
    assert [order[i] for i in range(10)] == [3, 1, 0, 8, 5, 6, 9, 4, 7, 2]


def test_seed_and_epoch_change_the_order() -> None:
    """Another seed or another epoch is another order."""
    orders = {tuple(Permutation(100, s, e)[i] for i in range(100)) for s, e in [(0, 0), (0, 1), (1, 0), (1, 1)]}
    assert len(orders) == 4


def test_rows_are_spread() -> None:
    """Neighbours in the file are no neighbours in the order: the first tenth comes from all over."""
    order = Permutation(10_000, 3, 0)
    tenths = [0] * 10
    for i in range(1000):
        tenths[order[i] // 1000] += 1
    assert min(tenths) > 60
    assert max(tenths) < 140


@pytest.mark.parametrize("index", [-1, 5])
def test_no_row_outside(index: int) -> None:
    """An index outside the epoch is an error, not another row."""
    with pytest.raises(IndexError):
        Permutation(5, 0, 0)[index]
