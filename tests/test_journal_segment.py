"""A segment as a crash, a bad disk or another version of prl leaves it."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import msgspec
import pytest

from prl.journal_segment import HEAD, HEAD_CHECKSUM, MAGIC, NUM_HEAD_BYTES, Segment, create, encoded
from prl.ledger import Ledger
from prl.records import Admitted, AnyRecord, Left, Sampled, Trained
from prl.types import TokenChunk
from tests.factories import make_prompt

CHUNK = TokenChunk(token_ids=[7, 8], logprobs=[-0.25, -1e-7], version=0)


def snapshot() -> list[AnyRecord]:
    """A ledger with one open prompt: two records that belong together."""
    ledger = Ledger()
    ledger.append(Admitted(prompt=make_prompt(0)))
    return [*ledger.snapshot()]


RECORDS: list[AnyRecord] = [
    *snapshot(),
    Admitted(prompt=make_prompt(1)),
    Sampled(prompt_id=1, member=0, chunk=CHUNK),
    Left(prompt_id=0, reason="timeout"),
    Trained(step=0, prompt_ids=[1]),
]
WHOLE = MAGIC + encoded(RECORDS)
ENDS = [len(MAGIC) + len(encoded(RECORDS[:count])) for count in range(len(RECORDS) + 1)]


def read(path: Path, data: bytes) -> tuple[list[AnyRecord], Segment]:
    """What is read of a segment with these bytes."""
    path.write_bytes(data)
    segment = Segment(path)
    return list(segment.records()), segment


def num_whole(at: int) -> int:
    """Records before that byte, of a snapshot all or none."""
    count = sum(end <= at for end in ENDS) - 1
    return count if count != 1 else 0


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    """Records come back in type and value, and nothing is said of the end."""
    path = tmp_path / "journal" / "step-000000.log"
    create(path, encoded(RECORDS))
    segment = Segment(path)
    assert list(segment.records()) == RECORDS
    assert (segment.torn, segment.damage) == (None, None)
    assert path.read_bytes() == WHOLE
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_torn_tail_loses_only_what_was_torn(tmp_path: Path) -> None:
    """Field notes G, half-written: cut anywhere, every record before it is read, and nothing is damage."""
    for at in [*range(len(MAGIC), len(WHOLE), 5), *ENDS]:
        records, segment = read(tmp_path / "segment", WHOLE[:at])
        assert records == RECORDS[: num_whole(at)]
        assert (segment.torn is not None, segment.damage) == (at not in ENDS, None)


def test_no_flipped_bit_is_believed(tmp_path: Path) -> None:
    """Wherever it is: what is before it is read, what is behind it is not, and the place is said."""
    path = tmp_path / "segment"
    for at in range(0, len(WHOLE), 5):
        broken = bytearray(WHOLE)
        broken[at] ^= 0x40
        records, segment = read(path, bytes(broken))
        assert records == RECORDS[: num_whole(at)] if at >= len(MAGIC) else records == []
        assert segment.torn is None, "a wrong length would reach beyond the end and hide all behind it"
        begins_at = max((end for end in ENDS if end <= at), default=0)
        assert segment.damage == (
            f"{path} is damaged after {begins_at} of {len(WHOLE)} bytes: what follows there is left out"
            if begins_at
            else f"{path} is no segment of a journal"
        )


@pytest.mark.parametrize("body", [b"\xc1", msgspec.msgpack.encode({"type": "unheard-of"}), msgspec.msgpack.encode(7)])
def test_a_record_that_nobody_knows_is_damage(tmp_path: Path, body: bytes) -> None:
    """Whole by its checksums and no record of this version of prl: said with its place, and not a traceback."""
    head = HEAD.pack(len(body), zlib.crc32(body))
    path = tmp_path / "segment"
    records, segment = read(path, WHOLE + head + HEAD_CHECKSUM.pack(zlib.crc32(head)) + body)
    assert records == RECORDS
    assert segment.damage is not None
    assert segment.damage.startswith(f"{path} holds a record after {len(WHOLE)} bytes that nobody knows (")


@pytest.mark.parametrize("num_zeros", [1, NUM_HEAD_BYTES, 100])
def test_zeros_at_the_end_are_a_torn_tail(tmp_path: Path, num_zeros: int) -> None:
    """A crash may leave a file that had grown already, and nothing in its new part."""
    records, segment = read(tmp_path / "segment", WHOLE + bytes(num_zeros))
    assert (records, segment.damage) == (RECORDS, None)
    assert segment.torn is not None


def test_reading_takes_a_time_that_grows_with_the_segment_only(tmp_path: Path) -> None:
    """A resume after a long time without a checkpoint does not stand before a segment for minutes."""
    data = encoded([Left(prompt_id=1, reason="x" * 100)]) * 60_000
    started = time.process_time()
    records, _ = read(tmp_path / "segment", MAGIC + data)
    assert len(records) == 60_000
    assert time.process_time() - started < 3
