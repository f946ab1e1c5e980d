"""What overlapping costs: each stage alone on its core, and both at once in the pipeline.

    python benchmarks/stage_efficiency.py [--quick] --out FILE.json

The split: one engine on a core, one trainer rank and the controller on another, on ``benchmarks/
long_tail.toml`` without a bound on the lag. Headline: the pipeline's tokens per second over those of the slower stage
alone (target: at least 0.9). The generator alone keeps as many streams open as the pipeline had on average; the trainer
alone trains on batches that the pipeline trained on. ``--quick`` takes fewer steps, once.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import harness
import uvloop
from kept_engines import KeptEngines, split, with_tables
from stages import decode_seconds, recorded, train_seconds

from prl import StepReport, load_config

CONFIG = Path(__file__).parent / "long_tail.toml"
STREAMS = 128
SKIPPED_STEPS = 6
TARGET = 0.9


async def measure_all(num_repeats: int, num_steps: int) -> dict[str, Any]:
    """Pipeline, generator and trainer, in turn and as often as they are repeated."""
    loaded = load_config(CONFIG)
    config = with_tables(
        loaded,
        run={"samples_every": 0},
        eval={"num_samples": 0},
        pipeline={"max_lag": None},
        engine={"count": 1, "max_num_seqs": STREAMS},
        trainer={"num_ranks": 1},
    )
    rows, layout = [], split()
    async with KeptEngines(config, layout, STREAMS) as engines:
        for _ in range(num_repeats):
            with recorded() as trained:
                reports = (await engines.run(config, num_steps))[SKIPPED_STEPS:]
            streams = round(statistics.fmean(engines.running[SKIPPED_STEPS:]))
            decode = await decode_seconds(engines, config, [streams])
            training = await train_seconds(config, layout, trained.batches)
            rows.append(_row(reports, streams, streams / decode[streams], training["sampled_tokens_per_s"]))
            print(harness.table(rows[-1:]), flush=True)
    return {"rows": rows}


def _row(reports: list[StepReport], streams: int, generator: float, trainer: float) -> dict[str, Any]:
    """One repeat, in sampled tokens per second."""
    seconds = sum(report.time_s for report in reports)
    pipeline = sum(report.tokens_trained for report in reports) / seconds
    return {
        "streams": streams,
        "generator_tokens_per_s": generator,
        "trainer_tokens_per_s": trainer,
        "pipeline_tokens_per_s": pipeline,
        "slower_stage": "generator" if generator < trainer else "trainer",
        "efficiency": pipeline / min(generator, trainer),
        "trainer_busy": statistics.fmean(report.trainer_busy for report in reports),
        "engine_busy": statistics.fmean(report.engine_busy for report in reports),
        "wait_batch_s": statistics.fmean(report.wait_batch_s for report in reports),
        "pause_s": statistics.fmean(report.pause_s for report in reports),
        "loop_lag_ms": statistics.fmean(report.loop_lag_ms for report in reports),
    }


def measure(quick: bool) -> dict[str, Any]:
    """Three repeats, or a short one."""
    found = uvloop.run(measure_all(1, 24) if quick else measure_all(3, 60))
    efficiency = harness.spread([row["efficiency"] for row in found["rows"]])
    return {
        "headline": efficiency["median"],
        "target": f"at least {TARGET} of the slower stage alone",
        "target_met": efficiency["median"] >= TARGET,
        "efficiency": efficiency,
        **found,
    }


if __name__ == "__main__":
    harness.main(__doc__, measure, tables=["rows"])
