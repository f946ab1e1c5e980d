"""The governor against machines that are no more than a proportion and a delay."""

from __future__ import annotations

import itertools
import math
from collections import deque

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prl.governor import DEAD_BAND, Governor


class Machine:
    """-log(ESS) is ``drift`` times the batches that were under way beyond one when the batch was admitted."""

    def __init__(self, governor: Governor, groups_per_step: int, drift: float) -> None:
        self.governor, self.groups_per_step, self.drift = governor, groups_per_step, drift
        self._slots = deque([governor.slots], maxlen=1000)

    def step(self) -> float:
        """Take one; its ESS."""
        lag = round(self._slots[-1] / self.groups_per_step) - 1
        then = self._slots[-1 - min(lag, len(self._slots) - 1)]
        ess = math.exp(-self.drift * (then / self.groups_per_step - 1))
        self._slots.append(self.governor.observe(ess, lag))
        return ess


def governed(target: float, *, drift: float, groups_per_step: int = 16, max_lag: int = 64) -> Machine:
    """A machine under a governor of its own."""
    governor = Governor(
        target=target,
        least=groups_per_step + 1,
        most=groups_per_step * (max_lag + 1),
        synchronous=groups_per_step,
    )
    return Machine(governor, groups_per_step, drift)


@settings(max_examples=60, deadline=None)
@example(target=0.5, lag=1.0, change=3.5625)  # four slots are too few, and five too many
@given(
    target=st.floats(0.5, 0.99),
    lag=st.floats(1, 48),
    change=st.floats(0.5, 4),
)
def test_it_comes_to_the_target_and_stays_there(target: float, lag: float, change: float) -> None:
    """Whatever the drift, and after it changed at once, the ESS arrives where it is to be and then nothing moves."""
    drift = -math.log(target) / lag
    machine = governed(target, drift=drift)
    for new_drift in (drift, drift * change):
        machine.drift = new_drift
        for _ in range(600):
            machine.step()
        settled = [-math.log(machine.step()) for _ in range(50)]
        assert len(set(settled)) == 1
        wanted = -math.log(target)
        within_reach = new_drift * 64 >= wanted
        one_slot = new_drift / machine.groups_per_step
        if within_reach:
            assert settled[0] == pytest.approx(wanted, rel=DEAD_BAND + 0.01, abs=one_slot)
        else:
            near = settled[0] == pytest.approx(wanted, rel=DEAD_BAND + 0.01, abs=one_slot)
            assert near or machine.governor.slots == 65 * 16


@given(st.lists(st.tuples(st.floats(allow_nan=True, allow_infinity=True), st.integers(-3, 10_000)), max_size=60))
def test_it_never_leaves_its_bounds(steps: list[tuple[float, int]]) -> None:
    """Whatever is measured, infinities and no numbers included, the slots are between the least and the most."""
    governor = Governor(target=0.9, least=5, most=40, synchronous=4)
    for ess, lag in steps:
        assert 5 <= governor.observe(ess, lag) <= 40


def test_a_change_does_not_ring() -> None:
    """When drift doubles the slots come down to their new place, past it by no more than the dead band allows."""
    machine = governed(0.9, drift=0.01)
    for _ in range(300):
        machine.step()
    before = machine.governor.slots
    machine.drift = 0.02
    course = []
    for _ in range(300):
        machine.step()
        course.append(machine.governor.slots)
    assert course[-1] < before
    assert min(course) >= 16 + (course[-1] - 16) * (1 - 2 * DEAD_BAND)


def test_what_does_not_drift_may_run_ahead() -> None:
    """With an ESS of 1 at any lag it goes to the most."""
    machine = governed(0.9, drift=0.0, max_lag=8)
    for _ in range(200):
        machine.step()
    assert machine.governor.slots == 16 * 9


def test_it_waits_for_what_was_admitted_since_it_moved() -> None:
    """A batch that was admitted before a move says nothing of it: with a lag of 6 there are ten steps between two."""
    governor = Governor(target=0.9, least=5, most=400, synchronous=4)
    slots = [governor.observe(0.999, 6) for _ in range(40)]
    moves = [step for step, (before, after) in enumerate(itertools.pairwise(slots)) if before != after]
    assert all(later - earlier >= 10 for earlier, later in itertools.pairwise(moves))
