"""The order of rows: a pure function of the position, every row once an epoch, sources in their proportions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.data.mix import Mix, Place, shares
from prl.errors import ConfigError

SOURCES = st.lists(st.tuples(st.integers(1, 12), st.sampled_from([0.1, 0.25, 1.0, 3.0, 7.5])), min_size=1, max_size=4)


def places(mix: Mix, start: int, stop: int) -> list[Place]:
    """What stands at these positions."""
    return [mix.place(position) for position in range(start, stop)]


@given(sources=SOURCES, seed=st.integers(0, 5), shuffle=st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_row_once_an_epoch_of_its_source(sources: list[tuple[int, float]], seed: int, shuffle: bool) -> None:
    """Each source gives out all its rows before it begins again, and its epochs do not overlap."""
    lengths, weights = [n for n, _ in sources], [w for _, w in sources]
    mix = Mix(lengths, weights, seed=seed, shuffle=shuffle)
    met = places(mix, 0, mix.span)
    for number, length in enumerate(lengths):
        own = [place for place in met if place.source == number]
        assert [place.epoch for place in own] == [index // length for index in range(len(own))]
        for epoch in range(len(own) // length):
            assert sorted(place.row for place in own if place.epoch == epoch) == list(range(length))
        assert len(own) >= length, "the span holds every row of every source"


@given(sources=SOURCES, seed=st.integers(0, 5), shuffle=st.booleans(), order=st.randoms())
@settings(max_examples=30, deadline=None)
def test_a_position_means_the_same_however_it_is_reached(
    sources: list[tuple[int, float]], seed: int, shuffle: bool, order: object
) -> None:
    """In order, out of order, by another object: the place at a position depends on nothing else."""
    lengths, weights = [n for n, _ in sources], [w for _, w in sources]
    expected = places(Mix(lengths, weights, seed=seed, shuffle=shuffle), 0, 50)
    numbers = list(range(50))
    order.shuffle(numbers)  # type: ignore[attr-defined]
    again = Mix(lengths, weights, seed=seed, shuffle=shuffle)
    assert {number: again.place(number) for number in numbers} == dict(enumerate(expected))


@given(weights=st.lists(st.floats(0.01, 50), min_size=1, max_size=6), seed=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_a_block_has_each_source_as_often_as_its_weight_says(weights: list[float], seed: int) -> None:
    """To a thousandth, in every block of positions."""
    expected = shares(weights, 1000)
    if 0 in expected:
        with pytest.raises(ConfigError, match="raise it"):
            Mix([5] * len(weights), weights, seed=seed, shuffle=True)
        return
    assert sum(expected) == 1000
    assert all(
        abs(count / 1000 - weight / sum(weights)) < 0.001 for count, weight in zip(expected, weights, strict=True)
    )
    mix = Mix([5] * len(weights), weights, seed=seed, shuffle=True)
    for start in (0, 1000, 7000):
        counted = Counter(place.source for place in places(mix, start, start + 1000))
        assert [counted[number] for number in range(len(weights))] == expected


def test_without_shuffling_sources_alternate_evenly() -> None:
    """Three to one is three and one, not thirty and ten; each source in the order of its rows."""
    mix = Mix([6, 2], [3, 1], seed=0, shuffle=False)
    met = places(mix, 0, 8)
    assert [place.source for place in met] in ([0, 0, 1, 0, 0, 0, 1, 0], [0, 1, 0, 0, 0, 1, 0, 0])
    assert [place.row for place in met if place.source == 0] == [0, 1, 2, 3, 4, 5]
    assert (mix.epoch(7), mix.epoch(8)) == (0, 1)


def test_one_source_has_the_order_it_had_alone() -> None:
    """The order of a single source is its permutation by (seed, epoch): the mixture adds nothing to it."""
    from prl.shuffle import Permutation

    mix = Mix([9], [2.5], seed=4, shuffle=True)
    for epoch in range(3):
        order = Permutation(9, 4, epoch)
        expected = [Place(0, order[index], epoch) for index in range(9)]
        assert places(mix, 9 * epoch, 9 * epoch + 9) == expected


def test_seeds_and_sources_have_orders_of_their_own() -> None:
    """Another seed is another order, and two sources of one length are not in step."""
    mix = Mix([50, 50], [1, 1], seed=1, shuffle=True)
    met = places(mix, 0, 100)
    first, second = ([place.row for place in met if place.source == number] for number in (0, 1))
    assert first != second
    assert met != places(Mix([50, 50], [1, 1], seed=2, shuffle=True), 0, 100)
