"""``prl run`` as a child process: its lines as they come, its events, and every process it ever had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import msgspec
import psutil

from tests.faults.cells import Cell

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "configs/math.toml"
START_S = 240
END_S = 15
POLL_S = 0.2


class Job:
    """One run of the default job, in ``folder / "run"``. ``struck`` runs it under ``struck.py``, which takes blows."""

    def __init__(
        self, folder: Path, settings: Mapping[str, str], *, resume: bool = False, struck: bool = False
    ) -> None:
        module = ["tests.faults.struck", str(folder)] if struck else ["prl"]
        command = [sys.executable, "-m", *module, "run", str(CONFIG), "--plain", "--run-dir", str(folder / "run")]
        command += ["--resume"] if resume else []
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        self.folder, self.run_dir = folder, folder / "run"
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.output: list[str] = []
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.known: dict[int, psutil.Process] = {}
        """Every process that was ever seen below it."""

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            self._lines.put(line)

    @property
    def said(self) -> str:
        """Everything it printed."""
        return "".join(self.output)

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def wait_for(self, text: str, seconds: float = START_S) -> None:
        """Wait for a line that holds ``text``."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and (self._reader.is_alive() or not self._lines.empty()):
            try:
                if text in self._lines.get(timeout=0.2):
                    return
            except Empty:
                self.descendants()
        raise AssertionError(f"no line with {text!r}:\n{self.said}")

    def wait_until(self, what: str, condition: Callable[[], bool], seconds: float = START_S) -> None:
        """Wait until ``condition`` holds, while the run is under way."""
        deadline = time.monotonic() + seconds
        while not condition():
            ended = self.process.poll() is not None
            assert not ended, f"it ended with {self.process.returncode} before {what}:\n{self.said[-3000:]}"
            assert time.monotonic() < deadline, f"no {what} within {seconds:g} s:\n{self.said[-3000:]}"
            self.descendants()
            time.sleep(POLL_S)

    def wait_for_step(self, step: int, seconds: float = START_S) -> None:
        """Wait until so many steps are in the metrics."""
        self.wait_until(f"step {step}", lambda: self.step >= step, seconds)

    @property
    def step(self) -> int:
        """Steps in the metrics."""
        path = self.run_dir / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every step."""
        return _lines_of(self.run_dir / "metrics.jsonl")

    def events(self) -> list[dict[str, Any]]:
        """What the run wrote down that happened, resumed or not."""
        return _lines_of(self.run_dir / "events.jsonl")

    # ---- processes ---------------------------------------------------------------------------------------------------

    def descendants(self) -> list[psutil.Process]:
        """The processes below this one now; remembered, to see later that each has ended."""
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self.known.update({process.pid: process for process in found})
        return found

    def find(self, words: str) -> psutil.Process:
        """The process below this one whose name or command line holds ``words``."""
        for process in self.descendants():
            try:
                if words in process.name() or words in " ".join(process.cmdline()):
                    return process
            except psutil.NoSuchProcess:
                continue
        raise AssertionError(f"no process {words!r} among {self.descendants()}")

    # ---- blows -------------------------------------------------------------------------------------------------------

    def arm(self, cell: Cell) -> None:
        """Have a blow fall at the next such moment."""
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(cell).decode() + "\n")
        self.process.stdin.flush()

    def blows(self) -> list[dict[str, Any]]:
        """Those that have fallen."""
        return _lines_of(self.folder / "blows.jsonl")

    # ---- ending ------------------------------------------------------------------------------------------------------

    def end(self, seconds: float = END_S) -> int:
        """Wait for the exit code and for the end of every process it had; this long is allowed for both."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            self.descendants()
            time.sleep(POLL_S)
        code = self.process.wait(timeout=0.1)
        _, alive = psutil.wait_procs(list(self.known.values()), timeout=max(0.1, deadline - time.monotonic()))
        assert not alive, f"processes left behind: {alive}"
        self._reader.join(timeout=5)
        return code

    def clean_up(self) -> None:
        """Kill whatever is left, and let go of the pipes."""
        for process in [*self.descendants(), *self.known.values()]:
            if process.is_running():
                process.kill()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=10)
        self._reader.join(timeout=5)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue


def audit(run_dir: Path) -> tuple[int, str]:
    """What ``prl audit`` says of a run: its exit code and its table."""
    command = [sys.executable, "-m", "prl", "audit", str(run_dir)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout + done.stderr


def _lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that is being written."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]
