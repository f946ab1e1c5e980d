"""Where each token of a micro-batch is computed: rows, in which samples that begin alike share their beginning.

A token's hidden state depends on the tokens up to it and on nothing else. So a row is laid out as prefix trees, depth
first: a group's prompt once, then its answers, and these once up to where they part. ("Prefix Grouper", arXiv
2506.05433, shares the prompt; "Tree Training", arXiv 2511.00413, a tree.)

Invariants:

- The tokens on a sample's path are the sample's, in order, and the position of each is its index in the sample. So
  log-probabilities and gradients are those of the samples alone; what is shared only sums its gradients earlier.
- A token is seen by itself and by its descendants: those behind it in the row, before ``until``. What fills the end of
  a row sees itself and is seen by nobody.
- Attention over a row costs its square, masked or not, so the layout is the cheapest of some by the tokens computed,
  filling included, and the squares: one sample a row where the answers are long and share little, many where they do.
- A mask has at most ``MAX_PAIRS`` entries, however long the samples are.
- The order of the samples given changes where they lie, never what is on their paths.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_PAIRS = 1 << 29
"""Most entries of the mask that sharing needs, of rows times their lengths squared: 1 GiB in bfloat16."""
WIDTHS = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16)
"""Lengths of a row that are tried, in longest samples: beyond, there is nothing left to gain that is worth a mask."""


class Layout(NamedTuple):
    """Rows of ``width`` tokens, end to end."""

    width: int
    token_ids: list[int]
    positions: list[int]
    until: list[int] | None
    """End of each token's descendants, an index into the rows; None: the positions tell samples of a row apart."""
    paths: list[list[int]]
    """Of each sample, the index of each of its tokens."""


class _Plan(NamedTuple):
    chains: list[list[int]]
    """Samples that lie one behind the other, each sharing with the one before."""
    starts: list[int]
    num_rows: int
    width: int


def lay_out(inputs: Sequence[Sequence[int]], *, single_row: bool = False, pairs_per_token: int = 0) -> Layout:
    """Lay samples into rows; an empty one takes no room.

    Args:
        inputs: the tokens of each sample that must be computed.
        single_row: everything in one row, for a kernel that attends within each sample only. Nothing is shared.
        pairs_per_token: what computing a token costs beside attention, in pairs of tokens that attend to one another;
            0: nothing can be shared, positions keep apart what is in a row, and it is as long as the longest sample.
    """
    lengths = [len(each) for each in inputs]
    filled = [index for index, length in enumerate(lengths) if length]
    longest = max(lengths, default=0)
    alone = [[index] for index in filled]
    best = _place(alone, [lengths[index] for index in filled], sum(lengths) if single_row else longest)
    shared = [0] * len(inputs)
    can_share = pairs_per_token > 0 and not single_row
    if can_share:
        order = sorted(filled, key=lambda index: list(inputs[index]))
        for before, index in itertools.pairwise(order):
            shared[index] = _num_equal(inputs[before], inputs[index])
        plans = [_chained(order, lengths, shared, int(times * longest)) for times in WIDTHS] if any(shared) else []
        bounded = [plan for plan in plans if plan.num_rows * plan.width**2 <= MAX_PAIRS]
        best = min([best, *bounded], key=lambda plan: plan.num_rows * plan.width * (plan.width + pairs_per_token))
    return _written(inputs, best, shared, masked=can_share and best.num_rows < len(filled))


def _num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    differ = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


def _chained(order: Iterable[int], lengths: Sequence[int], shared: Sequence[int], width: int) -> _Plan:
    """A sample goes behind the one before it in ``order``, unless they share nothing or the row would be too long."""
    chains: list[list[int]] = []
    sizes: list[int] = []
    for index in order:
        grown = sizes[-1] + lengths[index] - shared[index] if shared[index] else width + 1
        if grown <= width:
            chains[-1].append(index)
            sizes[-1] = grown
        else:
            chains.append([index])
            sizes.append(lengths[index])
    return _place(chains, sizes, width)


def _place(chains: list[list[int]], sizes: Sequence[int], width: int) -> _Plan:
    """Chains into rows of at most ``width``: longest first, each into the fullest row that has room for it."""
    starts = [(0, 0)] * len(chains)
    room: list[tuple[int, int]] = []  # (tokens, row), ascending
    for number in sorted(range(len(chains)), key=lambda number: -sizes[number]):
        place = bisect_left(room, (sizes[number], 0))
        left, row = room.pop(place) if place < len(room) else (width, len(room))
        starts[number] = (row, width - left)
        insort(room, (left - sizes[number], row))
    used = width - min(room, default=(width, 0))[0]
    return _Plan(chains, [row * used + at for row, at in starts], len(room), used)


def _written(inputs: Sequence[Sequence[int]], plan: _Plan, shared: Sequence[int], *, masked: bool) -> Layout:
    size, width = plan.num_rows * plan.width, plan.width
    token_ids, positions, until = [0] * size, [0] * size, list(range(1, size + 1))
    paths: list[list[int]] = [[] for _ in inputs]
    placed = sorted(zip(plan.starts, plan.chains, strict=True))
    for (start, chain), (following, _) in itertools.pairwise([*placed, (size, [])]):
        if not masked:  # what fills the row counts on, so that it looks like no sample of its own
            positions[start:following] = range(following - start)
        path: list[int] = []
        end = start
        for index in chain:
            kept = shared[index] if path else 0
            for place in path[kept:]:
                until[place] = end
            new = inputs[index][kept:]
            path[kept:] = range(end, end + len(new))
            token_ids[end : end + len(new)] = new
            positions[end : end + len(new)] = range(kept, kept + len(new))
            end += len(new)
            paths[index] = path.copy()
        for place in path:
            until[place] = end
    return Layout(width, token_ids, positions, until if masked else None, paths)
