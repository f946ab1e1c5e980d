"""Files of lines that somebody else is writing.

Invariants:

- Only whole lines are given out, each once, with the byte where it begins. A last line without its newline waits.
- What is no regular file, or is reached through a symbolic link, is never opened.
- A file that no longer holds what was read of it (a resumed run cuts the steps that it repeats) is noticed before
  anything behind is read: by its size, and by the last line that was read.
- No line above ``MAX_LINE_BYTES`` is ever held; it is passed over and counted.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

MAX_LINE_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20


class Line(NamedTuple):
    """One line of a file, without its newline."""

    offset: int
    text: bytes


class ChangedError(Exception):
    """The file no longer holds what was read of it."""


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor to read ``path``. Raises OSError where it is no regular file, or a symbolic link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def read_small(path: Path, limit: int = 1 << 22) -> bytes:
    """A small file's content; empty where there is none, or it is larger than ``limit`` bytes."""
    try:
        with opened(path) as file:
            found = os.pread(file, limit + 1, 0)
    except OSError:
        return b""
    return found if len(found) <= limit else b""


def read_at(path: Path, offset: int, size: int) -> bytes:
    """``size`` bytes from ``offset``, fewer where the file ends. Raises OSError."""
    with opened(path) as file:
        return os.pread(file, size, offset)


def last_lines(path: Path, limit: int = 1 << 16) -> list[bytes]:
    """The whole lines among the last ``limit`` bytes."""
    try:
        with opened(path) as file:
            size = os.fstat(file).st_size
            start = max(0, size - limit)
            found = os.pread(file, limit, start)
    except OSError:
        return []
    if start:
        found = found.partition(b"\n")[2]
    return found.rpartition(b"\n")[0].splitlines()


class Tail:
    """Reads on in one file, from wherever it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = self.size = 0
        """Bytes that are done, and bytes that the file had at the last look."""
        self.num_too_long = 0
        self._last: tuple[int, int, int] | None = None
        self._is_within_long = False

    def go_to(self, position: int, last: tuple[int, int, int] | None = None) -> None:
        """Read on from there; ``last`` is the offset, size and CRC-32 of the line before, to know the file by."""
        self.position, self._last, self._is_within_long = position, last, False

    def read(self, num_bytes: int = CHUNK_BYTES) -> list[Line]:
        """The next whole lines, about ``num_bytes`` of them, or none.

        Raises:
            ChangedError: what was read is not there any more; ``go_to`` the start, or what is known to be there.
        """
        try:
            with opened(self.path) as file:
                self.size = os.fstat(file).st_size
                self._check(file)
                return self._next(file, num_bytes)
        except OSError:
            if self.position:
                raise ChangedError from None
            self.size = 0
            return []

    @property
    def last(self) -> tuple[int, int, int] | None:
        """Offset, size and CRC-32 of the last line that was read."""
        return self._last

    def _check(self, file: int) -> None:
        if self.size < self.position:
            raise ChangedError
        if self._last is not None:
            offset, size, crc = self._last
            if zlib.crc32(os.pread(file, size, offset)) != crc:
                raise ChangedError

    def _next(self, file: int, num_bytes: int) -> list[Line]:
        while self.position < self.size:
            found = os.pread(file, num_bytes, self.position)
            end = found.rfind(b"\n")
            if self._is_within_long:
                self._pass_over(found)
                if self._is_within_long:
                    break
            elif end >= 0:
                return self._split(found[:end])
            elif len(found) > MAX_LINE_BYTES:
                self._is_within_long = True
                self.num_too_long += 1
            elif len(found) == num_bytes:
                num_bytes *= 4
            else:
                break
        return []

    def _pass_over(self, found: bytes) -> None:
        """Go on behind the newline that ends a line that is too long, or behind all that was read of it."""
        end = found.find(b"\n")
        self._is_within_long = end < 0
        self.position += len(found) if end < 0 else end + 1

    def _split(self, found: bytes) -> list[Line]:
        lines, offset = [], self.position
        for text in found.split(b"\n"):
            if len(text) > MAX_LINE_BYTES:
                self.num_too_long += 1
            else:
                lines.append(Line(offset, text))
            offset += len(text) + 1
        self.position = offset
        if lines:
            last = lines[-1]
            self._last = last.offset, len(last.text), zlib.crc32(last.text)
        return lines


class Sink(Protocol):
    """What the lines of a file go to."""

    num_malformed: int
    """Lines that are not what this file holds."""

    def add(self, lines: list[Line]) -> None:
        """Take these."""
        ...

    def clear(self) -> None:
        """Forget everything: the file has changed."""
        ...


class Follower:
    """Keeps a sink up with its file, a slice of time after the other."""

    def __init__(self, path: Path, sink: Sink) -> None:
        self._tail, self._sink = Tail(path), sink

    def advance(self, seconds: float) -> bool:
        """Read on for about so long; whether the end was reached."""
        ends_at = time.monotonic() + seconds
        while True:
            try:
                before = self._tail.position
                lines = self._tail.read()
            except ChangedError:
                self._tail.go_to(0)
                self._tail.num_too_long = 0
                self._sink.clear()
                continue
            if lines:
                self._sink.add(lines)
            elif self._tail.position == before:
                return True
            if time.monotonic() >= ends_at:
                return self._tail.position >= self._tail.size

    @property
    def share(self) -> float:
        """How much of the file is read, from 0 to 1."""
        return min(1.0, self._tail.position / self._tail.size) if self._tail.size else 1.0

    @property
    def skipped(self) -> int:
        """Lines that were passed over."""
        return self._tail.num_too_long + self._sink.num_malformed
