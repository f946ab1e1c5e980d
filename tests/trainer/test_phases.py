"""What a rank tells of its step: every moment of it once, and where it waited."""

from __future__ import annotations

from prl.trainer.base import Phase
from prl.trainer.phases import MAX_WAITS, MIN_WAIT_S, Phases


class Clock:
    """Time by hand; powers of two are exact."""

    now = 1024.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def wait(phases: Phases, clock: Clock, seconds: float, why: str = "others") -> None:
    """Be in a collective so long."""
    with phases.waits(why):
        clock.now += seconds


def test_a_step_is_told_part_by_part() -> None:
    """Computing and waiting in turns, from the beginning to now; a step begins with nothing of the one before."""
    clock = Clock()
    phases = Phases(2, clock)
    wait(phases, clock, 4.0)
    phases.begin()
    clock.now += 2
    wait(phases, clock, 1.0, "shards")
    clock.now += 0.5
    wait(phases, clock, MIN_WAIT_S / 2)
    wait(phases, clock, 0.25, "sums")
    clock.now += 1
    first, shards, second, sums, last = phases.take()
    assert (first, shards, sums) == (
        Phase("training", 2.0),
        Phase("waiting", 1.0, "shards"),
        Phase("waiting", 0.25, "sums"),
    )
    assert (second.state, last) == ("training", Phase("training", 1.0))
    assert abs(second.seconds - 0.5 - MIN_WAIT_S / 2) < 1e-9


def test_of_many_waits_the_longest_are_told() -> None:
    """In their order, and the ranks together tell no more than so many; no time is lost."""
    clock = Clock()
    phases = Phases(4, clock)
    seconds = [1 + index % 7 for index in range(50)]
    for each in seconds:
        clock.now += 1
        wait(phases, clock, each)
    told = phases.take()
    assert [phase.seconds for phase in told if phase.state == "waiting"] == [7] * (MAX_WAITS // 4)
    assert sum(phase.seconds for phase in told) == 50 + sum(seconds)
