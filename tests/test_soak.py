"""What the soak takes for growth, on curves of memory that are known to be growth or none."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.growth import Look, Memory
from tests.faults.soak import SAMPLE_S


def problems_of(*lives: Callable[[float], float], role: str = "controller", seconds: float = 600.0) -> list[str]:
    """What is said of lives one after the other, each as MiB at so many seconds since it was warm."""
    memory = Memory()
    for pid, mib_at in enumerate(lives):
        for index in range(int(seconds / SAMPLE_S)):
            age_s = index * SAMPLE_S
            memory.note(role, pid, Look(pid * seconds + age_s, mib_at(age_s)))
    return memory.judge()[1]


def test_what_every_step_leaves_behind_is_growth() -> None:
    """Kept groups, a seventh of a MiB a second, are found in a controller; a level that is reached and kept is none."""
    kept = problems_of(lambda age_s: 440 + 0.15 * age_s)
    assert kept == ["the memory of controller 0 has grown from 455 to 515 MiB"]
    assert problems_of(lambda age_s: 440 + (20 if age_s > 250 else 0)) == []


def test_an_engine_fills_its_cache() -> None:
    """A sixth more is no growth of an engine core, which fills what it was given, and would be a controller's."""
    assert problems_of(lambda age_s: min(1200, 1080 + age_s), role="engine core") == []
    assert problems_of(lambda age_s: 1080 + age_s, role="engine core") != []
    assert problems_of(lambda age_s: min(600, 500 + 0.5 * age_s)) != []


def test_a_resumed_controller_is_compared_with_the_first_in_the_same_phase() -> None:
    """One that keeps what it read to go on from is told, though it does not grow; a peak that is kept once is not."""
    assert problems_of(lambda _: 440, lambda _: 455, lambda _: 500) == [
        "the resumed controller 2 began with 500 MiB, the first one with 440 MiB"
    ]


def test_a_short_life_tells_nothing_of_growth() -> None:
    """One that was not watched for long is compared with the first one only."""
    assert problems_of(lambda age_s: 440 + age_s, seconds=60.0) == []
