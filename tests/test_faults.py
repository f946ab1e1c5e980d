"""The command line on real processes when things go wrong: vLLM's engine core, torchrun's ranks, signals, rewards.

Each run is the default job, shortened. Whatever happens, it ends within 15 seconds, says the cause in one message, and
leaves no process behind.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue

import psutil
import pytest

ROOT = Path(__file__).parent.parent
START_S = 150
END_S = 15
SHORT = ["engine.count=1", "eval.num_samples=0", "pipeline.groups_per_step=4", "run.num_steps=100000"]


class Job:
    """``prl run`` as a child, its lines as they come, and every process it ever had."""

    def __init__(self, folder: Path, *settings: str, resume: bool = False) -> None:
        command = [sys.executable, "-m", "prl", "run", str(ROOT / "configs/math.toml"), "--plain"]
        command += ["--run-dir", str(folder / "run")]
        command += ["--resume"] if resume else []
        for setting in (*SHORT, *settings):
            command += ["--set", setting]
        self.run_dir = folder / "run"
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.output: list[str] = []
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._known: dict[int, psutil.Process] = {}

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            self._lines.put(line)

    def wait_for(self, text: str, seconds: float = START_S) -> None:
        """Wait for a line that holds ``text``."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._reader.is_alive():
            try:
                if text in self._lines.get(timeout=0.2):
                    return
            except Empty:
                self.descendants()
        pytest.fail(f"no line with {text!r}:\n{''.join(self.output)}")

    def wait_for_step(self, step: int, seconds: float = START_S) -> None:
        """Wait until so many steps are in the metrics."""
        deadline, path = time.monotonic() + seconds, self.run_dir / "metrics.jsonl"
        while not path.exists() or path.read_bytes().count(b"\n") < step:
            if time.monotonic() > deadline or self.process.poll() is not None:
                pytest.fail(f"step {step} was not reached:\n{''.join(self.output)}")
            self.descendants()
            time.sleep(0.1)

    def descendants(self) -> list[psutil.Process]:
        """The processes below this one now; remembered, to see later that each has ended."""
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._known.update({process.pid: process for process in found})
        return found

    def find(self, words: str) -> psutil.Process:
        """The process below this one whose name or command line holds ``words``."""
        for process in self.descendants():
            try:
                if words in process.name() or words in " ".join(process.cmdline()):
                    return process
            except psutil.NoSuchProcess:
                continue
        return pytest.fail(f"no process {words!r} among {self.descendants()}")

    def end(self) -> int:
        """Wait for the exit code; 15 seconds are allowed, for it and for every process it had."""
        deadline = time.monotonic() + END_S
        code = self.process.wait(timeout=END_S)
        _, alive = psutil.wait_procs(list(self._known.values()), timeout=max(0.1, deadline - time.monotonic()))
        assert not alive, f"processes left behind: {alive}"
        self._reader.join(timeout=5)
        return code

    @property
    def said(self) -> str:
        """Everything it printed."""
        return "".join(self.output)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Job]]:
    """Jobs to clean up, whatever the test does."""
    jobs: list[Job] = []
    yield jobs
    for job in jobs:
        for process in [*job.descendants(), *job._known.values()]:
            if process.is_running():
                process.kill()
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait(timeout=10)
        assert job.process.stdout is not None
        job.process.stdout.close()


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


@pytest.mark.timeout(400)
def test_an_engine_that_dies_is_started_again(tmp_path: Path, started: list[Job]) -> None:
    """SIGKILL of an engine's core, then of its host: its streams wait, it comes back with the current weights."""
    job = Job(tmp_path, "run.num_steps=16")
    started.append(job)
    for words, seen in (("VLLM::EngineCore", 3), ("prl.engines.vllm_host", 8)):
        job.wait_for_step(seen)
        job.find(words).kill()
        job.wait_for("an engine is lost: it is started again", 30)
        job.wait_for("an engine serves again", 120)
    job.wait_for("ending the processes")
    assert job.end() == 0
    metrics = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == list(range(1, 17))
    assert max(line["lag_max"] for line in metrics) == 1
    audit = subprocess.run([sys.executable, "-m", "prl", "audit", str(job.run_dir)], check=False, timeout=60)
    assert audit.returncode == 0


@pytest.mark.timeout(400)
def test_a_trainer_that_dies_or_hangs_is_started_again(tmp_path: Path, started: list[Job]) -> None:
    """SIGKILL of a rank, then SIGSTOP: each time the run goes on behind the step it had reached, engines untouched."""
    job = Job(tmp_path, "trainer.heartbeat_timeout_s=10", "run.checkpoint_every=2", "run.num_steps=24")
    started.append(job)
    job.wait_for_step(3)
    core = job.find("VLLM::EngineCore")
    for rank, blow, seen in ((1, signal.SIGKILL, 8), (0, signal.SIGSTOP, 16)):
        commands = [(process, " ".join(process.cmdline())) for process in job.descendants()]
        ranks = [p for p, words in commands if words.endswith("-m prl.trainer.worker") and "torch.dist" not in words]
        ranks[rank].send_signal(blow)
        job.wait_for("the trainer is started again", 30)
        job.wait_for_step(seen)
    assert core.is_running()
    job.wait_for("ending the processes")
    assert job.end() == 0
    metrics = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == list(range(1, 25))
    assert max(line["lag_max"] for line in metrics) == 1
    audit = subprocess.run([sys.executable, "-m", "prl", "audit", str(job.run_dir)], check=False, timeout=60)
    assert audit.returncode == 0


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
