"""Which learning rate is best for each side of ``vs_trl.py``: seconds to the accuracy at seed 0.

    python benchmarks/vs_trl_sweep.py [--quick] --out FILE.json

Both sides try the same rates: half, once and twice that of the configuration. ``TASKS`` in ``vs_trl.py`` has the best.
``--quick`` looks at the short task alone. Headline: the largest gain of any other rate over the one in ``TASKS``, as
a ratio of seconds; up to the target of 1.15 the rates in ``TASKS`` stand.
"""

from __future__ import annotations

from typing import Any

import harness
from accuracy import Examiner
from vs_trl import HERE, SIDES, TASKS, measure_side

from prl.settings import load_config

FACTORS = (0.5, 1.0, 2.0)
TARGET = 1.15


def measure(quick: bool) -> dict[str, Any]:
    """Every task, side and rate."""
    rows, gain = [], 1.0
    for task in TASKS[:1] if quick else TASKS:
        config = load_config(HERE.parent / task.config)
        examiner = Examiner(config)
        for side in SIDES:
            chosen = task.prl_learning_rate if side == "prl" else task.trl_learning_rate
            rates = sorted({chosen, *(factor * config.trainer.learning_rate for factor in FACTORS)})
            runs = [measure_side(task, side, 0, rate, examiner) for rate in rates]
            seconds = {run["learning_rate"]: run["to_accuracy_s"] or float("inf") for run in runs}
            gain = max(gain, seconds[chosen] / min(seconds.values()))
            keys = ("task", "side", "learning_rate", "to_accuracy_s", "accuracy_last", "samples_s")
            rows += [{key: run[key] for key in keys} | {"chosen": run["learning_rate"] == chosen} for run in runs]
    return {"headline": gain, "target": f"at most {TARGET}", "target_met": gain <= TARGET, "rates": rows}


if __name__ == "__main__":
    harness.main(__doc__, measure, tables=["rates"])
