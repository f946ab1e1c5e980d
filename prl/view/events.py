"""What happened: ``events.jsonl``, a page at a time from either end.

Invariants:

- An event is known by the byte where its line begins, which stays so while the file only grows: a page that asks for
  what is new misses none and sees none twice.
- The file's bytes are not kept, only where each line is and how grave; a search reads them again.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from prl.log import LEVELS
from prl.view.files import Line, read_at

_CHUNK = 2000
_MAX_EVENT_BYTES, _MAX_READ_BYTES = 1 << 16, 1 << 22


class Page(NamedTuple):
    """Some events, in the order asked for."""

    events: list[dict[str, Any]]
    """Each as it stands in the file, with its ``id``."""
    next: int | None
    """``after`` of the page behind this one; None: there is none."""


class _Level(msgspec.Struct):
    level: str = "info"


class Events:
    """See the module."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(_Level)
        self.clear()

    def clear(self) -> None:
        """Forget all events."""
        self.num_malformed = 0
        self._offsets, self._sizes, self._levels = array("q"), array("q"), array("h")

    def add(self, lines: list[Line]) -> None:
        """Take lines."""
        for line in lines:
            try:
                level = LEVELS.get(self._decoder.decode(line.text).level, LEVELS["info"])
            except (msgspec.MsgspecError, RecursionError):
                self.num_malformed += 1
                continue
            self._offsets.append(line.offset)
            self._sizes.append(len(line.text))
            self._levels.append(level)

    def page(self, *, is_newest_first: bool, after: int | None, limit: int, level: str, text: str) -> Page:
        """At most ``limit`` events.

        Args:
            is_newest_first: read the file backwards.
            after: id of the event behind which to begin, in that direction; None: at the end of the file.
            limit: most events.
            level: only events at least as grave.
            text: only events whose line holds this, in whatever case; empty: all.

        Raises:
            OSError: the file is gone.
        """
        offsets = np.array(self._offsets)
        kept = np.array(self._levels) >= LEVELS.get(level, 0)
        if after is not None:
            kept &= (offsets < after) if is_newest_first else (offsets > after)
        rows = np.flatnonzero(kept).tolist()
        if is_newest_first:
            rows.reverse()
        found: list[dict[str, Any]] = []
        for begin in range(0, len(rows), _CHUNK):
            for row, line in self._read(rows[begin : begin + _CHUNK]):
                if text and text.casefold() not in line.decode(errors="replace").casefold():
                    continue
                if len(found) == limit:
                    return Page(found, found[-1]["id"])
                found.append(self._event(row, line))
        return Page(found, None)

    def _read(self, rows: list[int]) -> list[tuple[int, bytes]]:
        """The lines of neighbouring rows, in one read of what lies between them where that is not much."""
        if not rows:
            return []
        low, high = min(rows), max(rows)
        start = self._offsets[low]
        size = self._offsets[high] + self._sizes[high] - start
        if size > _MAX_READ_BYTES and len(rows) > 1:
            half = len(rows) // 2
            return self._read(rows[:half]) + self._read(rows[half:])
        data = read_at(self._path, start, size)
        found = []
        for row in rows:
            at = self._offsets[row] - start
            found.append((row, data[at : at + self._sizes[row]]))
        return found

    def _event(self, row: int, line: bytes) -> dict[str, Any]:
        if len(line) > _MAX_EVENT_BYTES:
            text = line[:_MAX_EVENT_BYTES].decode(errors="replace")
            return {"id": self._offsets[row], "event": text, "truncated": True}
        try:
            event = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError:  # the file is another one by now
            event = {"event": line.decode(errors="replace")}
        return {**event, "id": self._offsets[row]}
