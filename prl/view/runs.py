"""The folder that is served: which runs are in it, and how each is.

Invariants:

- A name leads to a run below the folder, at most ``MAX_DEPTH`` deep, and nowhere else: no part of it is ``..`` or a
  symbolic link.
- Where one run is served, its curves may be compared with those of its siblings: runs of the same user right beside it.
  Nothing else of them is told, and nothing of what else lies there.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from prl.errors import ConfigError, NotFoundError
from prl.view import run_lines
from prl.view.run import OpenRun
from prl.view.run_lines import RunLine

MAX_DEPTH, MAX_RUNS = 3, 5000
MAX_TOLD = 100
"""Siblings that are looked into at once."""
MAX_OPEN = 16
"""Runs whose files are held in memory."""


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

    def siblings(self, name: str, text: str) -> tuple[int, list[RunLine]]:
        """Runs that ``name`` can be compared with whose names have ``text`` in them.

        Returns:
            How many there are, and the ``MAX_TOLD`` of them that wrote last, the newest first.
        """
        others = self.names() if self._only is None else self._beside()
        others = [other for other in others if other != name and text.lower() in other.lower()]
        newest = sorted(others, key=lambda other: -run_lines.updated(self.root / other))[:MAX_TOLD]
        found = []
        for other in newest:
            with suppress(NotFoundError):
                found.append(self.line(other))
        return len(others), found

    def _beside(self) -> list[str]:
        """Names of the runs in the folder of the only one."""
        try:
            with os.scandir(self.root) as entries:
                return [
                    entry.name
                    for _, entry in zip(range(MAX_RUNS), entries, strict=False)
                    if self._is_sibling(entry.name)
                ]
        except OSError:
            return []

    def _is_sibling(self, name: str) -> bool:
        path = self.root / name
        try:
            owners = {path.lstat().st_uid, (self.root / str(self._only)).lstat().st_uid}
            return len(owners) == 1 and not path.is_symlink() and is_run(path)
        except OSError:
            return False

    def path(self, name: str, *, beside: bool = False) -> Path:
        """The folder of a run; ``beside``: or of a sibling of the one that is served. Raises NotFoundError."""
        missing = NotFoundError(f"there is no run {name!r} in {self.root}; /api/runs lists those that there are")
        parts = name.split("/")
        if self._only not in {None, name} and not (beside and len(parts) == 1):
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
        if not is_run(path) or (self._only not in {None, name} and not self._is_sibling(name)):
            raise missing
        return path

    def open(self, name: str, *, beside: bool = False) -> OpenRun:
        """The readers of a run, as ``path``. Raises NotFoundError."""
        path = self.path(name, beside=beside)
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
        """One of them, or of the siblings. Raises NotFoundError."""
        path = self.path(name, beside=True)
        seen = run_lines.stamps(path)
        with self._lock:
            known = self._lines.get(name)
        if known is None or known[0] != seen:
            known = seen, run_lines.read_line(name, path)
        line = msgspec.structs.replace(known[1], state=run_lines.state_of(path))
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
