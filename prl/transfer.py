"""The gloo weight transfer: one trainer rank sends a version of the weights, every engine worker receives it.

Invariants:

- Nothing is sent before every rank has announced the same version and the same manifest. A rank that announces
  something else is an error on *all* ranks, and the group stays usable, because no byte was on the wire.
- Any later failure breaks the group on all ranks (see ``weight_group.py``), within the group's ``timeout_s``.
- A tensor leaves ``receive`` only after the checksums of all the bytes it was made of agreed with the sender's, and
  ``send`` returns only after every receiver has confirmed that it took everything.

The manifest's tensors are one stream of bytes, cut into buckets of ``bucket_bytes`` whatever the tensors' borders:
small tensors share a bucket, and one that is larger travels in pieces. Two buckets are in use on each side, so that one
is gathered and packed, or taken apart, while another is on its way; that is all the memory beyond the tensors.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence

import msgspec
import torch
from torch import Tensor

from prl.errors import WeightSyncError
from prl.types import TensorSpec, WeightGroup
from prl.weight_group import Ranks

_CRC_BYTES = 8


class _Announcement(msgspec.Struct, frozen=True):
    """What one rank believes the coming transfer to be."""

    version: int
    manifest: str
    bucket_bytes: int


class GlooGroup:
    """One rank's membership in a weight group. Not safe for two threads at once, except for ``close``."""

    def __init__(self, ranks: Ranks, world_size: int, bucket_bytes: int) -> None:
        self._ranks, self._world_size, self._bucket_bytes = ranks, world_size, bucket_bytes

    @classmethod
    def join(cls, group: WeightGroup, rank: int) -> GlooGroup:
        """Meet the other ranks at ``group.address:port``; rank 0 hosts the meeting and is the sender.

        Raises:
            WeightSyncError: the address cannot be used, or a rank did not come within ``group.timeout_s``.
        """
        if not 0 <= rank < group.world_size:
            raise WeightSyncError(f"rank {rank} is not in a weight group of {group.world_size} ranks")
        ranks = Ranks(group, rank)
        ranks.connect()
        return cls(ranks, group.world_size, group.bucket_bytes)

    def send(self, version: int, manifest: Sequence[TensorSpec], tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Send ``tensors``, which must be what ``manifest`` says in its order, to every other rank.

        Raises:
            WeightSyncError: a rank expected something else, a tensor is not what the manifest says, or a wait ended.
        """
        self._ranks.start()
        self._agree(version, manifest)
        with self._ranks.breaking(f"sending version {version} failed"):
            size, rooms = self._rooms(_num_bytes(manifest))
            fill = 0
            for piece in _checked(manifest, tensors):
                rest = _bytes(piece.detach().to("cpu").contiguous())
                while rest.numel():
                    if fill == size:
                        self._send_bucket(rooms[0], fill, version)
                        rooms.reverse()
                        fill = 0
                    taken, rest = rest[: size - fill], rest[size - fill :]
                    rooms[0][fill : fill + len(taken)] = taken
                    fill += len(taken)
            if fill:  # the last bucket waits for the end of the tensors, so that one too many is noticed on all sides
                self._send_bucket(rooms[0], fill, version)
            self._ranks.finish()
            self._ranks.wait_for("done", range(1, self._world_size), f"to confirm version {version}")

    def receive(self, version: int, manifest: Sequence[TensorSpec]) -> Generator[tuple[str, Tensor]]:
        """Yield the named tensors of ``manifest`` in its order, on the CPU, each owned by the caller.

        Exhaust it: the end of the iteration is the confirmation that the sender waits for; leaving it early breaks the
        group. Use it under ``contextlib.closing``.

        Raises:
            WeightSyncError: the sender offers something else, the bytes are damaged, or a wait ended.
        """
        self._ranks.start()
        self._agree(version, manifest)
        with self._ranks.breaking(f"receiving version {version} failed"):
            buckets = self._buckets(_num_bytes(manifest), version)
            bucket = torch.empty(0, dtype=torch.uint8)
            for spec in manifest:
                tensor = torch.empty(spec.shape, dtype=_dtype(spec))
                rest = _bytes(tensor)
                while rest.numel():
                    if not bucket.numel():
                        bucket = next(buckets)
                    size = min(len(rest), len(bucket))
                    rest[:size] = bucket[:size]
                    rest, bucket = rest[size:], bucket[size:]
                yield spec.name, tensor
            self._ranks.say("done", b"1")

    def close(self) -> None:
        """Leave the group. Peers that are in a transfer fail; idempotent."""
        self._ranks.close()

    def _agree(self, version: int, manifest: Sequence[TensorSpec]) -> None:
        """Compare what all ranks announce; everybody sees the same announcements, so everybody decides the same."""
        mine = _Announcement(
            version, hashlib.sha256(msgspec.json.encode(list(manifest))).hexdigest(), self._bucket_bytes
        )
        with self._ranks.breaking(f"no agreement on version {version}"):
            self._ranks.say("hello", msgspec.json.encode(mine))
            said = self._ranks.wait_for("hello", range(self._world_size), f"to announce version {version}")
            announced = [msgspec.json.decode(text, type=_Announcement) for text in said]
        if any(other != announced[0] for other in announced):
            what = ", ".join(
                f"rank {rank}: version {a.version}, manifest {a.manifest[:12]}, buckets of {a.bucket_bytes} bytes"
                for rank, a in enumerate(announced)
            )
            raise WeightSyncError(
                f"the ranks of the weight group disagree on what is sent ({what}); nothing was sent. "
                f"Trainer and engines must be given the same WeightUpdate"
            )

    def _rooms(self, num_bytes: int) -> tuple[int, list[Tensor]]:
        """Bytes of a bucket, and memory for as many as are in use at once, each with its checksum behind it."""
        size = min(self._bucket_bytes, num_bytes)
        count = 2 if num_bytes > size else 1
        return size, [torch.empty(size + _CRC_BYTES, dtype=torch.uint8) for _ in range(count)]

    def _send_bucket(self, bucket: Tensor, fill: int, version: int) -> None:
        """Begin to send, when the bucket before has left and its memory is free."""
        crc = torch.tensor([_crc(bucket[:fill])], dtype=torch.int64)
        bucket[fill : fill + _CRC_BYTES] = _bytes(crc)
        self._ranks.finish()
        self._ranks.begin(bucket[: fill + _CRC_BYTES], f"version {version}")

    def _buckets(self, left: int, version: int) -> Iterator[Tensor]:
        """The payloads of ``left`` bytes in all, each good until the next is asked for, which is on its way by then."""
        size, rooms = self._rooms(left)

        def begin() -> Tensor:
            rooms.reverse()
            message = rooms[0][: min(size, left) + _CRC_BYTES]
            self._ranks.begin(message, f"version {version}")
            return message

        coming = begin()
        while left:
            self._ranks.finish()
            here = coming
            left -= len(here) - _CRC_BYTES
            if left:
                coming = begin()
            yield _intact(here, version)


def finite(version: int, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The same as it comes. What is not finite is an error behind the last, for the group hears of transfers only.

    Raises:
        WeightSyncError: a value is not finite.
    """
    bad = ""
    for name, tensor in tensors:
        bad = bad or ("" if torch.isfinite(tensor).all() else name)
        yield name, tensor
    if bad:
        raise WeightSyncError(f"version {version} of {bad} holds a value that is not finite")


def _intact(message: Tensor, version: int) -> Tensor:
    """The payload of a message. Raises WeightSyncError where it is not what its checksum is of."""
    size = len(message) - _CRC_BYTES
    payload, trailer = message[:size], message[size:].clone()
    expected, got = int(trailer.view(torch.int64)[0]), _crc(payload)
    if expected != got:
        raise WeightSyncError(
            f"a bucket of {size} bytes of version {version} arrived damaged: checksum {got:#x}, sent {expected:#x}"
        )
    return payload


def _dtype(spec: TensorSpec) -> torch.dtype:
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise WeightSyncError(f"{spec.name} has the dtype {spec.dtype!r}, which is none of torch's")
    return dtype


def _num_bytes(manifest: Sequence[TensorSpec]) -> int:
    return sum(torch.Size(spec.shape).numel() * _dtype(spec).itemsize for spec in manifest)


def _bytes(tensor: Tensor) -> Tensor:
    """A contiguous tensor's memory as bytes, shared."""
    return tensor.reshape(-1).view(torch.uint8)


def _crc(payload: Tensor) -> int:
    return zlib.crc32(payload.numpy().data)


def _checked(manifest: Sequence[TensorSpec], tensors: Iterable[tuple[str, Tensor]]) -> Iterator[Tensor]:
    """The tensors, each compared with its line of the manifest before a byte of it is used."""
    given = iter(tensors)
    for spec in manifest:
        name, tensor = next(given, (None, None))
        if name is None or tensor is None:
            raise WeightSyncError(f"the sender has no tensor for {spec.name} of the manifest")
        actual = (name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        declared = (spec.name, spec.dtype, list(spec.shape))
        if actual != declared:
            raise WeightSyncError(f"the manifest says {declared}, the sender has {actual}")
        yield tensor
    extra = next(given, None)
    if extra is not None:
        raise WeightSyncError(f"the sender has a tensor {extra[0]} after the manifest's last")
