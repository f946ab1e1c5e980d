"""What stands in for the outside: lengths, times and deaths, each against a count or a distribution's own numbers."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

import pytest

from prl.config_simulate import DecodeConfig, FaultsConfig, LengthsConfig
from prl.errors import ConfigError
from prl.simulate.lengths import Lengths, quantile_of, read_lengths
from prl.simulate.machine import Machine, step_time_of
from prl.simulate.parts import TrainingTime
from tests.virtual import in_virtual_time


def drawn(
    config: LengthsConfig, *, longest: int = 1000, grain: int = 1, num_cut: int = 0, count: int = 3000
) -> list[int]:
    """The lengths of so many prompts."""
    lengths = Lengths(
        quantile_of(config, longest), longest=longest, grain=grain, prompt_share=config.prompt_share, num_cut=num_cut
    )
    return [lengths(prompt, prompt % 8) for prompt in range(count)]


@pytest.mark.parametrize(
    ("config", "mean"),
    [
        (LengthsConfig(kind="uniform"), 500.5),
        (LengthsConfig(kind="geometric", mean=50), 50),
        (LengthsConfig(kind="lognormal", mean=50, sigma=0.5), 50),
        (LengthsConfig(kind="lognormal", mean=50, sigma=0.5, prompt_share=0.5), 50),
        (LengthsConfig(kind="fixed", mean=50), 50),
        (LengthsConfig(), 500.5),
    ],
)
def test_a_named_distribution_has_its_mean(config: LengthsConfig, mean: float) -> None:
    """In real tokens, and in simulated ones of several tokens, whose rounding changes no mean."""
    assert statistics.fmean(drawn(config)) == pytest.approx(mean, rel=0.06)
    assert 10 * statistics.fmean(drawn(config, grain=10)) == pytest.approx(mean, rel=0.06)


def test_lengths_are_the_same_whatever_was_drawn_before() -> None:
    """They hang on prompt and seed only, and are cut at the longest."""
    lengths = Lengths(lambda share: 100 * share, longest=60, grain=1)
    assert lengths(7, 3) == lengths(7, 3)
    assert max(lengths(prompt, 0) for prompt in range(200)) <= 61


def test_a_steady_state_meets_long_sequences_more_often_and_somewhere_within() -> None:
    """Of lengths uniform to L, what is left of those under way at a moment has the mean L / 3."""
    assert statistics.fmean(drawn(LengthsConfig(), num_cut=3000)) == pytest.approx(1000 / 3, rel=0.06)


def test_a_file_of_lengths_is_by_prompt_or_for_all(tmp_path: Path) -> None:
    """Several numbers a line are a prompt's; one a line is one population; anything else is said."""
    path = tmp_path / "lengths.txt"
    path.write_text("3 4 5\n\n30, 40\n")
    assert read_lengths(path) == [[3, 4, 5], [30, 40]]
    path.write_text("3\n4\n")
    assert read_lengths(path) == [[3, 4]]
    for text in ("three", "0", ""):
        path.write_text(text)
        with pytest.raises(ConfigError, match="lengths"):
            read_lengths(path)


def test_the_papers_utilisation_is_the_time_of_a_step() -> None:
    """It takes h / U(h) flashes: 192 sequences at 0.384 take 500; below the first point U is in proportion to h."""
    step_s = step_time_of(DecodeConfig(utilisation=((64.0, 0.1376), (192.0, 0.384)), flash_s=0.001), 1, 256)
    assert step_s(192) == pytest.approx(0.5)
    assert step_s(1) == pytest.approx(step_s(32)) == pytest.approx(64 / 0.1376 / 1000)
    assert step_s(256) == pytest.approx(256 / 0.384 / 1000)


def test_a_measured_table_is_linear_between_and_in_proportion_beyond() -> None:
    """Between 2 and 4 sequences the mean of both; twice the last takes twice as long; grain multiplies."""
    step_s = step_time_of(DecodeConfig(table=((4.0, 3.0), (2.0, 1.0))), 10, 8)
    assert [step_s(count) for count in (1, 2, 3, 4, 8)] == pytest.approx([10, 10, 20, 30, 60])


@in_virtual_time
async def test_training_alone_on_a_shared_machine_is_at_full_speed() -> None:
    """Two ranks on two accelerators take the time of a step; on one they take twice that."""
    for num, seconds in ((2, 10), (1, 20)):
        begun = asyncio.get_running_loop().time()
        await Machine(num_accelerators=num, per_engine=1, num_ranks=2).train(10)
        assert asyncio.get_running_loop().time() - begun == pytest.approx(seconds)


def test_a_death_costs_the_start_and_the_steps_since_the_checkpoint() -> None:
    """A step of 10 s that is struck is 10 s longer by what was lost, and what was saved is not done again."""
    faults = FaultsConfig(trainer_deaths_per_hour=10, trainer_start_s=100)
    time = TrainingTime(lambda _samples, _tokens: 10.0, faults, checkpoint_every=5, seed=3)
    steps = [time.next_s(1, 1) for _ in range(400)]
    assert sum(steps) == pytest.approx(4000 + time.lost_s)
    assert 4 < time.num_restarts < 25
    assert time.lost_s <= time.num_restarts * (100 + 50)
    assert TrainingTime(lambda _s, _t: 10.0, FaultsConfig(), checkpoint_every=0, seed=3).next_s(1, 1) == 10
