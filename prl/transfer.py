"""The gloo weight group: one trainer rank sends a version of the weights, every engine worker receives it.

Invariants:

- Nothing is sent before every rank has announced the same version and the same manifest. A rank that announces
  something else is an error on *all* ranks, and the group stays usable, because no byte was on the wire.
- Any other failure breaks the group on the rank that met it, for good: that rank says why in the store and drops its
  connections, so that its peers fail at once and with its reason instead of waiting.
- Every wait has the transfer's deadline (``WeightGroup.timeout_s`` from its start) and an error that names what, and
  where it can, whom it waited for.
- A tensor leaves ``receive`` only after the checksums of all the bytes it was made of agreed with the sender's, and
  ``send`` returns only after every receiver has confirmed that it took everything.

The manifest's tensors are one stream of bytes, cut into buckets of ``BUCKET_BYTES`` whatever the tensors' borders, so
memory beyond the tensors themselves is one bucket on each side. The group is apart from torch's default one.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed
from torch import Tensor

from prl.errors import WeightSyncError
from prl.types import TensorSpec, WeightGroup

BUCKET_BYTES = 64 << 20
"""Payload of one broadcast."""
_dist: Any = torch.distributed
"""Untyped: torch's stubs leave out the names and options of the process groups that this module needs."""
_CRC_BYTES = 8
_POLL_S = (0.0005, 0.02)
_FAILED = "failed"


class _Announcement(msgspec.Struct, frozen=True):
    """What one rank believes the coming transfer to be."""

    version: int
    manifest: str


class GlooGroup:
    """One rank's membership. Not safe for two threads at once, except for ``close``."""

    def __init__(self, group: WeightGroup, rank: int) -> None:
        self.rank = rank
        self._group = group
        self._transfers = 0
        self._broken: str | None = None
        self._deadline = time.monotonic() + group.timeout_s
        self._store: Any = None
        self._gloo: Any = None

    @classmethod
    def join(cls, group: WeightGroup, rank: int) -> GlooGroup:
        """Meet the other ranks at ``group.address:port``; rank 0 hosts the meeting and is the sender.

        Raises:
            WeightSyncError: the address cannot be used, or a rank did not come within ``group.timeout_s``.
        """
        if not 0 <= rank < group.world_size:
            raise WeightSyncError(f"rank {rank} is not in a weight group of {group.world_size} ranks")
        member = cls(group, rank)
        with member._breaking(f"rank {rank} could not join the weight group at {group.address}:{group.port}"):
            member._connect()
        return member

    def send(self, version: int, manifest: Sequence[TensorSpec], tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Send ``tensors``, which must be what ``manifest`` says in its order, to every other rank.

        Raises:
            WeightSyncError: a rank expected something else, a tensor is not what the manifest says, or a wait ended.
        """
        self._start()
        self._agree(version, manifest)
        with self._breaking(f"sending version {version} failed"):
            bucket = torch.empty(min(BUCKET_BYTES, _num_bytes(manifest)) + _CRC_BYTES, dtype=torch.uint8)
            fill = 0
            for piece in _pieces(_checked(manifest, tensors)):
                rest = piece
                while rest.numel():
                    taken, rest = rest[: len(bucket) - _CRC_BYTES - fill], rest[len(bucket) - _CRC_BYTES - fill :]
                    bucket[fill : fill + len(taken)] = taken
                    fill += len(taken)
                    if fill == len(bucket) - _CRC_BYTES:
                        self._send_bucket(bucket, fill, version)
                        fill = 0
            if fill:
                self._send_bucket(bucket, fill, version)
            self._wait_for_all("done", f"to confirm version {version}")

    def receive(self, version: int, manifest: Sequence[TensorSpec]) -> Generator[tuple[str, Tensor]]:
        """Yield the named tensors of ``manifest`` in its order, on the CPU, each owned by the caller.

        Exhaust it: the end of the iteration is the confirmation that the sender waits for; leaving it early breaks the
        group. Use it under ``contextlib.closing``.

        Raises:
            WeightSyncError: the sender offers something else, the bytes are damaged, or a wait ended.
        """
        self._start()
        self._agree(version, manifest)
        with self._breaking(f"receiving version {version} failed"):
            left = _num_bytes(manifest)
            bucket = torch.empty(0, dtype=torch.uint8)
            for spec in manifest:
                tensor = torch.empty(spec.shape, dtype=_dtype(spec))
                rest = _bytes(tensor)
                while rest.numel():
                    if not bucket.numel():
                        bucket = self._receive_bucket(min(BUCKET_BYTES, left), version)
                        left -= len(bucket)
                    size = min(len(rest), len(bucket))
                    rest[:size] = bucket[:size]
                    rest, bucket = rest[size:], bucket[size:]
                yield spec.name, tensor
            self._say("done", b"1")

    def close(self) -> None:
        """Leave the group. Peers that are in a transfer fail; idempotent."""
        self._broken = self._broken or "the weight group is closed on this rank"
        self._drop()
        self._store = None

    # The meeting ------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        group = self._group
        store = _dist.TCPStore(
            group.address,
            group.port,
            is_master=self.rank == 0,
            timeout=timedelta(seconds=group.timeout_s),
            wait_for_workers=False,
        )
        self._store = _dist.PrefixStore("prl-weights", store)
        self._say("joined", b"1")
        self._wait_for_all("joined", "to join")
        options = _dist.ProcessGroupGloo._Options()  # noqa: SLF001 -- the only way to choose the interface and the timeout
        options._devices = [_device(group.address)]  # noqa: SLF001
        options._timeout = self._remaining()  # noqa: SLF001
        self._gloo = _dist.ProcessGroupGloo(
            _dist.PrefixStore("gloo", self._store), self.rank, group.world_size, options
        )

    def _start(self) -> None:
        if self._broken is not None:
            raise WeightSyncError(f"rank {self.rank} cannot transfer weights: {self._broken}")
        self._transfers += 1
        self._deadline = time.monotonic() + self._group.timeout_s

    def _agree(self, version: int, manifest: Sequence[TensorSpec]) -> None:
        """Compare what all ranks announce; everybody sees the same announcements, so everybody decides the same."""
        mine = _Announcement(version, hashlib.sha256(msgspec.json.encode(list(manifest))).hexdigest())
        with self._breaking(f"no agreement on version {version}"):
            self._say("hello", msgspec.json.encode(mine))
            said = self._wait_for_all("hello", f"to announce version {version}")
        announced = [msgspec.json.decode(text, type=_Announcement) for text in said]
        if any(other != announced[0] for other in announced):
            what = ", ".join(
                f"rank {rank}: version {a.version}, manifest {a.manifest[:12]}" for rank, a in enumerate(announced)
            )
            raise WeightSyncError(
                f"the ranks of the weight group disagree on what is sent ({what}); nothing was sent. "
                f"Trainer and engines must be given the same WeightUpdate"
            )

    # The bytes --------------------------------------------------------------------------------------------------

    def _send_bucket(self, bucket: Tensor, fill: int, version: int) -> None:
        crc = torch.tensor([_crc(bucket[:fill])], dtype=torch.int64)
        bucket[fill : fill + _CRC_BYTES] = _bytes(crc)
        self._broadcast(bucket[: fill + _CRC_BYTES], version)

    def _receive_bucket(self, size: int, version: int) -> Tensor:
        message = torch.empty(size + _CRC_BYTES, dtype=torch.uint8)
        self._broadcast(message, version)
        payload, trailer = message[:size], message[size:].clone()
        expected, got = int(trailer.view(torch.int64)[0]), _crc(payload)
        if expected != got:
            raise WeightSyncError(
                f"a bucket of {size} bytes of version {version} arrived damaged: checksum {got:#x}, sent {expected:#x}"
            )
        return payload

    def _broadcast(self, message: Tensor, version: int) -> None:
        options = _dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        options.timeout = self._remaining()
        try:
            self._gloo.broadcast([message], options).wait()
        except RuntimeError as error:
            raise WeightSyncError(
                f"rank {self.rank} waited for the broadcast of {len(message)} bytes of version {version}: {error}"
            ) from error

    # The store --------------------------------------------------------------------------------------------------

    def _key(self, phase: str, rank: int) -> str:
        return f"{self._transfers}/{phase}/{rank}"

    def _say(self, phase: str, value: bytes) -> None:
        self._store.set(self._key(phase, self.rank), value)

    def _wait_for_all(self, phase: str, purpose: str) -> list[bytes]:
        """What every rank said in ``phase``, in rank order; the sender itself confirms nothing."""
        first = 1 if phase == "done" else 0
        missing = list(range(first, self._group.world_size))
        pause = _POLL_S[0]
        while missing := [rank for rank in missing if not self._store.check([self._key(phase, rank)])]:
            if self._store.check([_FAILED]):
                raise WeightSyncError(self._store.get(_FAILED).decode())
            if time.monotonic() > self._deadline:
                raise WeightSyncError(
                    f"rank {self.rank} waited {self._group.timeout_s:g} s (weights.timeout_s) for "
                    f"{'ranks' if len(missing) > 1 else 'rank'} {', '.join(map(str, missing))} {purpose}"
                )
            time.sleep(pause)
            pause = min(2 * pause, _POLL_S[1])
        return [self._store.get(self._key(phase, rank)) for rank in range(first, self._group.world_size)]

    def _remaining(self) -> timedelta:
        return timedelta(seconds=max(0.001, self._deadline - time.monotonic()))

    # Failure ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _breaking(self, what: str) -> Iterator[None]:
        """Any exception in here breaks the group on this rank and is told to the others."""
        try:
            yield
        except BaseException as error:
            reason = self._first_reason() or f"{what}: {error or type(error).__name__}"
            self._broken = f"the weight group is broken ({reason}); connect a new one"
            if self._store is not None:
                with contextlib.suppress(RuntimeError):  # the store is gone with its host; there is nobody to tell
                    self._store.compare_set(_FAILED, "", reason)
            self._drop()
            if isinstance(error, Exception):
                raise WeightSyncError(reason) from error
            raise

    def _first_reason(self) -> str | None:
        """The reason of the rank that failed first, if another did and the store still stands."""
        with contextlib.suppress(RuntimeError):  # the store is gone with its host
            if self._store is not None and self._store.check([_FAILED]):
                return str(self._store.get(_FAILED).decode())
        return None

    def _drop(self) -> None:
        if self._gloo is not None:
            self._gloo.abort()
        self._gloo = None


def _device(address: str) -> Any:
    """Loopback stays on loopback; any other address leaves the choice to gloo (and GLOO_SOCKET_IFNAME)."""
    if address in {"127.0.0.1", "localhost", "::1"}:
        return _dist.ProcessGroupGloo.create_device(hostname=address)
    return _dist.ProcessGroupGloo.create_default_device()


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


def _pieces(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    for tensor in tensors:
        yield _bytes(tensor.detach().to("cpu").contiguous())


def _checked(manifest: Sequence[TensorSpec], tensors: Iterable[tuple[str, Tensor]]) -> Iterator[Tensor]:
    """The tensors, each compared with its line of the manifest before a byte of it is used."""
    given = iter(tensors)
    for spec in manifest:
        name, tensor = next(given, (None, None))
        if name is None or tensor is None:
            raise WeightSyncError(f"the sender has no tensor for {spec.name} of the manifest")
        actual = (name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        if actual != (spec.name, spec.dtype, list(spec.shape)):
            raise WeightSyncError(
                f"the manifest says {(spec.name, spec.dtype, list(spec.shape))}, the sender has {actual}"
            )
        yield tensor
    extra = next(given, None)
    if extra is not None:
        raise WeightSyncError(f"the sender has a tensor {extra[0]} after the manifest's last")
