"""How well a machine is predicted: measure one setting, predict three others, run them, compare (target: within 10 %).

    python benchmarks/plan.py --quick        # on two cores, about five minutes
    python benchmarks/plan.py

One run of configs/math.toml is measured, in a setting in which both stages have to wait for each other: so its timeline
has moments of each alone and of both together, and says what they cost one another. From what it leaves in its folder,
and from nothing else, the samples a second of three other settings are predicted by simulating the real controller
(``prl/simulate/calibrate.py``); then each of them is run. Target: every prediction within 10 %.

A machine's own speed wanders between runs that are minutes apart, and no prediction knows by how much. So the measured
setting is run again between every two others, and what a setting reached is taken against the mean of the two runs
around it: ``drift`` is how much faster these were than the run that was measured, and ``off`` is without it.

Invariant: predictions are made, and printed, before the runs that they are of.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import machine, table, versions

from prl.settings import load_config
from prl.simulate import costs_of, report_of, simulate
from prl.simulate.calibrate import measured_in

ROOT = Path(__file__).parent.parent
TARGET = 0.1
MEASURED = {"pipeline.max_lag": 1}
PREDICTED: list[dict[str, Any]] = [
    {"pipeline.max_lag": 0},
    {"pipeline.max_lag": 6},
    {"pipeline.max_lag": 1, "pipeline.groups_per_step": 8},
]
COMMON = {"eval.num_samples": 0, "run.samples_every": 1, "run.checkpoint_every": 0, "control.enabled": "false"}


def main() -> None:
    """Measure, predict, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter runs: five minutes in all")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "math.toml")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="shared by engines and ranks")
    parser.add_argument("--apart", action="store_true", help="every engine and rank has an accelerator of its own")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/plan"))
    arguments = parser.parse_args()
    num_steps = 30 if arguments.quick else 80
    shared = None if arguments.apart else arguments.cores
    arguments.out.mkdir(parents=True, exist_ok=True)
    run_dir = arguments.out / "measured"
    print(f"measuring {said(MEASURED)}")
    _run(arguments.config, MEASURED, num_steps, run_dir)
    measured = measured_in(run_dir, shared)
    costs = {name: getattr(measured, name) for name in measured.__struct_fields__ if name != "groups"}
    print("measured: " + ", ".join(f"{name} {value:.4g}" for name, value in costs.items()))
    rows: list[dict[str, Any]] = [
        {"setting": said(each), "predicted": _predict(arguments.config, each, shared, measured)} for each in PREDICTED
    ]
    print(table(rows))
    own = before = _samples_per_s(run_dir)
    for index, (row, overrides) in enumerate(zip(rows, PREDICTED, strict=True)):
        folder, again = arguments.out / f"predicted-{index}", arguments.out / f"again-{index}"
        _run(arguments.config, overrides, num_steps, folder)
        _run(arguments.config, MEASURED, num_steps, again)
        after = _samples_per_s(again)
        drift = (before + after) / 2 / own
        before = after
        row |= {"measured": _samples_per_s(folder), "drift": drift - 1}
        row["off"] = row["predicted"] / (row["measured"] / drift) - 1
    worst = max(abs(row["off"]) for row in rows)
    print(table([row | {key: f"{row[key]:+.1%}" for key in ("drift", "off")} for row in rows]))
    print(f"largest error {worst:.1%}, target {TARGET:.0%}: {'met' if worst <= TARGET else 'missed'}")
    result = {
        "headline": worst,
        "target_met": worst <= TARGET,
        "rows": rows,
        "costs": costs,
        "machine": machine(),
        "versions": versions(),
    }
    (arguments.out / "plan.json").write_text(json.dumps(result, indent=2) + "\n")


def said(overrides: dict[str, Any]) -> str:
    """The keys as they are set."""
    return " ".join(f"{key}={value}" for key, value in overrides.items())


def _overrides(*tables: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for one in tables for key, value in one.items()]


def _run(config: Path, overrides: dict[str, Any], num_steps: int, folder: Path) -> None:
    """One real run; what is in the folder from before is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    words = _overrides(COMMON, overrides, {"run.num_steps": num_steps})
    command = [sys.executable, "-m", "prl", "run", str(config), "--plain", "--run-dir", str(folder), "--set", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _samples_per_s(folder: Path) -> float:
    """Of a run, without its first quarter: the rest's samples over the rest's time."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
    lines = lines[len(lines) // 4 :]
    return sum(line["samples"] for line in lines) / sum(line["time_s"] for line in lines)


def _predict(config: Path, overrides: dict[str, Any], shared: int | None, measured: Any) -> float:
    """Of a setting, from what was measured in another."""
    words = _overrides(COMMON, overrides, {"run.num_steps": 60})
    if shared is not None:
        words.append(f"simulate.num_accelerators={shared}")
    loaded = load_config(config, words)
    costs = costs_of(loaded, measured)
    return report_of(loaded, costs, simulate(loaded, costs)).samples_per_s


if __name__ == "__main__":
    main()
