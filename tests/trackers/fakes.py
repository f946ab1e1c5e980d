"""Trackers that write down what they are told, fail, or hang: each in the shape that one of a user's own has."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prl.trackers.base import Opened, TrackedRun


class Notebook:
    """Writes each call to a file; refuses what it is told to.

    Options:
        path: the file.
        refuse_step: a step that it never takes.
        num_failures: calls that fail before the first that does not.
        api_token: a secret, which its failures name.
    """

    def __init__(
        self, *, path: str, refuse_step: int = -1, num_failures: int = 0, api_token: str = "", takes_back: bool = False
    ) -> None:
        self._path, self._refuse_step, self._token = Path(path), refuse_step, api_token
        self._failures = num_failures
        self._takes_back = takes_back

    def open(self, run: TrackedRun) -> Opened:
        """Note what it was opened with."""
        self._note("open", run.id, run.first_step, run.sent_step)
        last_step = run.first_step if self._takes_back else run.sent_step
        return Opened(id=run.id or "notebook-1", last_step=last_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Note the step, and the loss if it is one of training."""
        if self._failures > 0:
            self._failures -= 1
            raise ConnectionError(f"no answer with the key {self._token}")
        if step == self._refuse_step:
            raise ValueError(f"step {step} is not wanted")
        self._note("log", step, values.get("train/loss"))

    def flush(self) -> None:
        """Nothing to do."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Note how it ended."""
        self._note("finish", summary["status"])

    def _note(self, *what: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(what) + "\n")


class Hanging(Notebook):
    """Never comes back from ``open``, after it wrote to the pipe ``path`` that it was called."""

    def open(self, run: TrackedRun) -> Opened:
        """Hang."""
        self._note("open", run.id)
        threading.Event().wait()
        raise AssertionError


class Shapeless:
    """Lacks most of a tracker."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Alone."""


def notes(path: Path) -> list[list[Any]]:
    """What a ``Notebook`` has written."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]
