"""Generating while training against taking turns, at equal staleness of the data.

    python benchmarks/pipeline_vs_conventional.py [--quick] --out FILE.json

Same model, data, loss, batch and learning rate (the best of a sweep for G = 1) on ``benchmarks/long_tail.toml``. The
conventional side takes G optimiser steps a round, both cores generating, then both training. The pipeline runs with a
bound on the lag and without one (``max_lag`` absent), then for several numbers of streams in the engines, once sharing
both cores and once split, engines on one core and trainer on the other. Runs are as long as the model learns: once it
has learned, nothing is stale.

Headline: samples per second of the pipeline over those of the conventional mode at equal mean ESS, both interpolated
along the best that each side reaches at that ESS or a higher one; the median over the ESS that both sides reach
(target: at least 1.3), with its spread over the repeats. The same at equal largest lag stands beside it, and what the
paper's throughput model predicts for each run from decode and training steps that were measured alone, and from the
lengths, the pause and the time between two steps of one run apart (``stages.py``, ``throughput_model.py``).
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import msgspec
import numpy as np
import throughput_model as model
import uvloop
from curves import compare
from kept_engines import KeptEngines, Layout, split, with_tables
from stages import decode_seconds, recorded, train_seconds

from prl import Config, Group, StepReport, load_config, parts

CONFIG = Path(__file__).parent / "long_tail.toml"
SHARED = Layout("shared", num_engines=2, num_ranks=2)
MOST_STREAMS = 256
"""Per engine; where a side may have as many as it wants."""
LEARNING_RATES = (1e-4, 2e-4, 4e-4, 8e-4)
MIN_SKIPPED_STEPS = 6
NUM_CORES = len(os.sched_getaffinity(0))
"""Asked before anything is pinned."""
ALONE_MAX_LAG = 4
"""Of the run that the lengths, the pause and the trainer's batches are taken from."""
TABLES = ("sweep", "generation_alone", "training_alone", "rows", "at_equal_ess", "at_equal_largest_lag")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One point of one curve."""

    layout: Layout = SHARED
    max_lag: int | None = None
    streams: int | None = None
    """In all engines together, where ``max_lag`` is absent."""
    steps_per_round: int | None = None
    """G of the conventional mode."""

    @property
    def name(self) -> str:
        """As the tables show it."""
        if self.steps_per_round is not None:
            return f"conventional, G = {self.steps_per_round}"
        what = f"max_lag = {self.max_lag}" if self.max_lag is not None else f"max_lag absent, {self.streams} streams"
        return f"{self.layout.name}, {what}"

    def applied(self, config: Config) -> Config:
        """The configuration of this point."""
        each = MOST_STREAMS if self.streams is None else self.streams // self.layout.num_engines
        engine = {"count": self.layout.num_engines, "max_num_seqs": each}
        if self.steps_per_round is not None:
            pipeline = {"mode": "conventional", "max_lag": None, "steps_per_round": self.steps_per_round}
        else:
            pipeline = {"mode": "pipeline", "max_lag": self.max_lag}
        return with_tables(config, engine=engine, pipeline=pipeline, trainer={"num_ranks": self.layout.num_ranks})

    def num_steps(self, wanted: int) -> int:
        """As many steps, or whole rounds of them: one that is not counted and one that is, at least."""
        rounds = self.steps_per_round or 1
        return max(2, -(-wanted // rounds)) * rounds

    def skipped(self, num_steps: int) -> int:
        """Steps at the start that are not counted: a few, or whole rounds of them while one is left to count."""
        rounds = self.steps_per_round or 1
        return min(-(-MIN_SKIPPED_STEPS // rounds) * rounds, num_steps - rounds)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    num_repeats: int
    num_steps: int
    sweep_steps: int
    sizes: tuple[int, ...]
    learning_rates: tuple[float, ...]
    settings: list[Setting]


def full_plan() -> Plan:
    """Every point that the target speaks of."""
    conventional = [Setting(steps_per_round=rounds) for rounds in (1, 2, 4, 8, 16, 32)]
    shared = [*(Setting(max_lag=lag) for lag in (1, 2, 4, 8)), *(Setting(streams=count) for count in (64, 128))]
    apart = split()
    split_up = [
        *(Setting(layout=apart, max_lag=lag) for lag in (1, 2, 4, 8)),
        *(Setting(layout=apart, streams=count) for count in (32, 64, 128)),
    ]
    return Plan(
        num_repeats=3,
        num_steps=32,
        sweep_steps=32,
        sizes=(1, 4, 16, 32, 64, 128, 256),
        learning_rates=LEARNING_RATES,
        settings=[*conventional, *shared, *split_up],
    )


def quick_plan() -> Plan:
    """Enough points to interpolate, once, at the learning rate of the configuration."""
    apart = split()
    return Plan(
        num_repeats=1,
        num_steps=20,
        sweep_steps=0,
        sizes=(1, 32, 128),
        learning_rates=(),
        settings=[
            *(Setting(steps_per_round=rounds) for rounds in (1, 4, 8)),
            *(Setting(layout=apart, max_lag=lag) for lag in (2, 8)),
            Setting(layout=apart, streams=128),
        ],
    )


# ---- measuring -------------------------------------------------------------------------------------------------------


async def measure_all(plan: Plan) -> dict[str, Any]:
    """The sweep, the stages alone, and every setting as often as it is repeated, layout by layout."""
    config = with_tables(load_config(CONFIG), run={"samples_every": 0}, eval={"num_samples": 0})
    runs: dict[Setting, list[dict[str, Any]]] = {setting: [] for setting in plan.settings}
    generation: list[dict[str, Any]] = []
    training: list[dict[str, Any]] = []
    sweep: list[dict[str, Any]] = []
    costs: dict[str, model.Costs] = {}
    lengths: list[list[int]] = []
    prompt_tokens = 0.0
    for layout in dict.fromkeys(setting.layout for setting in plan.settings):
        async with KeptEngines(config, layout, MOST_STREAMS) as engines:
            if plan.learning_rates and not sweep:
                sweep = await _sweep(engines, config, plan)
                best = max(sweep, key=lambda row: row["reward_last"])
                config = with_tables(config, trainer={"learning_rate": best["learning_rate"]})
            costs[layout.name], trained, groups = await _alone(engines, layout, config, plan.sizes)
            generation += _generation_rows(layout, costs[layout.name].decode_s)
            training.append({"layout": layout.name, **trained})
            if not lengths:
                lengths, prompt_tokens = lengths_of(groups)
            for repeat in range(plan.num_repeats):
                for setting in (each for each in plan.settings if each.layout == layout):
                    seeded = msgspec.structs.replace(setting.applied(config), seed=repeat)
                    num_steps = setting.num_steps(plan.num_steps)
                    reports = await engines.run(seeded, num_steps)
                    runs[setting].append(summary(reports, setting.skipped(num_steps)))
                    print(f"{setting.name:40} {runs[setting][-1]['samples_per_s']:8.1f} samples/s", flush=True)
    rows = []
    for setting, results in runs.items():
        schedule = _schedule(setting, setting.applied(config))
        predicted = model.play(costs[setting.layout.name], schedule, lengths, prompt_tokens)
        rows.append(_row(setting, results, predicted))
    return {
        "learning_rate": config.trainer.learning_rate,
        "sweep": sweep,
        "generation_alone": generation,
        "training_alone": training,
        "rows": rows,
        "curves": [{"setting": setting.name, "runs": [run["curve"] for run in got]} for setting, got in runs.items()],
    }


async def _sweep(engines: KeptEngines, config: Config, plan: Plan) -> list[dict[str, Any]]:
    """G = 1 at each learning rate; the best has the highest mean reward over the last quarter of the steps."""
    rows = []
    for rate in plan.learning_rates:
        setting = Setting(steps_per_round=1)
        given = with_tables(setting.applied(config), trainer={"learning_rate": rate})
        rewards = [report.reward_mean for report in await engines.run(given, plan.sweep_steps)]
        quarter = len(rewards) // 4
        rows.append(
            {
                "learning_rate": rate,
                "reward_first": statistics.fmean(rewards[:quarter]),
                "reward_last": statistics.fmean(rewards[-quarter:]),
            }
        )
        print(rows[-1], flush=True)
    return rows


async def _alone(
    engines: KeptEngines, layout: Layout, config: Config, sizes: Sequence[int]
) -> tuple[model.Costs, dict[str, Any], list[Group]]:
    """The costs of both stages, each alone, what the trainer did, and the groups of the run that it was taken from.

    That run trains on groups in the order of their admission, so its first ones are a fair sample: in the order of
    completion they would be the short ones.
    """
    given = Setting(layout=layout, max_lag=ALONE_MAX_LAG).applied(config)
    with recorded() as run:
        reports = await engines.run(given, 16)
    decode = await decode_seconds(engines, given, sizes)
    training = await train_seconds(given, layout, run.batches)
    pause_s = statistics.median(report.pause_s for report in reports)
    between_s = statistics.median(
        report.time_s * (1 - report.trainer_busy) - report.wait_batch_s for report in reports[2:]
    )
    costs = model.Costs(
        decode_s=decode,
        train_fixed_s=training["fixed_s"],
        train_token_s=training["token_s"],
        update_s=max(0.0, between_s - pause_s),
        pause_s=pause_s,
        num_engines=layout.num_engines,
        num_ranks=layout.num_ranks,
        num_cores=NUM_CORES,
        shared=layout.engine_cores is None,
    )
    return costs, {**training, "pause_s": pause_s, "between_steps_s": between_s}, run.groups


def _generation_rows(layout: Layout, decode_s: dict[int, float]) -> list[dict[str, Any]]:
    """U(h) in tokens per second: what the engines of a layout sample with h sequences in each."""
    return [
        {
            "layout": layout.name,
            "sequences_per_engine": size,
            "decode_ms": 1000 * seconds,
            "tokens_per_s": size * layout.num_engines / seconds,
        }
        for size, seconds in decode_s.items()
    ]


def lengths_of(groups: Sequence[Group]) -> tuple[list[list[int]], float]:
    """Sampled tokens of every completion, by group, and the mean length of a prompt."""
    lengths = [[len(completion.token_ids) for completion in group.completions] for group in groups]
    return lengths, statistics.fmean(len(group.prompt.token_ids) for group in groups)


def summary(reports: list[StepReport], skipped: int) -> dict[str, Any]:
    """The figures of one run, its first steps left out of the rates."""
    counted = reports[skipped:]
    seconds = sum(report.time_s for report in counted)

    def busy(shares: list[float]) -> float:
        """Over the time of all steps: the first step of a round takes most of it, and its trainer waits."""
        return sum(share * report.time_s for share, report in zip(shares, counted, strict=True)) / seconds

    times = np.cumsum([report.time_s for report in reports])
    samples = np.cumsum([report.samples for report in reports])
    return {
        "samples_per_s": sum(report.samples for report in counted) / seconds,
        "ess": statistics.fmean(report.ess for report in counted),
        "lag_mean": statistics.fmean(report.lag_mean for report in counted),
        "lag_max": max(report.lag_max for report in counted),
        "reward_last": statistics.fmean(report.reward_mean for report in reports[-len(reports) // 4 :]),
        "trainer_busy": busy([report.trainer_busy for report in counted]),
        "engine_busy": busy([report.engine_busy for report in counted]),
        "wait_batch_s": statistics.fmean(report.wait_batch_s for report in counted),
        "pause_s": statistics.fmean(report.pause_s for report in counted),
        "length_mean": statistics.fmean(report.length_mean for report in counted),
        "curve": {
            "seconds": [round(float(value), 2) for value in times],
            "samples": [int(value) for value in samples],
            "reward": [round(report.reward_mean, 4) for report in reports],
        },
    }


def _schedule(setting: Setting, config: Config) -> model.Schedule:
    """What the model plays for a setting."""
    pipeline = config.pipeline
    buffer = parts.make_buffer(config)
    return model.Schedule(
        groups_per_step=pipeline.groups_per_step,
        group_size=pipeline.group_size,
        num_slots=buffer.num_slots,
        in_order=setting.streams is None,
        max_ahead=pipeline.batches_ahead * pipeline.groups_per_step,
        steps_per_round=parts.make_pacing(config).steps_per_round,
        max_streams=config.engine.count * config.engine.max_num_seqs,
    )


def _row(setting: Setting, results: list[dict[str, Any]], predicted: dict[str, Any]) -> dict[str, Any]:
    rate = harness.spread([result["samples_per_s"] for result in results])
    names = ("ess", "lag_mean", "lag_max", "reward_last", "trainer_busy", "engine_busy", "pause_s")
    figures = {name: statistics.median(result[name] for result in results) for name in names}
    return {
        "setting": setting.name,
        "samples_per_s": rate,
        **figures,
        "predicted_samples_per_s": predicted["samples_per_s"],
        "predicted_over_measured": predicted["samples_per_s"] / rate["median"],
    }


def measure(quick: bool) -> dict[str, Any]:
    """Everything, one process after another."""
    found = uvloop.run(measure_all(quick_plan() if quick else full_plan()))
    return {**compare(found["rows"]), **found}


if __name__ == "__main__":
    harness.main(__doc__, measure, tables=TABLES)
