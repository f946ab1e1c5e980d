"""Reading a file of JSON lines that another process appends to.

A line is read once and whole: one whose end is not there yet comes with the next call. A file that was replaced, as a
resumed run does with its own, is read again from its beginning.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

MAX_BYTES = 1 << 20
_OBJECT = msgspec.json.Decoder(dict[str, Any])


class Tail:
    """The lines of ``path``, which may not be there yet.

    Args:
        path: the file.
        last_bytes: begin with the lines of so many bytes at its end; absent, with its first.
    """

    def __init__(self, path: Path, *, last_bytes: int | None = None) -> None:
        self._path, self._last_bytes = path, last_bytes
        self._offset: int | None = None
        self._inode = 0

    def read(self) -> list[dict[str, Any]]:
        """Lines that came since, in order, a mebibyte of them at most; what is no object is passed over."""
        try:
            with self._path.open("rb") as file:
                self._begin(os.fstat(file.fileno()))
                assert self._offset is not None
                file.seek(self._offset)
                read = file.read(MAX_BYTES)
                if b"\n" not in read:
                    read += file.readline()  # a line longer than that
        except OSError:
            return []
        whole = read[: read.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = []
        for line in whole.splitlines():
            with suppress(msgspec.DecodeError):
                found.append(_OBJECT.decode(line))
        return found

    def _begin(self, file: os.stat_result) -> None:
        """Where to read on; the half of a line that ``last_bytes`` may begin with is no object."""
        if self._offset is None or file.st_ino != self._inode or file.st_size < self._offset:
            self._offset = 0 if self._last_bytes is None else max(0, file.st_size - self._last_bytes)
            self._inode = file.st_ino
