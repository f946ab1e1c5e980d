"""How each run is, as the list of runs tells it.

It is told from the run's files alone, so that a run of another machine, or one that was killed, is told too.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from prl.claim import LOCK
from prl.control import address
from prl.view import facts
from prl.view.files import last_lines, read_at, read_small

FRESH_S = 120.0
"""A run on another machine that wrote within this time is alive."""
_FILES = ("metrics.jsonl", "evaluations.jsonl", "events.jsonl", "config.toml")
_ENDED = {"done": "completed", "stopped": "stopped", "failed": "failed"}


class RunLine(msgspec.Struct, kw_only=True):
    """One run in the list."""

    run: str
    state: str
    """``live``, ``completed``, ``stopped``, ``failed`` or ``killed``."""
    step: int | None
    num_steps: int | None
    started: float | None
    """Unix seconds; of its first event."""
    updated: float | None
    """Unix seconds; of its last line."""
    reward_last: float | None
    eval_last: float | None
    eval_is_accuracy: bool
    """Whether that is a share of right answers, and not the mean of other rewards."""


class _Step(msgspec.Struct):
    step: int
    reward_mean: float | None = None
    is_accuracy: bool = False
    complete: bool = True


def stamps(path: Path) -> tuple[int, ...]:
    """Changes whenever a run may have to be read anew."""
    return tuple(value for file in _FILES for value in _stamp(path / file))


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def state_of(path: Path) -> str:
    """See ``RunLine.state``."""
    summary = facts.summary(path)
    if summary is not None:
        return _ENDED.get(str(summary.get("status")), "failed")
    try:
        told = msgspec.json.decode(read_small(path / address.CONTROL_FILE), type=address.ControlAddress)
        pid, host = told.pid, told.host
    except msgspec.MsgspecError:
        number = read_small(path / LOCK).strip()
        pid, host = int(number) if number.isdigit() and len(number) < 10 else 0, socket.gethostname()  # noqa: PLR2004
    if host != socket.gethostname():
        return "live" if time.time() - updated(path) < FRESH_S else "killed"
    return "live" if pid > 0 and address.is_alive(pid) else "killed"


def updated(path: Path) -> float:
    """Unix seconds of its last line."""
    return max(_stamp(path / name)[0] for name in ("metrics.jsonl", "events.jsonl", "config.toml")) / 1e9


def read_line(name: str, path: Path) -> RunLine:
    """What its files say; ``state`` is left out, which may change without them."""
    step = _last(path / "metrics.jsonl")
    evaluation = _last(path / "evaluations.jsonl")
    return RunLine(
        run=name,
        state="",
        step=None if step is None else step.step,
        num_steps=facts.num_steps(path),
        started=_started(path),
        updated=updated(path) or None,
        reward_last=None if step is None else step.reward_mean,
        eval_last=None if evaluation is None else evaluation.reward_mean,
        eval_is_accuracy=evaluation is not None and evaluation.is_accuracy,
    )


def _last(path: Path) -> _Step | None:
    for line in reversed(last_lines(path)):
        with suppress(msgspec.MsgspecError):
            found = msgspec.json.decode(line, type=_Step)
            if found.complete:
                return found
    return None


def _started(path: Path) -> float | None:
    """Of the first event, in unix seconds."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        line = read_at(path / "events.jsonl", 0, 1 << 16).partition(b"\n")[0]
        first: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        return datetime.fromisoformat(first["time"]).timestamp()
    return None
