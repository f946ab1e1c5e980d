"""The throughput model against what can be worked out by hand, and the comparison of two curves."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

import harness
from curves import best_at, compare, compared
from pipeline_vs_conventional import lengths_of, summary
from throughput_model import NUM_STEPS, SKIPPED, Costs, Schedule, play

from prl.types import Completion, Group, Prompt, Score

STEP_S, TRAIN_S, UPDATE_S, PAUSE_S, LENGTH, GROUP = 0.01, 0.2, 0.1, 0.05, 40, 4
COSTS = Costs(
    decode_s={1: STEP_S, 1000: STEP_S},
    train_fixed_s=TRAIN_S,
    train_token_s=0.0,
    update_s=UPDATE_S,
    pause_s=PAUSE_S,
    num_engines=1,
    num_ranks=1,
    num_cores=2,
    shared=False,
)
EQUAL = [[LENGTH] * GROUP]
UNEQUAL = [[5] * GROUP, [5] * GROUP, [10] * GROUP, [120] * GROUP]


def conventional(rounds: int) -> Schedule:
    """G steps a round."""
    return Schedule(groups_per_step=2, group_size=GROUP, num_slots=2 * rounds, in_order=True, steps_per_round=rounds)


@pytest.mark.parametrize("rounds", [1, 4, 10])
def test_taking_turns_takes_the_sum_of_both(rounds: int) -> None:
    """A round decodes its longest sequence, trains G times and updates once; its tokens lag 0 to G - 1 steps."""
    found = play(COSTS, conventional(rounds), EQUAL, 0.0)
    seconds = LENGTH * STEP_S + rounds * TRAIN_S + UPDATE_S + PAUSE_S
    assert found["samples_per_s"] == pytest.approx(2 * GROUP * rounds / seconds, rel=0.02)
    assert found["lag_max"] == rounds - 1
    assert found["lag_mean"] == pytest.approx((rounds - 1) / 2)


def test_a_pipeline_is_as_fast_as_its_slower_stage() -> None:
    """With enough slots the trainer never waits; with few streams it waits for them."""
    schedule = Schedule(groups_per_step=2, group_size=GROUP, num_slots=12, in_order=True)
    assert play(COSTS, schedule, EQUAL, 0.0)["samples_per_s"] == pytest.approx(
        8 / (TRAIN_S + UPDATE_S + PAUSE_S), rel=0.03
    )
    quick = msgspec.structs.replace(COSTS, train_fixed_s=0.01, update_s=0.0, pause_s=0.0)
    few = msgspec.structs.replace(schedule, max_streams=8)
    assert play(quick, few, EQUAL, 0.0)["samples_per_s"] == pytest.approx(8 / (LENGTH * STEP_S), rel=0.03)


def test_sharing_two_cores_gives_each_its_part() -> None:
    """Two engines and two ranks on two cores run at half speed while both are at work, and at full speed alone."""
    costs = msgspec.structs.replace(COSTS, num_engines=2, num_ranks=2, shared=True)
    assert costs.speeds(generating=True, training=True) == (0.5, 0.5)
    assert costs.speeds(generating=True, training=False) == (1.0, 1.0)


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_slots_in_order_bound_the_lag(max_lag: int) -> None:
    """With k + 1 batches of slots, taken as admitted, no token lags more than k steps, however unequal the lengths."""
    schedule = Schedule(groups_per_step=2, group_size=GROUP, num_slots=2 * (max_lag + 1), in_order=True)
    found = play(COSTS, schedule, UNEQUAL, 0.0)
    assert found["lag_max"] == max_lag
    assert found["lag_mean"] <= max_lag


def test_steps_are_left_out_at_the_start() -> None:
    """The rate is that of the steps after the first few."""
    assert 0 < SKIPPED < NUM_STEPS


def test_a_curve_is_the_best_that_is_reached_so_far() -> None:
    """A point that is staler and slower than another one does not lower the curve; outside it there is no rate."""
    points = [(0.0, 10.0), (0.2, 30.0), (0.1, 20.0), (0.15, 5.0)]
    assert best_at(points, 0.05) == pytest.approx(15.0)
    assert best_at(points, 0.15) == pytest.approx(25.0)
    assert best_at(points, 0.5) == pytest.approx(30.0)
    assert best_at(points, -0.1) is None


def test_curves_are_compared_where_both_reach() -> None:
    """From the staler of both beginnings to the fresher of both ends."""
    rows = compared([(0.1, 20.0), (0.5, 20.0)], [(0.0, 10.0), (0.3, 10.0)], levels=3)
    assert [round(row["at"], 6) for row in rows] == [0.1, 0.2, 0.3]
    assert [row["ratio"] for row in rows] == [2.0, 2.0, 2.0]
    assert compared([(0.5, 1.0)], [(0.1, 1.0)]) == []


def row(setting: str, ess: float, rates: list[float]) -> dict[str, Any]:
    """One setting of ``pipeline_vs_conventional.py``, as far as the comparison looks at it."""
    return {
        "setting": setting,
        "ess": ess,
        "lag_max": 1,
        "samples_per_s": harness.spread(rates),
        "predicted_over_measured": 1.1,
    }


def test_a_headline_has_the_spread_of_the_repeats_beside_it() -> None:
    """The ratio of the medians, and that of each repeat."""
    pipeline = [row("shared, max_lag = 1", ess, [20.0, 30.0, 40.0]) for ess in (0.9, 0.5)]
    turns = [row("conventional, G = 1", ess, [10.0, 10.0, 20.0]) for ess in (0.9, 0.5)]
    found = compare(pipeline + turns)
    assert found["headline"] == 3.0
    assert found["headline_by_repeat"] == {"median": 2.0, "min": 2.0, "max": 3.0, "values": [2.0, 3.0, 2.0]}


def test_lengths_are_those_of_every_completion_of_a_group() -> None:
    """By group, as sampled, beside the mean length of a prompt."""
    groups = [
        Group(
            prompt=Prompt(id=number, messages=[], text="", fields={}, token_ids=[1] * (2 + 2 * number)),
            completions=[completion(length) for length in lengths],
            scores=[Score(reward=0.0)] * 2,
        )
        for number, lengths in enumerate([(3, 90), (1, 2)])
    ]
    assert lengths_of(groups) == ([[3, 90], [1, 2]], 3.0)


def test_busy_shares_are_of_the_time_of_all_steps() -> None:
    """A step of 9 s with the trainer idle and one of 1 s with it busy are a tenth, and not half."""
    nothing = {"samples": 1, "ess": 1.0, "lag_mean": 0.0, "lag_max": 0, "reward_mean": 0.0, "wait_batch_s": 0.0}
    nothing |= {"pause_s": 0.0, "length_mean": 1.0}
    steps: list[Any] = [
        SimpleNamespace(time_s=time_s, trainer_busy=busy, engine_busy=1.0 - busy, **nothing)
        for time_s, busy in [(5.0, 0.5), (9.0, 0.0), (1.0, 1.0)]
    ]
    found = summary(steps, 1)
    assert (found["trainer_busy"], found["engine_busy"]) == (pytest.approx(0.1), pytest.approx(0.9))


def completion(length: int) -> Completion:
    """Of as many tokens."""
    return Completion(token_ids=[5] * length, logprobs=[-1.0] * length, versions=[0] * length, text="", finish="stop")
