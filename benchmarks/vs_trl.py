"""prl against TRL's GRPOTrainer: seconds of training to a fixed accuracy, on the same machine and the same task.

    python benchmarks/vs_trl.py [--quick] --out FILE.json

Headline: TRL's seconds over prl's to the accuracy of the long-tail task (target: at least 2), with the same ratio for
the short task beside it (target: at least 1): medians of the ratios of each seed, with their spread. ``--quick`` takes
one seed in place of three, and fewer steps.

The same on both sides: model, prompts and their order, rewards, group size, sequences and optimiser of a step, the
schedule, loss (``side_trl.py`` says how TRL is brought to prl's), float32, both cores. Each side has a learning rate
and a use of the cores of its own (``TASKS``); ``vs_trl_sweep.py`` tries others at seed 0. Both sides write their
weights now and then, and both are judged afterwards by ``accuracy.py``, so no evaluation is on either clock. The
clock starts with the first step: start-up is reported apart. TRL's writing of weights is not on its clock; prl's is
on its own, because prl's engines go on sampling meanwhile.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import harness
from accuracy import Examiner, seconds_to
from main_job import SAMPLE_EVERY_S, memory_of

from prl.settings import load_config
from prl.trainer.checkpoint import step_folder

HERE = Path(__file__).parent
TARGET_LONG, TARGET_SHORT = 2.0, 1.0
SEEDS = (0, 1, 2)


class Trl(NamedTuple):
    """How TRL uses the machine."""

    processes: int
    threads: int
    microbatch: int
    """Sequences in one forward pass of one process."""
    generation: str = "generate"


class Task(NamedTuple):
    """What both sides learn, and each side's best way to do it."""

    name: str
    config: str
    accuracy: float
    """The accuracy whose time is measured."""
    num_steps: int
    num_quick_steps: int
    """With ``--quick``."""
    every: int
    """Steps between two evaluations."""
    trl: Trl
    trl_learning_rate: float
    prl_learning_rate: float
    prl: tuple[str, ...] = ()
    """Settings of prl's own parts that differ from the configuration."""

    def settings(self, seed: int, learning_rate: float) -> list[str]:
        """What both sides set; the rate falls to 0 along the run, as it does in TRL unless told otherwise."""
        run = [f"seed={seed}", f"run.num_steps={self.num_steps}"]
        return [*run, f"trainer.learning_rate={learning_rate}", "trainer.schedule=linear"]


ONE_OF_EACH = (
    "engine.count=1",
    "trainer.num_ranks=1",
    "engine.stream_interval=16",
    "trainer.max_tokens_per_microbatch=8192",
)
"""On two cores one engine and one rank take a core each. A second engine halves the batch of every decode step, and a
second rank adds the collectives: with two of each a step of the short task costs half as much CPU time again. Sequences
share most in a large micro-batch: a fifth off the CPU time that a step takes with 2048, on either task."""

TASKS = (
    Task(
        name="short",
        config="configs/math.toml",
        accuracy=0.8,
        num_steps=60,
        num_quick_steps=36,
        every=3,
        trl=Trl(processes=2, threads=1, microbatch=32),
        trl_learning_rate=1e-4,
        prl_learning_rate=1e-4,
        prl=(*ONE_OF_EACH, "engine.max_num_seqs=256"),
    ),
    Task(
        name="long-tail",
        config="benchmarks/long_tail.toml",
        accuracy=0.9,
        num_steps=60,
        num_quick_steps=30,
        every=3,
        trl=Trl(processes=2, threads=1, microbatch=16),
        trl_learning_rate=2e-4,
        prl_learning_rate=2e-4,
        prl=(*ONE_OF_EACH, "engine.max_num_seqs=128"),
    ),
)


def run_trl(task: Task, seed: int, folder: Path, learning_rate: float) -> dict[str, Any]:
    """One training by TRL: seconds at the end of each step, and what else was measured."""
    use = task.trl
    launcher = [sys.executable]
    if use.processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={use.processes}"]
    command = [*launcher, str(HERE / "side_trl.py"), "--config", str(HERE.parent / task.config)]
    command += ["--folder", str(folder), "--every", str(task.every), "--processes", str(use.processes)]
    command += ["--threads", str(use.threads), "--microbatch", str(use.microbatch), "--generation", use.generation]
    for setting in task.settings(seed, learning_rate):
        command += ["--set", setting]
    measured = _watched(command, folder / "trl.log", {"OMP_NUM_THREADS": str(use.threads)})
    result = json.loads((folder / "result.json").read_text())
    return measured | {"start_s": result["started_at"] - measured["launched_at"], "seconds": result["seconds"]}


def run_prl(task: Task, seed: int, folder: Path, learning_rate: float) -> dict[str, Any]:
    """One training by prl: seconds at the end of each step, and what else was measured."""
    run = folder / "run"
    command = [sys.executable, "-m", "prl", "run", str(HERE.parent / task.config), "--plain", "--run-dir", str(run)]
    own = [
        "eval.num_samples=0",
        f"run.checkpoint_every={task.every}",
        f"run.keep_checkpoints={task.num_steps}",
        *task.prl,
    ]
    for setting in [*task.settings(seed, learning_rate), *own]:
        command += ["--set", setting]
    measured = _watched(command, folder / "prl.log", {})
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    seconds = list(accumulate(step["time_s"] for step in steps))
    events = [json.loads(line) for line in (run / "events.jsonl").read_bytes().splitlines()]
    started = next(event["time"] for event in events if event["event"] == "started")
    start_s = datetime.fromisoformat(started).timestamp() - measured["launched_at"]
    means = {
        key: round(statistics.fmean(step[key] for step in steps), 3)
        for key in ("wait_batch_s", "pause_s", "publish_s", "trainer_busy", "engine_busy", "gen_tok_s", "lag_mean")
    }
    return measured | {"start_s": start_s, "seconds": seconds, "mean": means}


def _watched(command: Sequence[str], log: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Run to the end; when it began, how long it took, and the most memory its processes held together."""
    launched_at, started, peak = time.time(), time.monotonic(), 0
    with log.open("w") as output:
        job = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment})
        with job:
            while job.poll() is None:
                peak = max(peak, memory_of(job.pid))
                time.sleep(SAMPLE_EVERY_S)
    if job.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {job.returncode}:\n{log.read_text()[-3000:]}")
    return {"launched_at": launched_at, "wall_s": time.monotonic() - started, "peak_gib": peak / 2**30}


SIDES = {"prl": run_prl, "trl": run_trl}


def measure_side(task: Task, side: str, seed: int, learning_rate: float, examiner: Examiner) -> dict[str, Any]:
    """Train once and judge the weights in the order they were written, until the accuracy is reached and kept."""
    config = load_config(HERE.parent / task.config)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ran = SIDES[side](task, seed, folder, learning_rate)
        seconds, accuracies, reached = [0.0], [examiner.accuracy_before()], None
        for step in range(task.every, task.num_steps + 1, task.every):
            seconds.append(ran["seconds"][step - 1])
            accuracies.append(
                examiner.accuracy_of_checkpoint(step_folder(folder / "run/checkpoints", step))
                if side == "prl"
                else examiner.accuracy_of_file(folder / f"step-{step:06d}.safetensors")
            )
            if (reached := seconds_to(task.accuracy, seconds, accuracies)) is not None:
                break
    batch = config.pipeline.groups_per_step * config.pipeline.group_size
    return {
        "task": task.name,
        "side": side,
        "seed": seed,
        "learning_rate": learning_rate,
        "to_accuracy_s": reached,
        "samples_s": task.num_steps * batch / ran["seconds"][-1],
        "peak_gib": ran["peak_gib"],
        "start_s": ran["start_s"],
        "wall_s": ran["wall_s"],
        "accuracy_last": accuracies[-1],
        "curve": [[round(second, 2), round(value, 4)] for second, value in zip(seconds, accuracies, strict=True)],
        "mean": ran.get("mean", {}),
    }


def compare(task: Task, seeds: Sequence[int]) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Both sides of one task: what their medians say of one another, a row a side, and the runs."""
    runs = []
    for seed in seeds:
        examiner = Examiner(load_config(HERE.parent / task.config, [f"seed={seed}"]))
        runs += [measure_side(task, "prl", seed, task.prl_learning_rate, examiner)]
        runs += [measure_side(task, "trl", seed, task.trl_learning_rate, examiner)]
    rows = []
    for side in SIDES:
        own = [run for run in runs if run["side"] == side]
        row: dict[str, Any] = {"task": task.name, "side": side, "learning_rate": own[0]["learning_rate"]}
        unreached = [run["seed"] for run in own if run["to_accuracy_s"] is None]
        row["to_accuracy_s"] = f"never with seeds {unreached}" if unreached else _spread(own, "to_accuracy_s")
        for key in ("samples_s", "peak_gib", "start_s", "wall_s", "accuracy_last"):
            row[key] = _spread(own, key)
        rows.append(row)
    return _ratios(runs), rows, runs


def _spread(runs: Sequence[dict[str, Any]], key: str) -> dict[str, Any]:
    return harness.spread([run[key] for run in runs])


def _ratios(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the two sides, seed by seed; above 1 is in prl's favour, but for memory.

    No ratio of seconds where a side did not get there with some seed.
    """

    def of(side: str, key: str) -> list[float]:
        return [run[key] for run in runs if run["side"] == side]

    def with_start(side: str) -> list[float]:
        return [seconds + start for seconds, start in zip(of(side, "to_accuracy_s"), of(side, "start_s"), strict=True)]

    reached = all(run["to_accuracy_s"] is not None for run in runs)
    return {
        "seconds": harness.ratios(of("trl", "to_accuracy_s"), of("prl", "to_accuracy_s")) if reached else None,
        "seconds_with_start": harness.ratios(with_start("trl"), with_start("prl")) if reached else None,
        "samples_s": harness.ratios(of("prl", "samples_s"), of("trl", "samples_s")),
        "memory": harness.ratios(of("prl", "peak_gib"), of("trl", "peak_gib")),
    }


def measure(quick: bool) -> dict[str, Any]:
    """All tasks, both sides."""
    ratios, rows, runs = {}, [], []
    for full in TASKS:
        task = full._replace(num_steps=full.num_quick_steps) if quick else full
        ratios[task.name], task_rows, task_runs = compare(task, SEEDS[:1] if quick else SEEDS)
        rows, runs = rows + task_rows, runs + task_runs
    by_seed = {name: of_task["seconds"] for name, of_task in ratios.items()}
    long, short = (by_seed[name] and by_seed[name]["median"] for name in ("long-tail", "short"))
    return {
        "headline": long,
        "headline_by_seed": by_seed["long-tail"],
        "headline_is": "seconds to the accuracy, TRL / prl, long-tail task",
        "short_task": short,
        "short_task_by_seed": by_seed["short"],
        "target": "at least 2 on the long-tail task, at least 1 on the short one",
        "target_met": bool(long and short and long >= TARGET_LONG and short >= TARGET_SHORT),
        "tasks": [task._asdict() for task in TASKS],
        "ratios": ratios,
        "sides": rows,
        "runs": runs,
    }


if __name__ == "__main__":
    harness.main(__doc__, measure, tables=["sides"])
