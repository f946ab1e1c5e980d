"""How long the page waits for an answer about a large run.

    python benchmarks/page.py [--quick] --out FILE.json

A run folder of 100,000 steps and 1,000,000 samples is made up (``tests/view/recorded.py``), and what the page asks for
is asked of its server's own functions, down to the bytes that are sent: each question once cold, which builds what is
kept of the files, then five times. Headline: the median of the slowest question (target: below 200 ms).
``--quick`` takes a tenth of both.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

from prl.view.api import Api, encode
from prl.view.run import IndexingError
from prl.view.runs import Runs

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.view.recorded import START, STEP_S, make

TARGET_MS = 200.0
NUM_REPEATS = 5
CURVES = "reward_mean,length_mean,length_max,entropy,kl_behaviour,grad_norm,lr,loss,ess,lag_mean,lag_max"


def questions(num_steps: int, num_groups: int) -> dict[str, tuple[str, dict[str, str]]]:
    """What the views ask, by a name: the path behind the run, and the query."""
    middle = START + num_steps * STEP_S / 2
    return {
        "curves by step": ("series", {"keys": CURVES, "points": "1000"}),
        "curves by samples": ("series", {"keys": CURVES, "x": "samples"}),
        "histograms of the lag": ("histograms", {"key": "lag_histogram"}),
        "histograms of the ratio": ("histograms", {"key": "ratio_histogram"}),
        "evaluations": ("evaluations", {}),
        "timeline, whole": ("timeline", {"gauges": "1"}),
        "timeline, 1,000 s": ("timeline", {"gauges": "1", "from": str(middle), "to": str(middle + 1000)}),
        "timeline, a minute": ("timeline", {"gauges": "1", "from": str(middle), "to": str(middle + 60)}),
        "events": ("events", {"order": "newest"}),
        "events, searched in vain": ("events", {"q": "notthere"}),
        "run": ("run", {}),
        "runs beside it": ("siblings", {}),
        "groups, newest": ("groups", {"sort": "-step"}),
        "groups by reward, last page": ("groups", {"sort": "reward", "offset": str(num_groups - 50)}),
        "groups of some steps, by reward": ("groups", {"from": str(num_steps // 100), "sort": "reward"}),
        "groups cut off": ("groups", {"finish": "length"}),
        "samples with a word, rare": ("groups", {"q": "word17"}),
        "samples with two words, by reward": ("groups", {"q": "user as", "sort": "-reward"}),
    }


def answered(api: Api, run: str, what: str, query: dict[str, str]) -> int:
    """Bytes of the answer, once what it is read from is there."""
    while True:
        try:
            return len(encode(api.of_run(run, what, query)))
        except IndexingError:
            time.sleep(0.05)


def measure(quick: bool) -> dict[str, Any]:
    """Every question, cold and then warm."""
    num_steps, num_samples = (10_000, 100_000) if quick else (100_000, 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large"
        make(path, num_steps=num_steps, num_samples=num_samples)
        api, rows = Api(Runs(path)), []
        for name, (what, query) in questions(num_steps, num_samples // 8).items():
            took, size = [], 0
            for _ in range(1 + NUM_REPEATS):
                began = time.perf_counter()
                size = answered(api, path.name, what, query)
                took.append(1000 * (time.perf_counter() - began))
            rows.append({"question": name, "ms": harness.spread(took[1:]), "cold_ms": took[0], "bytes": size})
    slowest = max(rows, key=lambda row: row["ms"]["median"])
    return {
        "headline": slowest["ms"]["median"],
        "headline_is": f"milliseconds, {slowest['question']}",
        "target": f"below {TARGET_MS:g}",
        "target_met": slowest["ms"]["median"] < TARGET_MS,
        "num_steps": num_steps,
        "num_samples": num_samples,
        "answers": rows,
    }


if __name__ == "__main__":
    harness.main(__doc__, measure, tables=["answers"])
