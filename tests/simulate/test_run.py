"""Whole simulated runs: the bound, the accounts of time, faults, sharing, the governor; and what is told of them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from prl.config import Config
from prl.errors import ConfigError
from prl.settings import load_config
from prl.simulate import Report, costs_of, report_of, simulate
from prl.simulate.calibrate import measured_for
from prl.simulate.words import lines_of
from tests.simulate.test_paper import CONFIG

SMALL = (
    "run.num_steps=24",
    "pipeline.groups_per_step=4",
    "pipeline.group_size=4",
    "advantage.name=leave_one_out",
    "engine.count=2",
    "engine.max_num_seqs=16",
    "trainer.num_ranks=2",
    "sampling.max_tokens=64",
    "simulate.decode.base_s=0.1",
    "simulate.decode.per_sequence_s=0.002",
    "simulate.train.token_s=0.02",
)


def small(*overrides: str) -> Config:
    """Two engines and two ranks on batches of 16."""
    return load_config(CONFIG, [*SMALL, *overrides])


def reported(*overrides: str) -> Report:
    """What a small run comes to."""
    config = small(*overrides)
    costs = costs_of(config)
    return report_of(config, costs, simulate(config, costs))


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_the_bound_on_the_lag_is_the_controllers(max_lag: int) -> None:
    """It is the real buffer: no token lags more than max_lag, and some lag that much."""
    assert reported(f"pipeline.max_lag={max_lag}").lag.max == max_lag


def test_servers_are_engines_like_those_that_are_started_here() -> None:
    """Two of them, two started here, and one of each come to the same."""
    bound, two = "pipeline.max_lag=1", "engine.servers=['http://one:8000', 'http://two:8000']"
    here = reported(bound, "engine.count=2")
    assert reported(bound, "engine.kind=server", two) == here
    assert reported(bound, "engine.kind=vllm", "engine.count=1", "engine.servers=['http://one:8000']") == here


def test_synchronous_takes_the_time_of_both_stages() -> None:
    """With a bound of 0 a step is the longest of 8 sequences an engine, then the training: every length is 64 here."""
    report = reported(
        "pipeline.max_lag=0", "simulate.lengths.kind=fixed", "simulate.lengths.mean=64", "simulate.update_s=0.5"
    )
    generation, training = 64 * (0.1 + 8 * 0.002), 16 * 64 * 0.02 / 2
    assert report.step_s == pytest.approx(generation + training + 0.5)
    assert report.trainer.waits_for_batch == pytest.approx(generation / report.step_s)
    assert report.trainer.updates == pytest.approx(0.5 / report.step_s)
    assert report.engines.decoding == pytest.approx(generation / report.step_s)
    assert report.engines.no_sequences == pytest.approx(training / report.step_s)
    assert report.samples_per_s == pytest.approx(16 / report.step_s)
    assert (report.sample_goodput, report.queues.kv_tokens) == (1, pytest.approx(8 * 64, abs=1))


def test_a_round_of_steps_has_one_update() -> None:
    """Four steps trained one after another, each with what passes between two, and weights sent once for all four."""
    report = reported(
        "pipeline.mode=conventional",
        "pipeline.steps_per_round=4",
        "simulate.lengths.kind=fixed",
        "simulate.lengths.mean=64",
        "simulate.train.between_s=0.125",
        "simulate.transfer_s=0.25",
        "simulate.update_s=0.5",
    )
    generation, training = 2 * 64 * (0.1 + 16 * 0.002), 4 * 16 * 64 * 0.02 / 2
    round_s = generation + training + 4 * 0.125 + 0.25 + 0.5
    assert 4 * report.step_s == pytest.approx(round_s)
    assert report.trainer.waits_for_batch == pytest.approx(generation / round_s)
    assert report.trainer.updates == pytest.approx((4 * 0.125 + 0.25 + 0.5) / round_s)
    assert report.engines.updates == pytest.approx(0.5 / round_s)


def test_engines_go_on_while_weights_are_sent_beside_generation() -> None:
    """Of an update of a second, engines lose what they stand still for: where they are the slower side, that alone."""
    slow = ("pipeline.max_lag=4", "simulate.decode.base_s=1", "simulate.train.token_s=0.001")
    plain, staged = reported(*slow, "simulate.update_s=2"), reported(*slow, "simulate.transfer_s=2")
    assert plain.engines.updates > 0.05
    assert staged.engines.updates == 0
    assert plain.step_s > staged.step_s + 1


def test_what_passes_between_two_steps_slows_engines_that_share_the_machine() -> None:
    """Where generation is the slower side it is work in the engines' place, and on other accelerators costs nothing."""
    slow = ("pipeline.max_lag=4", "simulate.decode.base_s=1", "simulate.train.token_s=0.001")
    more = ("simulate.train.between_s=3", "simulate.transfer_s=3")
    shared = (*slow, "simulate.num_accelerators=2")
    assert reported(*slow, *more).step_s == pytest.approx(reported(*slow).step_s, rel=0.02)
    assert reported(*shared, *more).step_s > reported(*shared).step_s + 2


def test_shares_of_time_sum_to_1_and_so_does_the_lag() -> None:
    """Whatever is not work has a cause."""
    report = reported("simulate.update_s=0.3", "simulate.score_s=2")
    for shares in (report.trainer, report.engines):
        assert sum(msgspec.structs.astuple(shares)) == pytest.approx(1)
    assert sum(report.lag.histogram.values()) == pytest.approx(1, abs=1e-4)
    assert report.ess < 1


def test_sharing_the_accelerators_costs_what_overlaps() -> None:
    """On 2 accelerators in place of 4 a synchronous run, which overlaps nothing, loses nothing; the pipeline does."""
    shared = "simulate.num_accelerators=2"
    assert reported("pipeline.max_lag=0", shared).step_s == pytest.approx(reported("pipeline.max_lag=0").step_s)
    assert reported("pipeline.max_lag=2", shared).step_s > 1.2 * reported("pipeline.max_lag=2").step_s


def test_faults_cost_and_are_told() -> None:
    """Engines die and come back, the trainer is started again, streams fail: the run goes on, slower, and says so."""
    overrides = ("pipeline.max_lag=2", "run.num_steps=40", "simulate.faults.engine_start_s=20")
    rates = ("engine_deaths_per_hour=30", "trainer_deaths_per_hour=30", "failed_streams=0.05")
    broken, whole = reported(*overrides, *(f"simulate.faults.{rate}" for rate in rates)), reported(*overrides)
    assert broken.engine_restarts > 0
    assert broken.trainer_restarts > 0
    assert broken.sample_goodput < whole.sample_goodput == 1
    assert broken.step_s > whole.step_s
    assert broken.lag.max <= 2


def test_one_configuration_has_one_course() -> None:
    """Number by number."""
    assert reported() == reported()


def test_a_report_reads_as_lines() -> None:
    """One a matter, with every cause of idleness in words."""
    text = "\n".join(lines_of(small(), reported()))
    for word in ("samples/s", "goodput", "largest", "waits for a batch", "stand still", "in flight", "KV cache"):
        assert word in text


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("simulate.decode.base_s=unset",), "simulate.decode"),
        (("simulate.decode.table=[[1.0, 2.0]]",), "base_s and table"),
        (("simulate.train.token_s=unset",), "simulate.train.token_s"),
        (("simulate.lengths.kind=file", "simulate.lengths.path=nowhere"), "nowhere"),
        (("simulate.run=nowhere",), "nowhere"),
    ],
)
def test_what_is_missing_is_said(overrides: tuple[str, ...], said: str) -> None:
    """A cost that is neither given nor measured, or given twice, is an error that names its key."""
    config = small(*overrides)
    with pytest.raises(ConfigError, match=said):
        costs_of(config, measured_for(config))


def test_the_governor_holds_the_ess_through_a_change_of_the_generation_speed() -> None:
    """Engines three times slower from one moment on: the ESS is at its target before and after, and the slots rest."""
    changes_at_s = 600.0
    config = small(
        "pipeline.max_lag=16",
        "pipeline.target_ess=0.95",
        "simulate.drift=0.01",
        "engine.max_num_seqs=64",
        "run.num_steps=200",
    )
    costs = costs_of(config)

    def step_s(count: int) -> float:
        return costs.step_s(count) * (1 if asyncio.get_running_loop().time() < changes_at_s else 3)

    steps = simulate(config, msgspec.structs.replace(costs, step_s=step_s)).steps
    before = [step for step in steps if 0.7 * changes_at_s < step.at_s < changes_at_s]
    after = steps[-60:]
    assert after[0].at_s > changes_at_s
    for window in (before, after):
        assert sum(step.report.ess for step in window) / len(window) == pytest.approx(0.95, abs=0.006)
        slots = [step.slots.num_slots for step in window]
        assert max(slots) - min(slots) <= 0.2 * max(slots)
    assert after[-1].slots.num_slots > before[-1].slots.num_slots
