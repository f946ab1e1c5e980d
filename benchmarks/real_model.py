"""Whether a real model learns on two cores: SmolLM2-135M-Instruct on word problems, reward against step.

    python benchmarks/real_model.py [--quick] --out FILE.json

Headline: the slope of the mean reward of a step's samples against the step, per step, of ``configs/smollm2-135m.toml``
(target: its 95 % confidence interval lies above 0 in every run). The slope is that of ordinary least squares; its
interval is slope +- t(0.975, n - 2) s / sqrt(sum (x - mean x)^2), with s^2 the sum of squared residuals over n - 2.
The steps' errors are taken as independent: each step trains on prompts of its own. Where the rise is no straight line
the curve counts as residual, and the interval is wider than the noise alone would make it.

Beside it: accuracy on held-out problems before and after, greedy, with Wilson's 95 % intervals, and Newcombe's of
their difference (which takes the two for independent samples; they are the same problems, so it errs on the wide side);
samples/s of the steps; peak memory of all processes together. Three seeds; ``--quick`` takes one seed and 10 steps,
which is too few to expect anything of the slope.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import main_job

from prl.models.make_smollm2 import OUT, make
from prl.settings import load_config

CONFIG = Path(__file__).parent.parent / "configs/smollm2-135m.toml"
MODEL = CONFIG.parent.parent / OUT
Z_95 = 1.959964


def t_quantile(degrees: int) -> float:
    """The 0.975 quantile of Student's t: its expansion around the normal's (Abramowitz and Stegun, 26.7.5).

    Off by less than 0.002 from 8 degrees of freedom on.
    """
    z, v = Z_95, degrees
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v**power for power, term in enumerate(terms, start=1))


def slope(values: Sequence[float]) -> tuple[float, float]:
    """Least-squares slope of ``values`` against 1, 2, ..., and the half width of its 95 % interval. At least three."""
    n = len(values)
    steps = range(1, n + 1)
    found = statistics.linear_regression(steps, values)
    residual = sum((y - found.intercept - found.slope * x) ** 2 for x, y in zip(steps, values, strict=True))
    spread = sum((x - (n + 1) / 2) ** 2 for x in steps)
    return found.slope, t_quantile(n - 2) * math.sqrt(residual / (n - 2) / spread)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of ``n``."""
    middle, scale = share + Z_95**2 / (2 * n), 1 + Z_95**2 / n
    half = Z_95 * math.sqrt(share * (1 - share) / n + Z_95**2 / (4 * n * n))
    return (middle - half) / scale, (middle + half) / scale


def gain(before: float, after: float, n: int) -> tuple[float, float]:
    """Newcombe's 95 % interval of ``after - before``, two shares of ``n`` each."""
    (low_before, high_before), (low_after, high_after) = wilson(before, n), wilson(after, n)
    rise = after - before
    return (
        rise - math.hypot(after - low_after, high_before - before),
        rise + math.hypot(high_after - after, before - low_before),
    )


def run(seed: int, settings: Sequence[str]) -> dict[str, Any]:
    """One run of the configuration."""
    settings = [f"seed={seed}", f"model={MODEL}", *settings]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        job = main_job.run_job(folder, settings, config=CONFIG)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
        events = [json.loads(line) for line in (folder / "events.jsonl").read_bytes().splitlines()]
        samples = json.loads((folder / "summary.json").read_text())["samples"]
    rewards = [line["reward_mean"] for line in lines]
    rise, half = slope(rewards)
    n = load_config(CONFIG).eval.num_samples
    return {
        "seed": seed,
        "steps": len(lines),
        "slope_per_step": round(rise, 5),
        "slope_95": [round(rise - half, 5), round(rise + half, 5)],
        "reward_first_5": round(statistics.fmean(rewards[:5]), 4),
        "reward_last_5": round(statistics.fmean(rewards[-5:]), 4),
        "eval_before": job["eval_before"],
        "eval_before_95": [round(bound, 4) for bound in wilson(job["eval_before"], n)],
        "eval_after": job["eval_after"],
        "eval_after_95": [round(bound, 4) for bound in wilson(job["eval_after"], n)],
        "eval_gain_95": [round(bound, 4) for bound in gain(job["eval_before"], job["eval_after"], n)],
        "samples_per_s": round(samples / job["steps_s"], 3),
        "steps_s": job["steps_s"],
        "wall_s": job["wall_s"],
        "peak_gib": job["peak_gib"],
        "lag_max": job["lag_max"],
        "verify_gap_max": max(event.get("verify_gap_before") or 0.0 for event in events),
        "rewards": rewards,
    }


def measure(quick: bool) -> dict[str, Any]:
    """Three seeds, or one short run."""
    print(make(MODEL, None), flush=True)
    runs = [run(seed, ["run.num_steps=10"] if quick else []) for seed in range(1 if quick else 3)]
    rewards = {f"rewards_seed_{done['seed']}": done.pop("rewards") for done in runs}
    slopes = harness.spread([done["slope_per_step"] for done in runs])
    return {
        "headline": slopes["median"],
        "target": "the 95 % interval of the slope of reward against step lies above 0",
        "target_met": not quick and all(done["slope_95"][0] > 0 for done in runs),
        "slope_per_step": slopes,
        "samples_per_s": harness.spread([done["samples_per_s"] for done in runs]),
        "peak_gib": harness.spread([done["peak_gib"] for done in runs]),
        "runs": runs,
        **rewards,
    }


if __name__ == "__main__":
    harness.main(__doc__, measure, tables=["runs"])
