"""The command line on real processes when things go wrong: vLLM's engine core, torchrun's ranks, signals, rewards.

Each run is the default job, shortened. Whatever happens, it ends within 15 seconds, says the cause in one message, and
leaves no process behind. Runs that go on are in ``test_fault_matrix.py``.
"""

from __future__ import annotations

import json
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
def test_a_bug_in_a_reward(tmp_path: Path, started: list[Job]) -> None:
    """A TypeError in a reward ends the run with its traceback, the file and line of the user's code included."""
    (tmp_path / "broken.py").write_text("def judge(completion, prompt):\n    return completion.text + 1\n")
    job = Job(tmp_path, 'rewards=[{name="broken:judge"}]')
    started.append(job)
    job.wait_for("sending the first weights")
    assert job.end() == 1
    assert 'broken.py", line 2, in judge' in job.said
    assert "prl: the run failed: TypeError: can only concatenate str" in job.said
    assert json.loads((job.run_dir / "summary.json").read_text())["status"] == "failed"


@pytest.mark.timeout(240)
def test_a_killed_process(tmp_path: Path, started: list[Job]) -> None:
    """A dead child is noticed: where nothing is started again, SIGKILL ends the run with that role's name."""
    job = Job(tmp_path, "trainer.max_restarts=0")
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


@pytest.mark.timeout(240)
def test_ctrl_c_and_the_death_of_the_controller(tmp_path: Path, started: list[Job]) -> None:
    """The first Ctrl-C finishes the step, saves and leaves with 0; after SIGKILL of a resumed run nothing is left."""
    job = Job(tmp_path)
    started.append(job)
    job.wait_for("step 1/")
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 0
    summary = json.loads((job.run_dir / "summary.json").read_text())
    assert summary["status"] == "stopped"
    assert (job.run_dir / "checkpoints" / f"step-{summary['steps']:06d}" / "complete.json").is_file()

    again = Job(tmp_path, resume=True)
    started.append(again)
    again.wait_for("step ")
    again.descendants()
    again.process.kill()
    assert again.end() == -signal.SIGKILL
