"""One segment of the journal: a file of records that begins with a snapshot of the ledger and is only appended to.

Invariants:

- A record is a head, which is the length and the checksum of the body under a checksum of its own, and a body, which is
  msgpack. Reading stops at the first one that is not whole. One that ends with the file is a torn tail, which a crash
  leaves; everything else is damage, and what lies behind it cannot be trusted to follow from what is before.
- A snapshot is read with all its parts or not at all.
- A segment has its name only once its beginning is whole on the disk; what is appended is there whole or not at all.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from prl.disk import append
from prl.records import AnyRecord, Snapshot

MAGIC = b"prl journal 2\n"
HEAD, HEAD_CHECKSUM = struct.Struct("!II"), struct.Struct("!I")
NUM_HEAD_BYTES = HEAD.size + HEAD_CHECKSUM.size


def encoded(records: Iterable[AnyRecord]) -> bytes:
    """Records as a segment holds them, one behind the other."""
    encoder, out = msgspec.msgpack.Encoder(), bytearray()
    for record in records:
        body = encoder.encode(record)
        head = HEAD.pack(len(body), zlib.crc32(body))
        out += head + HEAD_CHECKSUM.pack(zlib.crc32(head)) + body
    return bytes(out)


def create(target: Path, data: bytes) -> None:
    """Write a new segment aside and give it its name, on the disk on return. Blocking."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(".part")
    draft.unlink(missing_ok=True)
    append(draft, MAGIC + data, sync=True)
    draft.replace(target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Append:
    """Appends to a segment in a thread, and knows whether it may have happened where the waiting was cancelled."""

    def __init__(self, segment: Path) -> None:
        self._segment, self.may_be_done = segment, False

    def __call__(self, data: bytes) -> None:
        """Have it on the disk on return. Blocking."""
        self.may_be_done = True
        try:
            append(self._segment, data, sync=True)
        except OSError:
            self.may_be_done = False
            raise


class Segment:
    """A segment that is read once; what it says of its end is known behind its last record."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.torn: str | None = None
        """Where its last record is cut off, in words, if it is."""
        self.damage: str | None = None
        """What in it is not what was written, with its place, if anything is."""

    def records(self) -> Iterator[AnyRecord]:
        """The whole records in order, a snapshot only with all its parts. Blocking."""
        snapshot, num_open = list[AnyRecord](), 0
        for record in self._whole():
            if isinstance(record, Snapshot):
                snapshot, num_open = [record], record.num_open
            elif snapshot:
                snapshot.append(record)
            else:
                yield record
            if len(snapshot) > num_open:
                yield from snapshot
                snapshot = []

    def _whole(self) -> Iterator[AnyRecord]:
        decoder = msgspec.msgpack.Decoder(AnyRecord)
        data, at = self._path.read_bytes(), len(MAGIC)
        if not data.startswith(MAGIC):
            self.damage = f"{self._path} is no segment of a journal"
            return
        while at < len(data):
            body = _body(data, at)
            if body == "torn":
                self.torn = f"{self._path} is torn after {at} of {len(data)} bytes"
                return
            if body == "damaged":
                place = f"{self._path} is damaged after {at} of {len(data)} bytes"
                self.damage = f"{place}: what follows there is left out"
                return
            try:
                record = decoder.decode(body)
            except msgspec.DecodeError as error:  # whole, and not what this version of prl writes
                place = f"{self._path} holds a record after {at} bytes that nobody knows ({error})"
                self.damage = f"{place}: the rest is left out"
                return
            yield record
            at += NUM_HEAD_BYTES + len(body)


def _body(data: bytes, at: int) -> bytes | Literal["torn", "damaged"]:
    """The body of the record at ``at``, or what is wrong with it.

    Only a head that proves itself is believed that the body goes beyond the end of the file: a wrong length would hide
    everything behind it. A crash may leave zeros where a file had grown and nothing was written yet.
    """
    head, begins_at = data[at : at + HEAD.size], at + NUM_HEAD_BYTES
    if begins_at > len(data):
        return "torn"
    if HEAD_CHECKSUM.unpack_from(data, at + HEAD.size) != (zlib.crc32(head),):
        return "torn" if data.count(0, at) == len(data) - at else "damaged"
    length, checksum = HEAD.unpack(head)
    body = data[begins_at : begins_at + length]
    if len(body) < length:
        return "torn"
    return body if zlib.crc32(body) == checksum else "damaged"
