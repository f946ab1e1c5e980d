"""Which engine a stream runs on."""

from __future__ import annotations

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from prl.engines.placement import Placement


def test_spread_takes_the_least_loaded_and_then_the_lowest() -> None:
    """Each stream goes where the fewest are; among equals to the lowest index."""
    placement = Placement("spread")
    assert [placement.place(0, [0, 1, 2]) for _ in range(4)] == [0, 1, 2, 0]
    placement.leave(0, 1)
    assert placement.place(0, [0, 1, 2]) == 1


def test_together_keeps_a_group_where_its_first_member_went() -> None:
    """Groups are spread, members are not."""
    placement = Placement("together")
    assert [placement.place(group, [0, 1]) for group in (7, 7, 7, 8, 8, 9)] == [0, 0, 0, 1, 1, 1]


def test_together_forgets_a_group_whose_members_have_all_left() -> None:
    """A group that comes back is placed anew, and nothing is kept for those that do not."""
    placement = Placement("together")
    for _ in range(2):
        placement.place(7, [0, 1])
    for _ in range(2):
        placement.leave(7, 0)
    placement.place(8, [0, 1])
    assert placement.place(7, [0, 1]) == 1
    assert set(placement._home) == {7, 8}


def test_dead_engines_get_nothing() -> None:
    """Only usable engines are chosen, whatever a group's first member did."""
    placement = Placement("together")
    assert placement.place(7, [0, 1]) == 0
    assert placement.place(7, [1]) == 1


@given(
    st.sampled_from(["spread", "together"]),
    st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=60),
)
def test_counts_are_those_of_the_open_streams(
    rule: Literal["spread", "together"], events: list[tuple[bool, int]]
) -> None:
    """After any arrivals and departures each engine counts its open streams, and at last none."""
    placement = Placement(rule)
    open_streams: list[tuple[int, int]] = []
    for arrives, group in events:
        if arrives or not open_streams:
            open_streams.append((group, placement.place(group, [0, 1, 2])))
        else:
            placement.leave(*open_streams.pop(group % len(open_streams)))
        running = [placement.running[i] for i in range(3)]
        assert running == [sum(index == i for _, index in open_streams) for i in range(3)]
        if rule == "spread" and arrives:
            assert placement.running[open_streams[-1][1]] <= min(running) + 1
    for stream in open_streams:
        placement.leave(*stream)
    assert [placement.running[i] for i in range(3)] == [0, 0, 0]
    assert not placement._home
    assert not placement._members
