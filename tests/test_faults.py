"""The command line on real processes when things go wrong: vLLM's engine core, torchrun's ranks, signals, rewards.

Each run is the default job, shortened. Whatever happens, it ends within 15 seconds, says the cause in one message, and
leaves no process behind. Runs that go on are in ``test_fault_matrix.py``; a first Ctrl-C and the death of a resumed
run's controller end that of ``test_live_engines.py``, a bug in a reward that of ``test_why_live.py``.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.job import Job as DefaultJob

SHORT = ("engine.count=1", "eval.num_samples=0", "pipeline.groups_per_step=4", "run.num_steps=100000")


class Job(DefaultJob):
    """The default job, shortened; each further setting is as after ``--set``."""

    def __init__(self, folder: Path, *settings: str, resume: bool = False) -> None:
        super().__init__(folder, dict(each.split("=", 1) for each in (*SHORT, *settings)), resume=resume)


@pytest.fixture
def started() -> Iterator[list[Job]]:
    """Jobs to clean up, whatever the test does."""
    jobs: list[Job] = []
    yield jobs
    for each in jobs:
        each.clean_up()


@pytest.mark.timeout(240)
def test_a_killed_process(tmp_path: Path, started: list[Job]) -> None:
    """A dead child is noticed: where nothing is started again, SIGKILL ends the run with that role's name.

    Whatever the engine is: here the one that starts sooner.
    """
    job = Job(tmp_path, "trainer.max_restarts=0", "engine.kind=transformers")
    started.append(job)
    job.wait_for("step 1/")
    rank = [p for p in job.descendants() if "prl.trainer.worker" in " ".join(p.cmdline())][-1]
    rank.kill()
    assert job.end() == 1
    verdict = job.said[job.said.index("prl: the run failed:") :]
    assert "trainer" in verdict.splitlines()[0]
    assert "Traceback" not in job.said


@pytest.mark.timeout(240)
def test_ctrl_c_at_start_up(tmp_path: Path, started: list[Job]) -> None:
    """Interrupted while engines and trainer start: exit 130 within seconds, no process left."""
    job = Job(tmp_path)
    started.append(job)
    job.wait_for("starting 1 vllm engine")
    deadline = time.monotonic() + 60
    while not any("VLLM" in p.name() or "worker" in " ".join(p.cmdline()) for p in job.descendants()):
        assert time.monotonic() < deadline, "no child was started"
        time.sleep(0.1)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130
    assert "Traceback" not in job.said
