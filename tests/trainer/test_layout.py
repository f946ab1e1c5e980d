"""Rows: every sample whole on its path, nobody sees a neighbour, and what is equal is computed once where that pays."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prl.trainer import layout as layout_module
from prl.trainer.layout import WIDTHS, Layout, lay_out

sequences = st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=12)
costs = st.sampled_from([0, 1, 20, 10_000])


def seen_by(layout: Layout, place: int) -> set[int]:
    """The places of its row that a token sees."""
    assert layout.until is not None
    row = place - place % layout.width
    return {other for other in range(row, row + layout.width) if other <= place < layout.until[other]}


def cost(layout: Layout, pairs_per_token: int) -> int:
    """Tokens and squares, in pairs."""
    return len(layout.token_ids) * (layout.width + pairs_per_token)


@given(sequences, costs)
def test_every_sample_is_whole_on_its_path(inputs: list[list[int]], pairs_per_token: int) -> None:
    """Its tokens in order, at the positions that they have in the sample."""
    layout = lay_out(inputs, pairs_per_token=pairs_per_token)
    assert [[layout.token_ids[place] for place in path] for path in layout.paths] == inputs
    assert [[layout.positions[place] for place in path] for path in layout.paths] == [[*range(len(e))] for e in inputs]


@given(sequences, costs)
def test_a_token_sees_what_is_before_it_in_its_sample_and_nothing_else(
    inputs: list[list[int]], pairs_per_token: int
) -> None:
    """Not a token of another sample that it does not begin with, nor of another row, nor what fills the row."""
    layout = lay_out(inputs, pairs_per_token=pairs_per_token)
    if layout.until is not None:
        for path in layout.paths:
            assert [seen_by(layout, place) for place in path] == [{*path[: at + 1]} for at in range(len(path))]
        filling = {*range(len(layout.token_ids))} - {place for path in layout.paths for place in path}
        assert [layout.until[place] for place in filling] == [place + 1 for place in filling]
        assert {layout.positions[place] for place in filling} <= {0}, "a model may have no more positions than tokens"


@given(sequences, costs)
def test_sharing_is_never_dearer_and_rows_are_bounded(inputs: list[list[int]], pairs_per_token: int) -> None:
    """No layout costs more than that of samples side by side, and no row is longer than some samples."""
    layout, plain = lay_out(inputs, pairs_per_token=pairs_per_token), lay_out(inputs)
    assert cost(layout, pairs_per_token) <= cost(plain, pairs_per_token)
    assert layout.width <= WIDTHS[-1] * max(map(len, inputs), default=0)


@given(sequences, costs, st.randoms(use_true_random=False))
def test_the_order_of_the_samples_changes_nothing_that_is_computed(
    inputs: list[list[int]], pairs_per_token: int, draw: random.Random
) -> None:
    """Rows are as many and as long for any order."""
    given_order = lay_out(inputs, pairs_per_token=pairs_per_token)
    draw.shuffle(inputs)
    shuffled = lay_out(inputs, pairs_per_token=pairs_per_token)
    assert (shuffled.width, len(shuffled.token_ids)) == (given_order.width, len(given_order.token_ids))


@given(sequences)
def test_nothing_is_shared_unless_it_is_asked_for(inputs: list[list[int]]) -> None:
    """Side by side or in a single row, every token of every sample has a place of its own."""
    for layout in (
        lay_out(inputs),
        lay_out(inputs, single_row=True),
        lay_out(inputs, single_row=True, pairs_per_token=9),
    ):
        places = [place for path in layout.paths for place in path]
        assert layout.until is None
        assert len({*places}) == len(places) == sum(map(len, inputs))


def test_a_tree_by_hand() -> None:
    """A prompt 1 2, answers 3 4, 3 5 and none, and a sample of its own: six tokens and a filling for ten."""
    layout = lay_out([[7], [1, 2, 3, 5], [1, 2], [1, 2, 3, 4]], pairs_per_token=100)
    assert layout == Layout(
        width=6,
        token_ids=[1, 2, 3, 4, 5, 7],
        positions=[0, 1, 2, 3, 3, 0],
        until=[5, 5, 5, 4, 5, 6],
        paths=[[5], [0, 1, 2, 4], [0, 1], [0, 1, 2, 3]],
    )


def test_rows_of_several_samples_have_one_mask_for_all_layers() -> None:
    """Samples that share nothing are kept apart as those that do are; a row of one sample needs no mask."""
    inputs = [[1, 2, 3], [4, 5], [6]]
    assert lay_out(inputs, pairs_per_token=100).until == [3, 3, 3, 5, 5, 6]
    assert lay_out(inputs[:2], pairs_per_token=100) == lay_out(inputs[:2])


def test_long_answers_with_little_in_common_lie_in_rows_of_their_own() -> None:
    """Where a shared prompt saves less than the longer row costs, rows are as if nothing could be shared."""
    prompt = list(range(20))
    answers = [[*prompt, *range(1000 * n, 1000 * n + 980)] for n in range(1, 5)]
    assert lay_out(answers, pairs_per_token=400) == lay_out(answers)
    short = [[*prompt, *range(1000 * n, 1000 * n + 10)] for n in range(1, 5)]
    assert lay_out(short, pairs_per_token=400).token_ids == [*prompt, *(t for each in short for t in each[20:])]


def test_a_mask_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows whose mask would be too large are not taken, however much they share; shorter ones that share less are."""
    prompt = list(range(4))
    answers = [[*prompt, *range(1000 * n, 1000 * n + 10)] for n in range(1, 9)]
    for limit, width, num_tokens in ((84**2, 84, 84), (84**2 - 1, 24, 96)):
        monkeypatch.setattr(layout_module, "MAX_PAIRS", limit)
        layout = lay_out(answers, pairs_per_token=10_000)
        assert (layout.width, len(layout.token_ids)) == (width, num_tokens)
    monkeypatch.setattr(layout_module, "MAX_PAIRS", 4 * 24**2 - 1)
    assert lay_out(answers, pairs_per_token=10_000) == lay_out(answers)
