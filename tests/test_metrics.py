"""The numbers of a step, each against a count by hand."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import msgspec
import pytest

from prl.advantage import ADVANTAGES
from prl.batch import make_batch
from prl.metrics import LagSummary, Mended, Meter, StepReport, Timing, lag_of, step_report
from prl.sync import PushReport
from prl.trainer.base import TrainReport
from prl.types import Batch, Completion, Sample
from tests.factories import make_completion, make_group

LAG = LagSummary(max=2, mean=0.5, num_versions_max=2, histogram=[400, 100, 100])
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
TIMING = Timing(
    step_s=6.0,
    wait_batch_s=1.0,
    engine_busy=0.75,
    in_flight=48.5,
    tokens_generated=1200,
    loop_lag_ms=4.0,
    eval_block_s=0.125,
    evals_incomplete=1,
)


def batch_of(step: int, *completions: Completion) -> Batch:
    """A batch for ``step`` of one group of these completions."""
    groups = [make_group(0, [0.0] * len(completions), completions)]
    return make_batch(
        step, groups, advantage=ADVANTAGES["leave_one_out"], num_ranks=1, max_tokens_per_microbatch=10_000
    )


def report(**changes: Any) -> StepReport:
    """The report of two groups under the numbers above."""
    arguments: dict[str, Any] = {"lag": LAG, "trained": TRAINED, "pushed": PUSHED, "timing": TIMING, "dropped": {}}
    arguments |= changes
    groups = [make_group(0, [1.0, 0.0, 0.0, 1.0]), make_group(1, [1.0, 1.0])]
    return step_report(
        groups,
        arguments["lag"],
        arguments["trained"],
        arguments["pushed"],
        timing=arguments["timing"],
        dropped=arguments["dropped"],
        mended=Mended(streams_moved=3, engine_restarts=2, trainer_restarts=1, reward_retries=4),
        at=1_800_000_000.1234,
        verified_gap=arguments.get("verified_gap"),
    )


# ---- lag -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "versions", "lag_max", "lag_mean", "num_versions"),
    [
        (0, [[0, 0, 0]], 0, 0.0, 1),
        (3, [[3, 3, 3]], 0, 0.0, 1),
        (3, [[1, 2, 3, 3]], 2, 0.75, 3),
        (3, [[3], [1, 1, 1]], 2, 1.5, 1),
        (7, [[2, 6, 6], [5]], 5, 9 / 4, 2),
    ],
)
def test_lag_is_the_step_minus_the_version(
    step: int, versions: list[list[int]], lag_max: int, lag_mean: float, num_versions: int
) -> None:
    """Field notes A, off-by-one in the staleness bound: measured at training time; the maximum at the oldest token.

    The batch of step v is trained on version v, so tokens that version v sampled have lag 0.
    """
    completions = [make_completion(range(1, len(v) + 1), versions=v) for v in versions]
    found = lag_of(batch_of(step, *completions))
    assert (found.max, found.num_versions_max) == (lag_max, num_versions)
    assert found.mean == pytest.approx(lag_mean)


def test_only_trained_tokens_have_a_lag() -> None:
    """Neither the prompt's tokens, which nobody sampled, nor masked ones count."""
    sample = Sample(
        token_ids=[1, 2, 3, 4],
        loss_mask=[0, 0, 1, 1],
        logprobs=[0.0, -1.0, -1.0, -1.0],
        versions=[-1, 0, 4, 5],
        advantages=[0.0, 0.0, 1.0, 1.0],
    )
    batch = Batch(step=5, samples=[sample], plan=[[[0]]], num_sequences=1)
    assert lag_of(batch) == LagSummary(max=1, mean=0.5, num_versions_max=2, histogram=[1, 1])


def test_tokens_by_lag() -> None:
    """One number for each lag from 0 on; the last bin takes everything that is older."""
    completions = [make_completion([7] * 4, versions=[497, 498, 500, 500]), make_completion([7, 8], versions=[3, 372])]
    found = lag_of(batch_of(500, *completions)).histogram
    assert {lag: count for lag, count in enumerate(found) if count} == {0: 2, 2: 1, 3: 1, 128: 2}
    assert len(found) == 129


def test_a_batch_without_trained_tokens_has_no_lag() -> None:
    """Field notes D, everything masked: zeros and no division by zero."""
    sample = Sample(token_ids=[1], loss_mask=[0], logprobs=[0.0], versions=[-1], advantages=[0.0])
    for samples in ([], [sample]):
        assert lag_of(Batch(step=5, samples=samples, plan=[[[]]], num_sequences=0)) == LagSummary(
            max=0, mean=0.0, num_versions_max=0
        )


def test_the_lag_of_a_million_tokens_is_no_long_stop() -> None:
    """Measuring the lag hardly holds up the event loop: a small part of a microsecond a token."""
    batch = batch_of(9, *[make_completion(range(1, 4001), versions=[8] * 2000 + [9] * 2000)] * 250)
    started = time.process_time()
    assert lag_of(batch).mean == 0.5
    assert time.process_time() - started < 0.25


# ---- the report ------------------------------------------------------------------------------------------------------


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


# ---- the meter -------------------------------------------------------------------------------------------------------


class Clock:
    """Time and engines by hand."""

    def __init__(self) -> None:
        self.now, self.tokens, self.busy_s, self.stream_s = 100.0, 5000, 70.0, 300.0

    def pass_time(self, seconds: float, *, tokens: int = 0, busy_s: float = 0.0, streams: int = 0) -> None:
        """Let time go by, with what the engines did."""
        self.now += seconds
        self.tokens += tokens
        self.busy_s += busy_s
        self.stream_s += streams * seconds

    def meter(self) -> Meter:
        """A meter on this clock."""
        return Meter(lambda: self.now, lambda: (self.tokens, self.busy_s, self.stream_s))


def test_a_lap_is_what_happened_since_the_last() -> None:
    """Laps are laid end to end: what the engines do between two steps counts for the next, once."""
    clock = Clock()
    meter = clock.meter()
    clock.pass_time(2, tokens=10, busy_s=1)
    assert meter.lap() == Timing(step_s=2, wait_batch_s=0, engine_busy=0.5, tokens_generated=10, loop_lag_ms=0)
    clock.pass_time(1, tokens=4)
    clock.pass_time(3, tokens=2, busy_s=3)
    assert meter.lap() == Timing(step_s=4, wait_batch_s=0, engine_busy=0.75, tokens_generated=6, loop_lag_ms=0)


def test_what_was_in_flight_is_a_mean_over_the_time_of_the_lap() -> None:
    """The streams of all engines together: 8 for a second and none for three are 2."""
    clock = Clock()
    meter = clock.meter()
    clock.pass_time(1, streams=8)
    clock.pass_time(3)
    assert meter.lap().in_flight == 2
    assert meter.lap().in_flight == 0


def test_waits_and_lags_belong_to_their_lap() -> None:
    """The waits and the loop's lag (in milliseconds) are told once and start over, as do lost evaluations."""
    clock = Clock()
    meter = clock.meter()
    meter.wait_batch_s, meter.loop_lag_s, meter.eval_block_s, meter.evals_incomplete = 1.5, 0.25, 0.5, 1
    meter.checkpoint_s = 0.75
    clock.pass_time(2)
    first = meter.lap()
    assert (first.eval_block_s, first.evals_incomplete, first.checkpoint_s) == (0.5, 1, 0.75)
    assert (first.wait_batch_s, first.loop_lag_ms) == (1.5, 250)
    clock.pass_time(2)
    second = meter.lap()
    assert (second.wait_batch_s, second.loop_lag_ms, second.eval_block_s, second.evals_incomplete) == (0, 0, 0, 0)
    assert second.checkpoint_s == 0


def test_a_restart_forgets_what_was_before() -> None:
    """The start of the run, with its evaluation, belongs to no step."""
    clock = Clock()
    meter = clock.meter()
    clock.pass_time(60, tokens=1000, busy_s=50)
    meter.loop_lag_s = meter.wait_batch_s = 9.0
    meter.restart()
    clock.pass_time(2, tokens=10, busy_s=2)
    assert meter.lap() == Timing(step_s=2, wait_batch_s=0, engine_busy=1, tokens_generated=10, loop_lag_ms=0)


def test_a_lap_of_no_time() -> None:
    """Two laps in one tick of a coarse clock divide by nothing; a share stays a share."""
    clock = Clock()
    meter = clock.meter()
    clock.pass_time(0, tokens=1, busy_s=1)
    lap = meter.lap()
    assert lap.step_s > 0
    assert lap.engine_busy == 1.0
