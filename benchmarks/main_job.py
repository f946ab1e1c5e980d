"""The main job as one number: seconds from the command to its end, start-up included, and the memory it took.

    python benchmarks/main_job.py [--quick] --out FILE.json

Headline: wall seconds of ``prl run configs/math.toml`` (target on two cores: at most 240), beside the peak memory of
all its processes together (target: at most 8 GiB; shared pages counted once), the accuracy before and after, and the
share of samples that more than one version of the weights wrote. ``--quick`` takes 15 steps instead of 60, once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import harness
import psutil

CONFIG = Path(__file__).parent.parent / "configs/math.toml"
SAMPLE_EVERY_S = 1.0
WALL_TARGET_S, PEAK_TARGET_GIB = 240.0, 8.0


def memory_of(pid: int) -> int:
    """Proportional memory of a process and all below it, in bytes."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
    return total


def run_job(folder: Path, settings: list[str], *, config: Path = CONFIG) -> dict[str, Any]:
    """Run a configuration once and measure it."""
    command = [sys.executable, "-m", "prl", "run", str(config), "--plain", "--run-dir", str(folder)]
    for setting in settings:
        command += ["--set", setting]
    started, peak = time.monotonic(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as job:
        while job.poll() is None:
            peak = max(peak, memory_of(job.pid))
            time.sleep(SAMPLE_EVERY_S)
    wall_s = time.monotonic() - started
    if job.returncode != 0:
        sys.exit(f"the job ended with {job.returncode}")
    summary = json.loads((folder / "summary.json").read_text())
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_bytes().splitlines()]
    mixed = sum(len(set(sample["versions"])) > 1 for sample in samples)
    return {
        "wall_s": round(wall_s, 1),
        "peak_gib": round(peak / 2**30, 2),
        "steps": summary["steps"],
        "steps_s": round(summary["wall_s"], 1),
        "eval_before": summary["eval_before"],
        "eval_after": summary["eval_after"],
        "lag_max": summary["lag_max"],
        "share_of_samples_of_several_versions": round(mixed / len(samples), 4),
    }


def measure(quick: bool) -> dict[str, Any]:
    """Three runs of the job, or one short one."""
    runs = []
    for _ in range(1 if quick else 3):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(run_job(Path(folder) / "run", ["run.num_steps=15"] if quick else []))
    wall, peak = (harness.spread([run[key] for run in runs]) for key in ("wall_s", "peak_gib"))
    return {
        "headline": wall["median"],
        "target": "at most 240 s and 8 GiB",
        "target_met": wall["max"] <= WALL_TARGET_S and peak["max"] <= PEAK_TARGET_GIB,
        "wall_s": wall,
        "peak_gib": peak,
        "runs": runs,
    }


if __name__ == "__main__":
    harness.main(__doc__, measure, tables=["runs"])
