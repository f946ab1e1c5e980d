"""What can be seen of a run from outside: its files, and what it says itself while it goes on.

- Nothing in the folder is changed, and the run pays for one question at a time.
- Looking again reads only what was added since. Of a step that was done again the new line counts.
- What was seen does not change any more: whoever draws it needs no lock.
- Every state of a run can be looked at: one that goes on, is blocked, was killed, has ended, or has only begun.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from prl import asking
from prl.asking import Told
from prl.check_control import CONTROL_TOKEN
from prl.config import Config
from prl.control import address
from prl.control.client import Client
from prl.errors import ConfigError, PrlError
from prl.evaluate import Evaluation
from prl.metrics import StepReport
from prl.progress import Progress
from prl.run_folder import EVALUATIONS, Summary
from prl.settings import load_config
from prl.status import Status
from prl.tail import Tail

CURVES = ("entropy", "grad_norm", "lag_mean", "length_mean", "gen_tok_s")
"""Fields of the reports whose history is kept, besides the reward."""
NUM_EVENTS = 200
_EVENTS_BYTES = 1 << 16
_OWN = frozenset(StepReport.__struct_fields__) - {"dropped", "rewards"}
_REQUIRED = frozenset(field.name for field in msgspec.structs.fields(StepReport) if field.required)


class Seen(msgspec.Struct, kw_only=True):
    """A run as it was when it was looked at last."""

    name: str
    told: Told
    """How it is: ``running``, ``done``, ``killed``, ..."""
    status: Status | None
    """What it says itself; None where it does not answer."""
    progress: Progress
    curves: dict[str, list[float]]
    """By ``CURVES``, a value a step."""
    events: list[dict[str, Any]]
    """The last ones, oldest first."""
    summary: Summary | None


class Watched:
    """The run in ``run_dir``.

    Raises:
        ConfigError: there is none.
    """

    def __init__(self, run_dir: Path) -> None:
        path = run_dir / "config.toml"
        if not path.exists():
            raise ConfigError(
                f"{run_dir} holds no run (it has no config.toml): name the folder of a run, such as runs/math"
            )
        self._run_dir, self._config = run_dir, _config_of(path)
        self._metrics, self._evaluations = Tail(run_dir / "metrics.jsonl"), Tail(run_dir / EVALUATIONS)
        self._log = Tail(run_dir / "events.jsonl", last_bytes=_EVENTS_BYTES)
        self._events: deque[dict[str, Any]] = deque(maxlen=NUM_EVENTS)
        self._begin()
        self._seen_progress, self._seen_curves = self._progress, self._curves

    def _begin(self) -> None:
        self._progress = Progress(0 if self._config is None else self._config.run.num_steps)
        self._curves: dict[str, list[float]] = {name: [] for name in CURVES}

    def look(self) -> Seen:
        """Read what is new, and ask the run. Blocking, for ``asking.ANSWER_TIMEOUT_S`` or a little more at most."""
        self._read()
        status = self._status()
        return Seen(
            name=self._run_dir.name if self._config is None else self._config.run.name,
            told=Told(state="running", chain=status.why) if status is not None else self._told(),
            status=status,
            progress=self._seen_progress,
            curves=self._seen_curves,
            events=list(self._events),
            summary=self._summary(),
        )

    def _read(self) -> None:
        is_new = False
        while lines := self._metrics.read():
            for line in lines:
                self._add(line)
            is_new = True
        while lines := self._evaluations.read():
            for line in lines:
                self._add_evaluation(line)
            is_new = True
        while lines := self._log.read():
            self._events.extend(lines)
        if is_new:
            self._seen_progress = self._progress.copied()
            self._seen_curves = {name: values.copy() for name, values in self._curves.items()}

    def _add_evaluation(self, line: dict[str, Any]) -> None:
        with suppress(msgspec.ValidationError):
            if line.get("complete"):
                evaluation = msgspec.convert({**line, "answers": []}, Evaluation, str_keys=True)
                self._progress.evaluated(evaluation)

    def _add(self, line: dict[str, Any]) -> None:
        """Count a step. One that was counted before is done again: the file was cut, and is read from its beginning."""
        report = report_of(line)
        if report is None:
            return
        if report.step <= self._progress.step:
            self._begin()
        self._progress.add(report)
        for name, values in self._curves.items():
            values.append(getattr(report, name))

    def _status(self) -> Status | None:
        with suppress(PrlError):
            where = address.read(self._run_dir)
            token = where.token or os.environ.get(CONTROL_TOKEN, "")
            client = Client(where.url, token, where.url, timeout_s=asking.ANSWER_TIMEOUT_S)
            status: Status = client.ask("GET", "/status", Status)
            return status
        return None

    def _told(self) -> Told:
        try:
            return asking.ask(self._run_dir)
        except ConfigError as error:  # it goes on, and is not to be asked from here
            return Told(state="silent", chain=str(error))

    def _summary(self) -> Summary | None:
        with suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode((self._run_dir / "summary.json").read_bytes(), type=Summary)
        return None


def report_of(line: dict[str, Any]) -> StepReport | None:
    """A line of ``metrics.jsonl`` as the report that it was; None where it is none. What was no number is NaN."""
    fields = {name: float("nan") if value is None else value for name, value in line.items() if name in _OWN}
    found: dict[str, Any] = {name: {} if name == "dropped" else 0 for name in _REQUIRED - fields.keys()}
    dropped = {name.removeprefix("dropped_"): count for name, count in line.items() if name.startswith("dropped_")}
    try:
        return msgspec.convert({**found, **fields, "dropped": dropped}, StepReport)
    except msgspec.ValidationError:
        return None


def _config_of(path: Path) -> Config | None:
    """The configuration, unless another version of prl wrote it."""
    with suppress(ConfigError):
        return load_config(path)
    return None
