"""``prl why`` on the real job: vLLM's core, torchrun's ranks and a verifier's workers, where they are; and its end."""

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


def chain_of(job: Job, holds: str) -> str:
    """Ask until the chain holds this."""
    deadline = time.monotonic() + WAIT_S
    while holds not in (chain := why(job)["chain"]):
        assert job.process.poll() is None, job.said
        assert time.monotonic() < deadline, f"no {holds!r}, but {chain!r}"
    return str(chain)


REWARDS = """\
import asyncio
from pathlib import Path

async def never(completion, prompt):
    while not Path("answer").exists():
        await asyncio.sleep(0.05)
    return 0.0

def judge(completion, prompt):
    return completion.text + 1 if Path("answer").exists() else 0.0
"""
"""One that never answers, until it is told to; and one that has a bug from then on."""


@pytest.mark.timeout(240)
def test_a_reward_that_never_answers_is_named_and_every_process_gives_its_stacks(
    tmp_path: Path, started: list[Job]
) -> None:
    """The start is told while it lasts, then the reward; a process that is stopped is listed as such.

    The run is ended by a bug: see ``ends_with_the_bug``.
    """
    (tmp_path / "broken.py").write_text(REWARDS)
    job = Job(
        tmp_path,
        'rewards=[{name="broken:never", timeout_s=1000}, {name="broken:judge"}, {name="math"}]',
        "engine.count=1",
    )
    started.append(job)
    job.wait_for("starting 1 vllm engine")
    assert chain_of(job, "starting 1 vllm engine").startswith("starting 1 vllm engine")
    job.wait_for("sending the first weights")
    assert chain_of(job, "never").startswith("trainer waits for batch 1 <- group ")
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
    assert "never (broken.py:" in text, "the task of the reward"
    (tmp_path / "answer").touch()
    ends_with_the_bug(job)


def ends_with_the_bug(job: Job) -> None:
    """A TypeError in a reward ends the run with its traceback, the file and line of the user's code included."""
    assert job.end(30) == 1
    assert 'broken.py", line 10, in judge' in job.said
    assert "prl: the run failed: TypeError: can only concatenate str" in job.said
    assert json.loads((job.run_dir / "summary.json").read_text())["status"] == "failed"
