"""The folder that is served: which runs are in it, and how each is.

Invariants:

- A name leads to a run below the folder, at most ``MAX_DEPTH`` deep, and nowhere else: no part of it is ``..`` or a
  symbolic link.
- How a run is, is told from its files alone, so that a run of another machine, or one that was killed, is told too.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from prl.claim import LOCK
from prl.control import address
from prl.errors import ConfigError, NotFoundError
from prl.view import facts
from prl.view.files import last_lines, read_at, read_small
from prl.view.run import OpenRun

MAX_DEPTH, MAX_RUNS = 3, 5000
MAX_OPEN = 16
"""Runs whose files are held in memory."""
FRESH_S = 120.0
"""A run on another machine that wrote within this time is alive."""
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


class _Step(msgspec.Struct):
    step: int
    reward_mean: float | None = None
    complete: bool = True


def is_run(path: Path) -> bool:
    """Whether this is a run folder."""
    return (path / "config.toml").is_file() or (path / "metrics.jsonl").is_file()


class Runs:
    """See the module."""

    def __init__(self, path: Path) -> None:
        """Serve ``path``: a run folder, or a folder of runs.

        Raises:
            ConfigError: it is neither.
        """
        if not path.is_dir():
            raise ConfigError(f"{path}: no such folder; name a run folder, such as runs/math, or a folder of runs")
        self.root = path.resolve()
        self._only: str | None = None
        if is_run(self.root):
            self.root, self._only = self.root.parent, self.root.name
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._lines: dict[str, tuple[tuple[int, ...], RunLine]] = {}
        self._lock = threading.Lock()

    @property
    def shown(self) -> str:
        """What is served, for people."""
        return str(self.root / self._only if self._only else self.root)

    def names(self) -> list[str]:
        """Names of the runs, relative to the folder served."""
        if self._only is not None:
            return [self._only]
        found = []
        for path in _below(self.root, MAX_DEPTH):
            found.append(path.relative_to(self.root).as_posix())
            if len(found) >= MAX_RUNS:
                break
        return sorted(found)

    def path(self, name: str) -> Path:
        """The folder of a run. Raises NotFoundError."""
        missing = NotFoundError(f"there is no run {name!r} in {self.root}; /api/runs lists those that there are")
        parts = name.split("/")
        if self._only is not None and name != self._only:
            raise missing
        if len(parts) > MAX_DEPTH or any(part in {"", ".", ".."} or "\0" in part or "\\" in part for part in parts):
            raise missing
        path = self.root
        for part in parts:
            path = path / part
            try:
                if path.is_symlink() or not path.is_dir():
                    raise missing
            except OSError:  # a name that is too long
                raise missing from None
        if not is_run(path):
            raise missing
        return path

    def open(self, name: str) -> OpenRun:
        """The readers of a run. Raises NotFoundError."""
        path = self.path(name)
        with self._lock:
            found = self._open.pop(name, None)
            if found is None:
                found = OpenRun(name, path)
            self._open[name] = found
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)[1].close()
            return found

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def lines(self) -> list[RunLine]:
        """Each run, those that wrote last first."""
        names = self.names()
        found = []
        for name in names:
            with suppress(NotFoundError):
                found.append(self.line(name))
        with self._lock:
            self._lines = {name: line for name, line in self._lines.items() if name in set(names)}
        return sorted(found, key=lambda line: -(line.updated or 0.0))

    def line(self, name: str) -> RunLine:
        """One of them. Raises NotFoundError."""
        path = self.path(name)
        seen = tuple(
            value
            for file in ("metrics.jsonl", "evaluations.jsonl", "events.jsonl", "config.toml")
            for value in _stamp(path / file)
        )
        with self._lock:
            known = self._lines.get(name)
        if known is None or known[0] != seen:
            known = seen, _read_line(name, path)
        line = msgspec.structs.replace(known[1], state=state_of(path))
        with self._lock:
            self._lines[name] = seen, line
        return line


def _below(path: Path, depth: int) -> Iterator[Path]:
    """Run folders below ``path``, none within another."""
    try:
        children = sorted(entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in children:
        child = path / name
        if is_run(child):
            yield child
        elif depth > 1 and not name.startswith("."):
            yield from _below(child, depth - 1)


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
        return "live" if time.time() - _updated(path) < FRESH_S else "killed"
    return "live" if pid > 0 and address.is_alive(pid) else "killed"


def _updated(path: Path) -> float:
    return max(_stamp(path / name)[0] for name in ("metrics.jsonl", "events.jsonl", "config.toml")) / 1e9


def _read_line(name: str, path: Path) -> RunLine:
    step = _last(path / "metrics.jsonl")
    evaluation = _last(path / "evaluations.jsonl")
    return RunLine(
        run=name,
        state="",
        step=None if step is None else step.step,
        num_steps=facts.num_steps(path),
        started=_started(path),
        updated=_updated(path) or None,
        reward_last=None if step is None else step.reward_mean,
        eval_last=None if evaluation is None else evaluation.reward_mean,
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
