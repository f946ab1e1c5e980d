"""Which use of the machine and which learning rate is best for each side of ``vs_trl.py``, at seed 0.

    python benchmarks/vs_trl_sweep.py [--quick] --out FILE.json

First the set-ups: seconds a step, at the rate in ``TASKS``, of a few steps after the first ones. Then the rates, half,
once and twice that of the configuration, with the set-up in ``TASKS``: seconds to the accuracy. ``TASKS`` in
``vs_trl.py`` has the best of both. ``--quick`` compares the set-ups of the short task alone. Headline: the largest
gain of any other set-up or rate over the one in ``TASKS``, as a ratio of seconds; up to the target of 1.15 those in
``TASKS`` stand.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import harness
from accuracy import Examiner
from vs_trl import HERE, SIDES, TASKS, Task, Trl, measure_side

from prl.settings import load_config

FACTORS = (0.5, 1.0, 2.0)
TARGET = 1.15
NUM_STEPS, NUM_WARM_UP = 12, 4
"""Of a run that measures a set-up: its steps, and how many of them are not counted."""

PRL = (
    ("engine.count=2", "engine.max_num_seqs=128"),
    ("engine.count=2", "engine.max_num_seqs=128", "pipeline.max_lag=0"),
    ("engine.count=2", "engine.max_num_seqs=128", "trainer.num_ranks=2"),
    ("engine.count=2", "engine.max_num_seqs=128", "trainer.num_ranks=2", "pipeline.max_lag=0"),
    ("trainer.max_tokens_per_microbatch=2048",),
    ("trainer.max_tokens_per_microbatch=4096",),
    ("engine.max_num_seqs=64",),
)
"""Other set-ups of prl, as what they change in that of ``TASKS``."""
TRL = (
    Trl(processes=2, threads=1, microbatch=8),
    Trl(processes=2, threads=1, microbatch=16),
    Trl(processes=2, threads=1, microbatch=32),
    Trl(processes=1, threads=2, microbatch=32),
    Trl(processes=1, threads=2, microbatch=64),
    Trl(processes=1, threads=2, microbatch=32, generation="batching"),
)


def setups_of(task: Task, side: str) -> list[Task]:
    """The task with each set-up of one side, that of ``TASKS`` first."""
    if side == "prl":
        return [task, *(task._replace(prl=(*task.prl, *changed)) for changed in PRL)]
    return [task, *(task._replace(trl=trl) for trl in TRL if trl != task.trl)]


def seconds_a_step(task: Task, side: str) -> float:
    """Of the steps behind the warm-up."""
    rate = task.prl_learning_rate if side == "prl" else task.trl_learning_rate
    with tempfile.TemporaryDirectory() as name:
        seconds = SIDES[side](task._replace(num_steps=NUM_STEPS, every=NUM_STEPS), 0, Path(name), rate)["seconds"]
    return float(seconds[-1] - seconds[NUM_WARM_UP - 1]) / (NUM_STEPS - NUM_WARM_UP)


def sweep_setups(task: Task) -> tuple[float, list[dict[str, Any]]]:
    """The gain of the best set-up of either side over the chosen one, and a row for each."""
    gain, rows = 1.0, []
    for side in SIDES:
        setups = setups_of(task, side)
        seconds = [seconds_a_step(setup, side) for setup in setups]
        gain = max(gain, seconds[0] / min(seconds))
        for setup, took in zip(setups, seconds, strict=True):
            shown = setup.prl[len(task.prl) :] if side == "prl" else tuple(setup.trl)
            rows.append({"task": task.name, "side": side, "setup": " ".join(map(str, shown)), "seconds_a_step": took})
    return gain, rows


def sweep_rates(task: Task) -> tuple[float, list[dict[str, Any]]]:
    """The gain of the best learning rate of either side over the chosen one, and a row for each."""
    gain, rows = 1.0, []
    config = load_config(HERE.parent / task.config)
    examiner = Examiner(config)
    for side in SIDES:
        chosen = task.prl_learning_rate if side == "prl" else task.trl_learning_rate
        rates = sorted({chosen, *(factor * config.trainer.learning_rate for factor in FACTORS)})
        runs = [measure_side(task, side, 0, rate, examiner) for rate in rates]
        seconds = {run["learning_rate"]: run["to_accuracy_s"] or float("inf") for run in runs}
        if min(seconds.values()) < float("inf"):
            gain = max(gain, seconds[chosen] / min(seconds.values()))
        keys = ("task", "side", "learning_rate", "to_accuracy_s", "accuracy_last", "samples_s")
        rows += [{key: run[key] for key in keys} | {"chosen": run["learning_rate"] == chosen} for run in runs]
    return gain, rows


def measure(quick: bool) -> dict[str, Any]:
    """Every task, side, set-up and rate."""
    gains, setups, rates = [], [], []
    for task in TASKS[:1] if quick else TASKS:
        gain, rows = sweep_setups(task)
        gains, setups = [*gains, gain], setups + rows
    for task in () if quick else TASKS:
        gain, rows = sweep_rates(task)
        gains, rates = [*gains, gain], rates + rows
    headline = min(max(gains), 1e9)  # JSON knows no infinity
    return {
        "headline": headline,
        "target": f"at most {TARGET}",
        "target_met": headline <= TARGET,
        "setups": setups,
        "rates": rates,
    }


if __name__ == "__main__":
    harness.main(__doc__, measure, tables=["setups", "rates"])
