"""``python -m tests.faults.soak --minutes 30 --every 20``: the default job under random faults, and what holds after.

The job is ``configs/math.toml`` as it is, but for shorter deadlines, more restarts, checkpoints every 20 steps, no end,
and a second reward of weight 0 whose verifier workers can be struck. Every ``--every`` seconds a random role gets
SIGTERM, SIGKILL or SIGSTOP; a controller that ended is resumed, one that was stopped is woken after ten seconds. At the
end:

- every step is there once, the lag kept its bound, and ``prl audit`` accounts for every prompt;
- no process is left, at any end of a controller on the way either;
- no process has grown in its life, and no controller holds more for having been resumed (``growth.py``);
- the reward has risen as in an undisturbed run: the mean reward of the steps that end with the last step of a reference
  run of the same settings, without faults, is within ``REWARD_MARGIN`` of the reference's, and so is that of the last
  steps of all, where there are more. Both are means of ``WINDOW`` steps of 256 sequences, whose standard error is about
  0.01; two undisturbed runs differ by up to 0.03, since what is sampled depends on timing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from random import Random

import psutil

from tests.faults.cells import BLOWS, MOMENTS, ROLES, Cell, Role
from tests.faults.growth import STARTED_S, WARM_S, Look, Memory
from tests.faults.job import Job, audit
from tests.faults.struck import is_of

SETTINGS = {
    "eval.num_samples": "0",
    "run.num_steps": "5000",
    "run.checkpoint_every": "20",
    "run.samples_every": "0",
    "engine.token_timeout_s": "20",
    "engine.max_restarts": "1000",
    "trainer.heartbeat_timeout_s": "10",
    "trainer.max_restarts": "1000",
    "weights.timeout_s": "40",
    "rewards": '[{name="answer"},{name="math",weight=0.0,timeout_s=60}]',
}
STRUCK: tuple[Role, ...] = tuple(role for role in ROLES if role != "engine worker")
"""The default job's engines compute in their cores."""
WEIGHTS = [1 if role == "controller" else 3 for role in STRUCK]
"""The controller more rarely: its memory is to be looked at over a longer life."""
STOPPED_S = 10.0
SAMPLE_S = 5.0
WINDOW = 20
REWARD_MARGIN = 0.06


class Soak:
    """One run, over as many controllers as it takes."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._random = folder, Random(seed)
        self.problems: list[str] = []
        self.blows: dict[str, int] = defaultdict(int)
        self._memory = Memory()
        self._began = time.monotonic()
        self._job = Job(folder, SETTINGS)
        self._num_controllers = 1
        self._first_step = 0
        """Steps that were done before this controller."""
        self._steps_since: float | None = None
        """When its first own one was seen."""
        self._is_stopping = False

    def run(self, seconds: float, every_s: float) -> None:
        """Strike until the time is over, then end the run."""
        self._job.wait_until("first step", lambda: self._job.step > 0)
        self._began = time.monotonic()
        next_blow, next_sample, told = every_s, 0.0, 0.0
        while (now := time.monotonic() - self._began) < seconds:
            if self._job.process.poll() is not None:
                self._resume()
            if now >= next_sample:
                self._sample(now)
                next_sample = now + SAMPLE_S
            if now >= next_blow:
                self._strike()
                next_blow += every_s
            if now >= told + 60:
                told = now
                self._say(
                    f"step {self._job.step}, {sum(self.blows.values())} blows, {self._num_controllers} controllers"
                )
            time.sleep(0.2)
        if self._job.process.poll() is not None:
            self._resume()
        self._job.wait_until("two more steps", lambda last=self._job.step: self._job.step >= last + 2, 300)
        self._end(0, 90)

    def _resume(self) -> None:
        code = self._job.process.returncode
        if code not in {0, -signal.SIGKILL}:
            self.problems.append(f"a controller ended with {code}: {self._job.said[-1500:]}")
        self._end(code, 15)
        self._say(f"the controller ended with {code} at step {self._job.step} and is resumed")
        self._job.clean_up()
        self._job = Job(self._folder, SETTINGS, resume=True)
        self._num_controllers += 1
        self._first_step, self._steps_since, self._is_stopping = self._job.step, None, False

    def _end(self, expected: int, seconds: float) -> None:
        """The controller is to end, and nothing may be left."""
        if self._job.process.poll() is None:
            self._job.process.send_signal(signal.SIGTERM)
        try:
            code = self._job.end(seconds)
        except Exception as error:  # noqa: BLE001 -- noted; the soak goes on to its end
            self.problems.append(str(error))
        else:
            if code != expected:
                self.problems.append(f"it ended with {code} where {expected} was due: {self._job.said[-1500:]}")

    def _strike(self) -> None:
        role = self._random.choices(STRUCK, WEIGHTS)[0]
        cell = Cell(role, self._random.choice(BLOWS), MOMENTS[1])
        if self._job.step == self._first_step or (role == "controller" and self._is_stopping):
            return  # it starts: the matrix is for that; or it was told to stop, and the second signal kills
        processes = self._of(role)
        if not processes:
            self._say(f"{role}: nobody is there to be struck")
            return
        victim = self._random.choice(processes)
        self.blows[f"{cell.role} {cell.blow}"] += 1
        self._say(f"step {self._job.step}: {cell.blow} to {role} ({victim.pid})")
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(cell.number)
        self._is_stopping = self._is_stopping or (role == "controller" and cell.blow == "SIGTERM")
        if role == "controller" and cell.blow == "SIGSTOP":
            time.sleep(STOPPED_S)
            os.kill(victim.pid, signal.SIGCONT)

    def _of(self, role: Role) -> list[psutil.Process]:
        if role == "controller":
            return [psutil.Process(self._job.process.pid)]
        return [process for process in self._job.descendants() if is_of(role, process, self._job.process.pid)]

    def _sample(self, now: float) -> None:
        if self._steps_since is None and self._job.step > self._first_step:
            self._steps_since = now
        for role in STRUCK:
            for process in self._of(role):
                with contextlib.suppress(psutil.Error):
                    is_warm = time.time() - process.create_time() >= STARTED_S
                    if role == "controller":
                        is_warm = self._steps_since is not None and now - self._steps_since >= WARM_S
                    if is_warm:
                        self._memory.note(role, process.pid, Look(now, process.memory_info().rss / 2**20))

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:6.0f} s] {text}", flush=True)

    # ---- judgement ---------------------------------------------------------------------------------------------------

    def judge(self, reference: list[float]) -> list[str]:
        """What is not as it must be."""
        metrics = self._job.metrics()
        if [line["step"] for line in metrics] != list(range(1, len(metrics) + 1)):
            self.problems.append("a step is missing, or there twice")
        if (lag := max(line["lag_max"] for line in metrics)) > 1:
            self.problems.append(f"a sample was trained with a lag of {lag}")
        code, table = audit(self._folder / "run")
        print(table)
        if code != 0:
            self.problems.append("the audit found prompts that were lost, or trained twice")
        told, grown = self._memory.judge()
        print(*told, sep="\n")
        self.problems += grown
        self._judge_reward([line["reward_mean"] for line in metrics], reference)
        return self.problems

    def _judge_reward(self, rewards: list[float], reference: list[float]) -> None:
        if not reference:
            return
        num_steps = min(len(rewards), len(reference))
        goal = statistics.mean(reference[:num_steps][-WINDOW:])
        same, last = statistics.mean(rewards[:num_steps][-WINDOW:]), statistics.mean(rewards[-WINDOW:])
        first = statistics.mean(rewards[:5])
        print(f"reward: {first:.3f} at first; steps to {num_steps}: {same:.3f}, ", end="")
        print(f"undisturbed {goal:.3f}; at the end, step {len(rewards)}: {last:.3f}")
        if min(same, last) < max(first, goal - REWARD_MARGIN):
            self.problems.append(
                f"the reward went from {first:.3f} to {same:.3f}, then {last:.3f}; undisturbed it is {goal:.3f}"
            )

    def clean_up(self) -> None:
        """Leave no process."""
        self._job.clean_up()


def undisturbed(num_steps: int) -> list[float]:
    """The rewards of a run without faults."""
    folder = Path(tempfile.mkdtemp(prefix="prl-soak-reference-"))
    job = Job(folder, SETTINGS)
    try:
        job.wait_for_step(num_steps, 300 + 5 * num_steps)
        job.process.send_signal(signal.SIGTERM)
        job.end(90)
        return [line["reward_mean"] for line in job.metrics()]
    finally:
        job.clean_up()
        shutil.rmtree(folder)


def main() -> int:
    """Soak; 0 where all is as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two blows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reference-steps", type=int, default=60, help="steps of the undisturbed run; 0: none")
    arguments = parser.parse_args()
    reference = undisturbed(arguments.reference_steps) if arguments.reference_steps else []
    folder = Path(tempfile.mkdtemp(prefix="prl-soak-"))
    print(f"the run is in {folder}", flush=True)
    soak = Soak(folder, arguments.seed)
    try:
        soak.run(60 * arguments.minutes, arguments.every)
        problems = soak.judge(reference)
    finally:
        soak.clean_up()
    print("blows:", ", ".join(f"{what} {count}" for what, count in sorted(soak.blows.items())))
    for problem in problems:
        print(f"PROBLEM: {problem}")
    print("failed" if problems else "passed: everything is as it must be")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
