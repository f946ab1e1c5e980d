"""The numbers of a step, each against a count by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from prl.lag import Lag
from prl.lap import Lap
from prl.metrics import Mended, StepReport, step_report
from prl.sync import PushReport
from prl.trainer.base import TrainReport
from tests.factories import make_group

LAG = Lag(max=2, mean=0.5, num_versions_max=2, histogram=[400, 100, 100])
TRAINED = TrainReport(
    step=4,
    loss=0.25,
    grad_norm=1.5,
    lr=1e-3,
    ess=0.9,
    kl_behaviour=0.01,
    clip_frac=0.125,
    entropy=0.7,
    tokens_trained=600,
    gap_mean=0.25,
    tokens_fresh=400,
    gap_fresh=0.0625,
    ratio_histogram=[0] * 10 + [100, 400, 100] + [0] * 10,
    skipped=False,
    train_s=3.0,
)
PUSHED = PushReport(version=5, pause_s=0.5, drain_s=0.125, publish_s=0.25)
LAP = Lap(
    time_s=6.0,
    wait_batch_s=1.0,
    engine_busy=0.75,
    in_flight=48.5,
    tokens_generated=1200,
    loop_lag_ms=4.0,
    eval_block_s=0.125,
    evals_incomplete=1,
)


def report(**changes: Any) -> StepReport:
    """The report of two groups under the numbers above."""
    arguments: dict[str, Any] = {"lag": LAG, "trained": TRAINED, "pushed": PUSHED, "lap": LAP, "dropped": {}}
    arguments |= changes
    groups = [make_group(0, [1.0, 0.0, 0.0, 1.0]), make_group(1, [1.0, 1.0])]
    return step_report(
        groups,
        arguments["lag"],
        arguments["trained"],
        arguments["pushed"],
        lap=arguments["lap"],
        dropped=arguments["dropped"],
        mended=Mended(streams_moved=3, engine_restarts=2, trainer_restarts=1, reward_retries=4),
        at=1_800_000_000.1234,
        verified_gap=arguments.get("verified_gap"),
    )


def test_a_report_by_hand() -> None:
    """Each number of a step against its definition."""
    assert msgspec.structs.asdict(report(dropped={"timeout": 8})) == {
        "step": 5,
        "version": 5,
        "time_s": 6.0,
        "at": 1_800_000_000.1234,
        "reward_mean": pytest.approx(4 / 6),
        "reward_std": pytest.approx(math.sqrt(2) / 3),
        "samples": 6,
        "tokens_generated": 1200,
        "tokens_trained": 600,
        "lag_max": 2,
        "lag_mean": 0.5,
        "lag_histogram": [400, 100, 100],
        "versions_max": 2,
        "ess": 0.9,
        "kl_behaviour": 0.01,
        "ratio_histogram": [0] * 10 + [100, 400, 100] + [0] * 10,
        "gap_mean": 0.25,
        "gap_numerics": 0.0625,
        "gap_staleness": 0.1875,
        "clip_frac": 0.125,
        "entropy": 0.7,
        "kl_reference": None,
        "loss": 0.25,
        "grad_norm": 1.5,
        "lr": 1e-3,
        "length_mean": pytest.approx((1 + 2 + 3 + 4 + 1 + 2) / 6),
        "length_max": 4,
        "finish_length_share": 0.0,
        "gen_tok_s": 200.0,
        "train_tok_s": 100.0,
        "trainer_busy": 0.5,
        "engine_busy": 0.75,
        "in_flight": 48.5,
        "wait_batch_s": 1.0,
        "pause_s": 0.5,
        "publish_s": 0.25,
        "eval_block_s": 0.125,
        "checkpoint_s": 0.0,
        "evals_incomplete": 1,
        "streams_moved": 3,
        "streams_handed_over": 0,
        "engine_restarts": 2,
        "trainer_restarts": 1,
        "reward_retries": 4,
        "loop_lag_ms": 4.0,
        "dropped": {"timeout": 8},
        "rewards": {},
    }


def test_the_keys_of_a_line() -> None:
    """A line has the documented keys, flat, with one ``dropped_<reason>`` for each reason and no other."""
    documented = [
        *(
            "step",
            "version",
            "time_s",
            "at",
            "reward_mean",
            "reward_std",
            "samples",
            "tokens_generated",
            "tokens_trained",
        ),
        *(
            "lag_max",
            "lag_mean",
            "lag_histogram",
            "versions_max",
            "ess",
            "kl_behaviour",
            "ratio_histogram",
            "gap_mean",
            "gap_numerics",
            "gap_staleness",
            "clip_frac",
            "entropy",
            "loss",
            "grad_norm",
            "lr",
        ),
        *("length_mean", "length_max", "finish_length_share"),
        *("gen_tok_s", "train_tok_s", "trainer_busy", "engine_busy", "in_flight", "wait_batch_s", "pause_s"),
        *("publish_s", "eval_block_s", "checkpoint_s", "evals_incomplete"),
        *("streams_moved", "streams_handed_over", "engine_restarts", "trainer_restarts", "reward_retries"),
        "loop_lag_ms",
    ]
    line = report(dropped={"timeout": 8, "engine_error": 1}).line()
    assert list(line) == [*documented, "dropped_timeout", "dropped_engine_error"]
    assert (line["dropped_timeout"], line["dropped_engine_error"]) == (8, 1)
    assert list(report().line()) == documented


def test_a_line_holds_no_number_that_json_has_not() -> None:
    """Field notes F, NaN in JSON: a skipped step's NaN is null in the file, and the line still parses."""
    skipped = msgspec.structs.replace(TRAINED, loss=math.nan, grad_norm=math.inf, skipped=True)
    line = json.loads(msgspec.json.encode(report(trained=skipped).line()))
    assert (line["loss"], line["grad_norm"], line["step"]) == (None, None, 5)


def test_the_gap_between_trainer_and_engines_has_two_parts() -> None:
    """Numerics: enough tokens of lag 0, else the last proof of a push, else unknown. Staleness is the rest."""
    few = msgspec.structs.replace(TRAINED, tokens_fresh=10)
    found = [report(trained=few), report(trained=few, verified_gap=0.125), report(trained=few, verified_gap=0.5)]
    assert [(one.gap_numerics, one.gap_staleness) for one in found] == [(None, None), (0.125, 0.125), (0.5, 0.0)]
    nothing = msgspec.structs.replace(TRAINED, gap_mean=None, gap_fresh=None, tokens_fresh=0)
    assert (report(trained=nothing).gap_mean, report(trained=nothing).gap_staleness) == (None, None)


def test_the_time_of_a_step_is_exact_to_a_millisecond() -> None:
    """Other numbers have six digits, of which a date would have none left."""
    assert report().line()["at"] == 1_800_000_000.123


def test_a_step_that_is_not_pushed() -> None:
    """In the middle of a round no engine stands still."""
    assert (report(pushed=None).pause_s, report(pushed=None).publish_s) == (0.0, 0.0)


def test_shares_of_time_are_at_most_1() -> None:
    """A trainer whose own clock says more than the step's is busy all the time, not more."""
    assert report(trained=msgspec.structs.replace(TRAINED, train_s=7.0)).trainer_busy == 1.0
