"""A chain of cells on one job: bring it to the moment, strike, and judge what comes of it.

A cell passes when what ``cells.expected`` says was seen: the outcome, in its time, with the processes that must stay in
place, steps going on behind it, and at the end of the job no process left, every step once, the lag within its bound,
and every prompt accounted for.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import psutil

from tests.faults.cells import LATE_START_S, STOPPED_S, Cell, Kind, expected, settings
from tests.faults.job import POLL_S, START_S, Job, audit
from tests.faults.struck import is_of

NOTICE_S = 45.0
"""Longest from a blow until the run says that it was noticed: a deadline of the job, one more, and a slow machine."""
MEND_S = 240.0
"""Longest from there until what was struck is back."""
END_S = 15.0
"""Longest from the cause until the run has ended and no process is left."""
START_LIMIT_S = LATE_START_S + 15.0
"""Longest from a blow at start-up: whoever is stopped then is late after the minute that a start may take."""
CORE_STOPS_S = 45.0
"""vLLM's core heeds a SIGTERM only when its start is complete."""
STOP_S = 60.0
"""Longest from a first SIGTERM until the step is done, a checkpoint and an export are written, and nothing is left."""
STEPS_AFTER = 2
NOTICED = {"engine": "an engine is lost: it is started again", "trainer": "the trainer is started again"}
MENDED = {"engine": "an engine serves again", "trainer": "the trainer goes on"}


class Result(msgspec.Struct, kw_only=True):
    """What came of one cell."""

    role: str
    blow: str
    moment: str
    passed: bool
    seconds: float
    """From the blow until steps went on behind it; or, where the run ended, until no process was left."""
    note: str = ""
    """Why it did not pass."""

    @property
    def name(self) -> str:
        """That of the cell."""
        return f"{self.role}/{self.blow}/{self.moment}"


def run_chain(chain: Sequence[Cell], say: Callable[[str], None], *, until: float = math.inf) -> list[Result]:
    """Serve these cells on one run. After one that did not pass, the next has a new run.

    None is begun after the time ``until`` of ``time.monotonic``; those that are left out have no result.
    """
    results: list[Result] = []
    while len(results) < len(chain) and time.monotonic() < until:
        run = Run(Path(tempfile.mkdtemp(prefix="prl-faults-")), say)
        try:
            results += run.serve(chain[len(results) :], until)
        finally:
            run.clean_up()
    return results


class Run:
    """One run in a folder of its own, from job to job."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._jobs: list[Job] = []
        self._is_good = False

    def serve(self, cells: Sequence[Cell], until: float) -> list[Result]:
        """Cells until one does not pass; then the end of the run, which is part of the outcome of each."""
        results: list[Result] = []
        for cell in cells:
            if time.monotonic() >= until:
                break
            results.append(self._attempt(cell))
            self._say(f"{cell}: {'passed' if results[-1].passed else 'FAILED: ' + results[-1].note}")
            if not results[-1].passed:
                return results
        if not results:
            return results
        try:
            if self._job is None:
                self._start(cells[len(results) - 1], resume=True, struck=False).wait_for_step(
                    self._jobs[-1].step + STEPS_AFTER
                )
            self._finish()
            self._is_good = True
        except Exception as error:  # noqa: BLE001 -- whatever it is, no cell passed
            self._say(f"{cells[0].role}/{cells[0].blow}: FAILED at the end of the run: {error}")
            for result in results:
                result.passed, result.note = False, f"at the end of the run: {error}"[:2000]
        return results

    def clean_up(self) -> None:
        """Leave no process, and no folder that nobody has to look into."""
        for job in self._jobs:
            job.clean_up()
        if self._is_good:
            shutil.rmtree(self._folder)
        else:
            self._say(f"what was left behind is in {self._folder}")

    @property
    def _job(self) -> Job | None:
        """The one that runs."""
        return self._jobs[-1] if self._jobs and self._jobs[-1].process.poll() is None else None

    def _start(self, cell: Cell, *, resume: bool, struck: bool = True) -> Job:
        self._jobs.append(Job(self._folder, settings(cell), resume=resume, struck=struck))
        return self._jobs[-1]

    def _attempt(self, cell: Cell) -> Result:
        try:
            if cell.moment == "start-up" and self._job is not None:
                self._finish()
            job = self._job
            if job is None:
                job = self._start(cell, resume=(self._folder / "run/config.toml").exists())
                if cell.moment != "start-up":
                    job.wait_for_step(job.step + STEPS_AFTER)
            return _result(cell, passed=True, seconds=judge(job, cell))
        except Exception as error:  # noqa: BLE001 -- whatever it is, the cell did not pass
            return _result(cell, note=str(error)[:2000])

    def _finish(self) -> None:
        assert self._job is not None
        finish(self._job)


def _result(cell: Cell, *, passed: bool = False, seconds: float = 0.0, note: str = "") -> Result:
    names = {"role": cell.role, "blow": cell.blow, "moment": cell.moment}
    return Result(**names, passed=passed, seconds=round(seconds, 1), note=note)


def judge(job: Job, cell: Cell) -> float:
    """Strike and see; the seconds that it took. Raises AssertionError with what was not as it must be."""
    num_events, num_blows = len(job.events()), len(job.blows())
    others = _others(job, cell)
    job.arm(cell)
    _fallen(job, num_blows)
    struck_at, pid = job.blows()[-1]["time"], job.blows()[-1]["pid"]
    kind = expected(cell)
    if kind in {"stops", "interrupted", "dies", "ends"}:
        _ended(job, cell, kind)
        return time.time() - struck_at
    if kind == "slept":
        time.sleep(STOPPED_S)
        os.kill(pid, signal.SIGCONT)
        job.wait_for_step(job.step + STEPS_AFTER, START_S)
        told = [event["event"] for event in job.events()[num_events:]]
        assert not {*NOTICED.values()} & {*told}, f"somebody was started again: {told}"
    elif kind == "verifier":
        job.wait_for_step(job.step + STEPS_AFTER + 1, NOTICE_S)
        job.wait_until("other worker", lambda: bool(_of(job, cell)) and pid not in _of(job, cell), NOTICE_S)
    else:
        is_late_start = cell.moment == "start-up" and cell.blow == "SIGSTOP"
        for told, seconds in ((NOTICED[kind], NOTICE_S + START_LIMIT_S * is_late_start), (MENDED[kind], MEND_S)):
            job.wait_until(told, lambda told=told: _tells(job, num_events, told), seconds)
        job.wait_for_step(job.step + STEPS_AFTER, START_S)
    if kind != "slept":
        assert not _runs(pid), f"process {pid} was struck and still runs"
    gone = [process for process in others if not process.is_running()]
    assert not gone, f"others ended too: {gone}"
    return time.time() - struck_at


def finish(job: Job) -> None:
    """The first SIGTERM ends it; then everything that a run promises must be so."""
    job.process.send_signal(signal.SIGTERM)
    code = job.end(30)
    assert code == 0, f"it ended with {code}:\n{job.said[-2000:]}"
    metrics = job.metrics()
    assert [line["step"] for line in metrics] == list(range(1, len(metrics) + 1)), "a step is missing, or there twice"
    lag = max(line["lag_max"] for line in metrics)
    assert lag <= 1, f"a sample was trained with a lag of {lag}"
    code, table = audit(job.run_dir)
    assert code == 0, table


def _ended(job: Job, cell: Cell, kind: Kind) -> None:
    """The run ends as it must."""
    is_late = cell.blow == "SIGSTOP"
    limits = {
        "stops": STOP_S,
        "interrupted": END_S,
        "dies": 10.0,
        "ends": END_S + CORE_STOPS_S * (cell.blow == "SIGTERM"),
    }
    code = job.end(limits[kind] + START_LIMIT_S * is_late)
    expected_code = {"stops": 0, "interrupted": 130, "dies": -signal.SIGKILL, "ends": 1}[kind]
    assert code == expected_code, f"it ended with {code}:\n{job.said[-2000:]}"
    if kind != "dies":
        assert "Traceback (most" not in job.said, job.said[-3000:]
    if kind == "ends":
        verdict = job.said[job.said.index("prl: the run failed:") :].splitlines()[0]
        named = "engine-" if cell.role.startswith("engine") else "trainer"
        assert named in verdict, f"its last word does not name the role: {verdict}"


def _fallen(job: Job, num_blows: int) -> None:
    """Wait for a blow that may end, or stop, the controller."""
    deadline = time.monotonic() + START_S
    while len(job.blows()) == num_blows:
        assert time.monotonic() < deadline, f"no blow fell:\n{job.said[-2000:]}"
        job.descendants()
        time.sleep(POLL_S)


def _others(job: Job, cell: Cell) -> list[psutil.Process]:
    """The processes on the other side, which a blow must leave alone."""
    roles = {"engine": ("trainer rank 0", "trainer rank 1"), "trainer": ("engine host", "engine core")}
    kind = expected(cell)
    if kind == "slept":
        return job.descendants() if cell.moment != "start-up" else []
    if kind not in roles:
        return []
    me = job.process.pid
    return [process for process in job.descendants() if any(is_of(role, process, me) for role in roles[kind])]


def _of(job: Job, cell: Cell) -> set[int]:
    """The processes that have the role now."""
    return {process.pid for process in job.descendants() if is_of(cell.role, process, job.process.pid)}


def _tells(job: Job, since: int, told: str) -> bool:
    return any(event["event"] == told for event in job.events()[since:])


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
