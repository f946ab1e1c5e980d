"""Whether the lag governor holds its ESS in a real run through a step change of the generation speed.

    python benchmarks/governor.py [--quick] --out FILE.json

Real engines and a real trainer (``configs/math.toml`` with a constant learning rate and ``pipeline.target_ess``). Half
way one of the two engines is removed, as ``prl engines remove`` does it: generation is slower from one moment on, and
training faster, where both share the cores.

Headline: mean -log(ESS) over the one that is aimed at, the worse of the two windows at the end of each half; 1 is held
exactly. Target: within a factor of 2, and the slots at rest (largest over smallest in a window at most 1.6). A factor,
since single batches of 256 samples differ by as much: what is governed is a mean.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import harness

import prl

CONFIG = Path(__file__).parent.parent / "configs/math.toml"
TARGET_ESS, MAX_LAG = 0.9985, 12
FACTOR, REST = 2.0, 1.6
SETTINGS = (
    "eval.num_samples=0",
    "run.checkpoint_every=0",
    "pipeline.groups_per_step=8",
    "trainer.schedule=constant",
    f"pipeline.max_lag={MAX_LAG}",
    f"pipeline.target_ess={TARGET_ESS}",
)


async def run(num_steps: int, folder: Path) -> list[dict[str, Any]]:
    """Every step's ESS, lag, slots, engines and time."""
    config = prl.load_config(CONFIG, [*SETTINGS, f"run.num_steps={num_steps}"])
    rows: list[dict[str, Any]] = []
    async with prl.Pipeline(config, run_dir=folder) as pipeline:
        for number in range(num_steps):
            if number == num_steps // 2:
                await pipeline.remove_engine("engine-1")
            report = await pipeline.step()
            slots = pipeline.status().slots
            rows.append(
                {
                    "step": report.step,
                    "ess": report.ess,
                    "lag_mean": report.lag_mean,
                    "lag_max": report.lag_max,
                    "slots": slots.num_slots if slots is not None else 0,
                    "gen_tok_s": report.gen_tok_s,
                    "time_s": report.time_s,
                }
            )
    return rows


def window(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The end of a half in one row."""
    loss, slots = statistics.fmean(-math.log(row["ess"]) for row in rows), [row["slots"] for row in rows]
    return {
        "half": name,
        "steps": f"{rows[0]['step']} to {rows[-1]['step']}",
        "ESS": math.exp(-loss),
        "loss / aim": loss / -math.log(TARGET_ESS),
        "slots": f"{min(slots)} to {max(slots)}",
        "rest": max(slots) / min(slots),
        "lag mean": statistics.fmean(row["lag_mean"] for row in rows),
        "tok/s generated": statistics.fmean(row["gen_tok_s"] for row in rows),
    }


def measure(quick: bool) -> dict[str, Any]:
    """Both halves."""
    num_steps = 80 if quick else 160
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(run(num_steps, Path(folder) / "run"))
    half, last = num_steps // 2, num_steps // 5
    windows = [window("two engines", rows[half - last : half]), window("one engine", rows[-last:])]
    off = max((row["loss / aim"] for row in windows), key=lambda ratio: abs(math.log(max(ratio, 1e-9))))
    is_held = all(1 / FACTOR <= row["loss / aim"] <= FACTOR and row["rest"] <= REST for row in windows)
    return {
        "headline": off,
        "target": f"1 within a factor of {FACTOR:g}, slots at rest within {REST:g}",
        "target_met": is_held,
        "aimed_ess": TARGET_ESS,
        "windows": windows,
        "by_step": rows,
    }


if __name__ == "__main__":
    harness.main(str(__doc__), measure, tables=("windows", "by_step"))
