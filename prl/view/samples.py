"""An index of ``samples.jsonl``, so that a group among a million is found without reading them all.

Invariants:

- It holds where each line is and what people choose by; what a line says is read from the file itself.
- It can be thrown away at any moment and is made again. It is brought up to date slice by slice, each a transaction:
  whoever is killed meanwhile, or does the same in another process, leaves it whole.
- A sample is known by the byte where its line begins, and a group by its first sample, which an index that is made anew
  gives again.
- What a resumed run has cut from the file is cut here too, and what is before stays.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

from prl.errors import RefusedError
from prl.view.files import ChangedError, Line, Tail, read_at
from prl.view.index_file import connect
from prl.view.sample_rows import SCHEMA, Rows, last_group

_CHUNK_BYTES = 1 << 21
_WORD = re.compile(r"[^\W_]+")


class Samples:
    """See the module. ``advance`` it before it is asked; ``lock`` keeps threads apart."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / "samples.jsonl"
        self._run_dir = run_dir
        self._tail = Tail(self.path)
        self._database: sqlite3.Connection | None = None
        self.lock = threading.RLock()
        self._malformed = 0

    @property
    def database(self) -> sqlite3.Connection:
        """The index, opened at the first need."""
        if self._database is None:
            self._database = connect(self._run_dir, SCHEMA)
        return self._database

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        with self.lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    @property
    def share(self) -> float:
        """How much of the file is in the index, from 0 to 1."""
        return min(1.0, self._tail.position / self._tail.size) if self._tail.size else 1.0

    @property
    def skipped(self) -> int:
        """Lines that are in no group: too long, or no samples."""
        return self._tail.num_too_long + self._malformed

    def advance(self, seconds: float) -> bool:
        """Index for about so long; whether all is in it.

        Raises:
            RefusedError: the index cannot be written, for want of room for one.
        """
        ends_at = time.monotonic() + seconds
        with self.lock:
            try:
                while not self._slice():
                    if time.monotonic() >= ends_at:
                        return False
            except sqlite3.DatabaseError as error:
                if not isinstance(error, sqlite3.OperationalError):
                    self._start_over()
                elif "lock" not in str(error):  # or another process is at it
                    raise RefusedError(f"the index of the samples cannot be written: {error}") from error
                return False
        return True

    def _slice(self) -> bool:
        """One transaction; whether the end of the file was reached."""
        base = self.database
        if self._is_done(base):
            return True
        base.execute("BEGIN IMMEDIATE")
        try:
            state = self._find_place(base)
            before = self._tail.position
            try:
                lines = self._tail.read(_CHUNK_BYTES)
            except ChangedError:
                self._cut(base)
                base.commit()
                return False
            self._put(base, lines, state)
            base.commit()
        except BaseException:
            base.rollback()
            raise
        return self._tail.position == before or self._tail.position >= self._tail.size

    def _is_done(self, base: sqlite3.Connection) -> bool:
        """Whether the file ends where the index does: then nothing is locked and nothing written."""
        try:
            size = self.path.stat().st_size
        except OSError:
            size = 0
        self._tail.size = size
        state = _state(base)
        if state.get("position", 0) != size:
            return False
        self._go_to(state)
        try:
            return not self._tail.read(0)
        except ChangedError:
            return False

    def _find_place(self, base: sqlite3.Connection) -> dict[str, int]:
        """Where the index ends: another process may have gone on."""
        state = _state(base)
        self._go_to(state)
        return state

    def _go_to(self, state: dict[str, int]) -> None:
        position = state.get("position", 0)
        last = (state["last"], state["last_size"], state["last_crc"]) if "last_crc" in state else None
        if position != self._tail.position:
            self._tail.go_to(position, last)
        self._malformed = state.get("malformed", 0)

    def _put(self, base: sqlite3.Connection, lines: list[Line], state: dict[str, int]) -> None:
        if lines:
            rows = Rows(last_group(base), state.get("doc", 0))
            for line in lines:
                rows.add(line)
            rows.put(base)
            self._malformed = state.get("malformed", 0) + rows.num_malformed
            _keep(base, doc=rows.doc, malformed=self._malformed)
        if self._tail.position != state.get("position", 0):
            if self._tail.last is not None:
                offset, size, crc = self._tail.last
                _keep(base, last=offset, last_size=size, last_crc=crc)
            _keep(base, position=self._tail.position)

    def _cut(self, base: sqlite3.Connection) -> None:
        """Keep the groups that the file still has, but for the last of them, whose samples are read again."""
        low, high = 0, base.execute("SELECT coalesce(max(id), -1) FROM groups").fetchone()[0]
        place = 0
        while low <= high:
            middle = (low + high) // 2
            row = base.execute(
                "SELECT id, size, crc FROM groups WHERE id <= ? ORDER BY id DESC LIMIT 1", (middle,)
            ).fetchone()
            if row is None:
                low = middle + 1
            elif self._has(*row):
                place = row[0]
                above = base.execute("SELECT min(id) FROM groups WHERE id > ?", (middle,)).fetchone()[0]
                if above is None:
                    break
                low = above
            else:
                high = row[0] - 1
        base.execute("DELETE FROM samples WHERE id >= ?", (place,))
        base.execute("DELETE FROM groups WHERE id >= ?", (place,))
        base.execute("DELETE FROM state WHERE name IN ('last', 'last_size', 'last_crc')")
        _keep(base, position=place)
        self._tail.go_to(place)

    def _has(self, offset: int, size: int, crc: int) -> bool:
        try:
            return zlib.crc32(read_at(self.path, offset, size)) == crc
        except OSError:
            return False

    def _start_over(self) -> None:
        """The index is damaged: make it anew."""
        self.close()
        self._database = connect(self._run_dir, SCHEMA, anew=True)
        self._tail.go_to(0)


def words_of(text: str) -> str:
    """A search for all the words of ``text``, the last of which may be only begun; empty without any."""
    words = [f'"{word}"' for word in _WORD.findall(text)]
    return " AND ".join(words) + "*" if words else ""


def _state(base: sqlite3.Connection) -> dict[str, int]:
    found: Iterable[tuple[str, int]] = base.execute("SELECT name, value FROM state").fetchall()
    return dict(found)


def _keep(base: sqlite3.Connection, **values: int) -> None:
    base.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", values.items())
