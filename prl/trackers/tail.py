"""Reading a file of JSON lines that another process appends to.

A line is read once and whole: one whose end is not there yet comes with the next call.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

MAX_BYTES = 1 << 20
_OBJECT = msgspec.json.Decoder(dict[str, Any])


class Tail:
    """The lines of ``path``, from its beginning on; it may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> list[dict[str, Any]]:
        """Lines that came since, in order, a mebibyte of them at most; what is no object is passed over."""
        try:
            with self._path.open("rb") as file:
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
