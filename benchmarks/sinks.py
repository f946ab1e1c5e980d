"""What it costs to be looked at: the default run with every tracker and a Prometheus scraper, and without.

    python benchmarks/sinks.py [--quick] --out FILE.json

Headline: seconds of the steps with TensorBoard, Weights & Biases (offline), MLflow and trackio on, and ``/metrics``
scraped every five seconds, over those with none of it (target: below 1.02). The two sides run in turns, each first as
often as second. The first steps, in which trackers and engines warm up together, are left out, and are in the walls of
the whole jobs. The processor time of all processes is beside it: it says what is spent even where the steps do not get
longer. ``--quick`` takes two pairs of 25 steps instead of six of 60.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import harness

CONFIG = Path(__file__).parent.parent / "configs/math.toml"
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
SCRAPE_EVERY_S = 5.0
WARM_UP_STEPS = 5
TARGET = 1.02


def scrape(folder: Path) -> int:
    """Read ``/metrics`` once; the bytes, 0 while nobody answers."""
    with suppress(OSError, ValueError):
        address = json.loads((folder / "control.json").read_text())
        headers = {"Authorization": f"Bearer {address['token']}"}
        request = urllib.request.Request(f"{address['url']}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=SCRAPE_EVERY_S) as answer:
            return len(answer.read())
    return 0


def processor_s() -> float:
    """Of all children so far, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_job(folder: Path, num_steps: int, *, seen: bool) -> dict[str, Any]:
    """Run the job once, with or without everything that looks on."""
    command = [sys.executable, "-m", "prl", "run", str(CONFIG), "--plain", "--run-dir", str(folder)]
    command += ["--set", f"run.num_steps={num_steps}"]
    if seen:
        for index, name in enumerate(TRACKERS):
            command += ["--set", f"trackers.{index}.name={name}"]
    environment = {**os.environ, "WANDB_MODE": "offline", "TRACKIO_DIR": str(folder.parent / "trackio")}
    environment.pop("MLFLOW_TRACKING_URI", None)
    started, processor_before, num_scrapes = time.monotonic(), processor_s(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as job:
        while True:
            with suppress(subprocess.TimeoutExpired):
                job.wait(SCRAPE_EVERY_S)
                break
            num_scrapes += bool(seen and scrape(folder))
    if job.returncode != 0:
        sys.exit(f"the job ended with {job.returncode}")
    wall_s = time.monotonic() - started
    steps = [json.loads(line)["time_s"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    states = [json.loads(path.read_text()) for path in (folder / "trackers").glob("*.json")]
    complete = all(state["is_finished"] and state["sent"]["metrics.jsonl"] == num_steps for state in states)
    if len(states) != (len(TRACKERS) if seen else 0) or not complete:
        sys.exit(f"the trackers did not get every step: {states}")
    return {
        "side": "seen" if seen else "unseen",
        "steps_s": round(sum(steps[WARM_UP_STEPS:]), 3),
        "wall_s": round(wall_s, 1),
        "processor_s": round(processor_s() - processor_before, 1),
        "scrapes": num_scrapes,
    }


def measure(quick: bool) -> dict[str, Any]:
    """Pairs of runs, each side first in every other one."""
    num_pairs, num_steps = (2, 25) if quick else (6, 60)
    runs: list[dict[str, Any]] = []
    for pair in range(num_pairs):
        for seen in (pair % 2 == 0, pair % 2 == 1):
            with tempfile.TemporaryDirectory() as folder:
                runs.append({"pair": pair, **run_job(Path(folder) / "run", num_steps, seen=seen)})
    sides = {side: [run for run in runs if run["side"] == side] for side in ("seen", "unseen")}
    found = {
        name: harness.ratios([run[name] for run in sides["seen"]], [run[name] for run in sides["unseen"]])
        for name in ("steps_s", "wall_s", "processor_s")
    }
    return {
        "headline": found["steps_s"]["median"],
        "target": f"below {TARGET}",
        "target_met": found["steps_s"]["median"] < TARGET,
        "steps_ratio": found["steps_s"],
        "wall_ratio": found["wall_s"],
        "processor_ratio": found["processor_s"],
        "runs": runs,
    }


if __name__ == "__main__":
    harness.main(__doc__, measure, tables=["runs"])
