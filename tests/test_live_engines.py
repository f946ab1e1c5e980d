"""Engines of vLLM that are added to the default job and removed from it while it trains, from the command line.

A run of real processes is long in starting: this one ends with a first Ctrl-C, is resumed, and is killed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.job import ROOT, START_S
from tests.test_faults import Job, started

__all__ = ["started"]
IN_TURNS = ("weights.rolling=1", "weights.staged=false")


def prl(*words: str) -> subprocess.CompletedProcess[str]:
    """``prl`` in a process of its own."""
    command = [sys.executable, "-m", "prl", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def wait_for(job: Job, condition: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
    """Until the engines of the job, by name, are as they should be."""
    deadline = time.monotonic() + START_S
    while True:
        answer = prl("engines", "list", str(job.run_dir), "--json")
        assert answer.returncode == 0, answer.stderr
        engines = {engine["name"]: engine for engine in json.loads(answer.stdout)}
        if condition(engines):
            return engines
        assert time.monotonic() < deadline, f"{engines}\n{job.said}"
        job.descendants()
        time.sleep(0.3)


def interrupted(job: Job) -> None:
    """The first Ctrl-C finishes the step, saves and leaves with 0."""
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 0
    summary = json.loads((job.run_dir / "summary.json").read_text())
    assert summary["status"] == "stopped"
    assert (job.run_dir / "checkpoints" / f"step-{summary['steps']:06d}" / "complete.json").is_file()


def killed(job: Job) -> None:
    """SIGKILL of the controller: every process of its engine and its trainer is gone within 10 seconds."""
    for role in ("prl.engines.vllm_host", "VLLM::EngineCore", "prl.trainer.worker"):
        job.find(role)
    job.process.kill()
    assert job.end(10) == -signal.SIGKILL


@pytest.mark.timeout(400)
def test_an_engine_is_added_and_another_removed(tmp_path: Path, started: list[Job]) -> None:
    """The new one samples for the run with its current weights, the old one's process ends, no prompt is lost.

    Where there are two, they take up new weights in turns, into place, each in a weight group of its own. The run is
    ended as people end one, and the one that is resumed from it as the kernel does.
    """
    job = Job(tmp_path, *IN_TURNS)
    started.append(job)
    job.wait_for_step(1)
    assert prl("engines", "remove", str(job.run_dir), "engine-0", "--force").returncode == 1
    added = prl("engines", "add", str(job.run_dir))
    assert (added.returncode, added.stderr, added.stdout.split()[:1]) == (0, "", ["engine-1"])
    engines = wait_for(job, lambda engines: engines["engine-1"]["tokens_generated"] > 0)
    assert engines["engine-1"]["state"] == "serving"
    assert engines["engine-1"]["version"] > 0
    assert prl("engines", "remove", str(job.run_dir), "engine-0").returncode == 0
    before = wait_for(job, lambda engines: list(engines) == ["engine-1"])["engine-1"]
    wait_for(job, lambda engines: engines["engine-1"]["version"] > before["version"] + 1)
    hosts = [process for process in job.descendants() if process.cmdline()[-1:] == ["prl.engines.vllm_host"]]
    assert len(hosts) == 1
    interrupted(job)
    events = [json.loads(line)["event"] for line in (job.run_dir / "events.jsonl").read_bytes().splitlines()]
    assert not [event for event in events if "lost" in event]
    metrics = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_bytes().splitlines()]
    assert [line["step"] for line in metrics] == list(range(1, len(metrics) + 1))
    assert max(line["lag_max"] for line in metrics) == 1
    assert sum(line["streams_moved"] + line["engine_restarts"] for line in metrics) == 0
    assert prl("audit", str(job.run_dir)).returncode == 0

    again = Job(tmp_path, *IN_TURNS, resume=True)
    started.append(again)
    again.wait_for_step(len(metrics) + 1)
    killed(again)
