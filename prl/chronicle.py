"""``timeline.jsonl`` and ``gauges.jsonl``: what every part did and how full it was, written about each second.

Invariants:

- Nothing here is on the event loop but taking the numbers: encoding, writing and thinning are in the disk's thread, one
  batch at a time. A disk that takes nothing is a failure like that of any other file of the run.
- Neither file grows beyond ``MAX_BYTES``: its older half is thinned then. Of spans, pairs of neighbours on a lane
  become one, whose state is that of most of its time; of gauges every other line is left out. The file is replaced.
- A run that is resumed goes on in the same files: they say what the machine did, and that a step was done twice is so.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from prl.disk import Disk, append
from prl.failure import FirstFailure, failures_to
from prl.log import get_logger
from prl.timeline import Span, Timeline, unix_time

TIMELINE, GAUGES = "timeline.jsonl", "gauges.jsonl"
log = get_logger(__name__)
_THIN_AGAIN_BYTES = 4 << 20
MAX_BYTES = {TIMELINE: 96 << 20, GAUGES: 48 << 20}
INTERVAL_S = 1.0
_TAIL_BYTES = 1 << 20

Gauges = dict[str, Any]


class Chronicle:
    """See the module. ``run`` is a task of the caller's group."""

    def __init__(self, folder: Path, disk: Disk, timeline: Timeline, gauges: Callable[[], Gauges | None]) -> None:
        """``gauges`` gives the numbers of a moment, None before there are any."""
        self._folder, self._disk, self._timeline, self._gauges = folder, disk, timeline, gauges
        self._begun = set[str]()
        self._thinned_at: dict[str, int] = {}
        """Bytes at which thinning is tried again, where it failed."""

    async def run(self, failure: FirstFailure) -> None:
        """Write until cancelled, then the rest, with which every lane ends."""
        try:
            await failure.guard("timeline", self._write_on())
        finally:
            with failures_to(failure.set, "the end of the timeline"):
                self._timeline.end()
                if not self._disk.refuses:  # else it was waited for already
                    await self._flush()

    async def _write_on(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self._flush()

    async def _flush(self) -> None:
        spans, gauges = self._timeline.take(), self._gauges()
        if spans:
            await self._disk.write(TIMELINE, lambda: self._append(TIMELINE, spans))
        if gauges is not None:
            lines = [{"at": round(unix_time(), 3), **gauges}]
            await self._disk.write(GAUGES, lambda: self._append(GAUGES, lines))

    def _append(self, name: str, lines: list[Any]) -> None:
        """Write the lines, and thin the file where it is too large. Blocking."""
        path = self._folder / name
        if name not in self._begun:
            self._begun.add(name)
            if path.exists():
                cut_torn_line(path)
        append(path, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        if path.stat().st_size > self._thinned_at.get(name, MAX_BYTES[name]):
            try:
                thin(path)
                self._thinned_at.pop(name, None)
            except OSError as error:  # the lines are there; the disk may have room for a shorter copy later
                self._thinned_at[name] = path.stat().st_size + _THIN_AGAIN_BYTES
                log.warning("a file could not be made shorter", file=str(path), why=str(error))


def cut_torn_line(path: Path) -> None:
    """Drop what a crash left of a line at the end. Blocking."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - _TAIL_BYTES)
        file.seek(start)
        tail = file.read()
        if not tail.endswith(b"\n"):
            file.truncate(start + tail.rfind(b"\n") + 1)


def thin(path: Path) -> None:
    """Make the older half of a file shorter, and put the new one in its place. Blocking."""
    half, draft = path.stat().st_size // 2, path.with_suffix(".part")
    try:
        with path.open("rb") as old, draft.open("wb") as new:
            new.writelines(_merged(_first(old, half)) if path.name == TIMELINE else _every_other(_first(old, half)))
            new.writelines(old)
            new.flush()
            os.fsync(new.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _first(lines: Any, num_bytes: int) -> Iterable[bytes]:
    """The lines that begin within so many bytes."""
    while num_bytes > 0 and (line := lines.readline()):
        num_bytes -= len(line)
        yield line


def _every_other(lines: Iterable[bytes]) -> Iterable[bytes]:
    return (line for index, line in enumerate(lines) if index % 2 == 0)


def _merged(lines: Iterable[bytes]) -> Iterable[bytes]:
    """Each span of a lane with the next one of that lane, where that begins as it ends."""
    decoder, waiting = msgspec.json.Decoder(Span), dict[str, Span]()
    for line in lines:
        try:
            span = decoder.decode(line)
        except msgspec.DecodeError:
            continue  # no line of ours
        before = waiting.pop(span.lane, None)
        if before is None:
            waiting[span.lane] = span
        elif span.start - before.end > INTERVAL_S:  # nobody watched in between
            yield _line(before)
            waiting[span.lane] = span
        else:
            yield _line(_joined(before, span))
    yield from map(_line, waiting.values())


def _joined(first: Span, second: Span) -> Span:
    longer = first if first.end - first.start >= second.end - second.start else second
    return msgspec.structs.replace(longer, start=first.start, end=second.end, n=(first.n or 1) + (second.n or 1))


def _line(span: Span) -> bytes:
    return msgspec.json.encode(span) + b"\n"
