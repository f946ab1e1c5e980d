"""What it costs to be looked at: the default run with trackers, a Prometheus scraper and its page open, and without.

    python benchmarks/sinks.py [--quick] --out FILE.json

Headline: seconds of the steps with TensorBoard, Weights & Biases (offline), MLflow and trackio on, ``/metrics`` scraped
every five seconds, and somebody who listens to the page's stream and asks for all of its views every second, over those
with none of it (target: below 1.02). The two sides run in turns, each first as
often as second. The first steps, in which trackers and engines warm up together, are left out, and are in the walls of
the whole jobs. The processor time of all processes is beside it: it says what is spent even where the steps do not get
longer. Who looks asks for more than a tab does, which shows one view, and is no browser: that runs on the machine of
whoever looks. ``--quick`` takes two pairs of 20 steps instead of four of 60.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import harness

CONFIG = Path(__file__).parent.parent / "configs/math.toml"
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
SCRAPE_EVERY_S, LOOK_EVERY_S = 5.0, 1.0
VIEWS = (
    "keys",
    "series?keys=reward_mean,reward_answer_mean,entropy,length_mean,grad_norm,lr,ess,lag_mean,gen_tok_s,train_tok_s",
    "histograms?key=lag_histogram",
    "histograms?key=ratio_histogram",
    "evaluations",
    "timeline?points=1000&gauges=1",
    "groups?sort=-step&limit=50",
    "events?order=newest",
    "run",
)
"""What the page asks of a run, all of its views at once."""
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


class Looker(threading.Thread):
    """Somebody who has the page open: hears its stream, and asks for every view again and again until ``ended``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder, self.ended = folder, threading.Event()
        self.num_answers = self.num_heard = 0

    def run(self) -> None:
        """Look until the run is over."""
        while not self.ended.wait(LOOK_EVERY_S):
            with suppress(OSError, ValueError):
                url = json.loads((self._folder / "view.json").read_text())["url"]
                threading.Thread(target=self._hear, args=[f"{url}api/{self._folder.name}/stream"], daemon=True).start()
                while not self.ended.wait(LOOK_EVERY_S):
                    self._look(f"{url}api/{self._folder.name}/")

    def _look(self, url: str) -> None:
        for view in VIEWS:
            with suppress(HTTPError), urllib.request.urlopen(url + view, timeout=SCRAPE_EVERY_S) as answer:
                self.num_answers += len(answer.read()) > 0

    def _hear(self, url: str) -> None:
        with suppress(OSError), urllib.request.urlopen(url, timeout=60) as stream:
            for line in stream:
                self.num_heard += line.startswith(b"event: step")


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
    looker = Looker(folder)
    if seen:
        looker.start()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as job:
        while True:
            with suppress(subprocess.TimeoutExpired):
                job.wait(SCRAPE_EVERY_S)
                break
            num_scrapes += bool(seen and scrape(folder))
    looker.ended.set()
    if seen and not (looker.num_answers and looker.num_heard):
        sys.exit("nobody could look at the page")
    if job.returncode != 0:
        sys.exit(f"the job ended with {job.returncode}")
    wall_s = time.monotonic() - started
    steps = [json.loads(line)["time_s"] for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
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
        "answers": looker.num_answers,
        "steps_heard": looker.num_heard,
    }


def measure(quick: bool) -> dict[str, Any]:
    """Pairs of runs, each side first in every other one."""
    num_pairs, num_steps = (2, 20) if quick else (4, 60)
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
