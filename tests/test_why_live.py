"""``prl why`` on the real job: vLLM's core, torchrun's ranks and a verifier's workers, all of them where they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.test_faults import Job, started

__all__ = ["started"]  # a fixture
WAIT_S = 100


def why(job: Job, *words: str) -> dict[str, Any]:
    """What ``prl why`` says in JSON; nothing before the run can be asked."""
    command = [sys.executable, "-m", "prl", "why", str(job.run_dir), "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    told: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"chain": ""}
    return told


@pytest.mark.timeout(240)
def test_a_reward_that_never_answers_is_named_and_every_process_gives_its_stacks(
    tmp_path: Path, started: list[Job]
) -> None:
    """The start is told while it lasts, then the reward; a process that is stopped is listed as such."""
    math, never = 'rewards=[{name="math"}, {name="tests.cli_rewards:never", timeout_s=1000}]', "engine.count=1"
    job = Job(tmp_path, never, math)
    started.append(job)
    job.wait_for("starting 1 vllm engine")
    chains = list[str]()
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and not (chains and "never" in chains[-1]):
        chains.append(why(job)["chain"])
        assert job.process.poll() is None, job.said
    assert any(chain.startswith("starting 1 vllm engine") for chain in chains), chains
    assert chains[-1].startswith("trainer waits for batch 1 <- group "), chains
    core = job.find("VLLM::EngineCore")
    os.kill(core.pid, signal.SIGSTOP)
    told = why(job, "--stacks")
    os.kill(core.pid, signal.SIGCONT)
    text = Path(told["stacks"].rpartition(" ")[2]).read_text()
    processes = {line.partition(": ")[2]: line for line in text.splitlines() if line.startswith("process ")}
    assert f"process {core.pid}, stopped: " in text
    for name in ("engine-0", "engine-0 core", "the trainer rank 0", "the trainer rank 1", "reward math_worker"):
        assert name in processes
    assert "in _serve" in text, "a rank's loop"
    assert "never (cli_rewards.py:" in text, "the task of the reward"
