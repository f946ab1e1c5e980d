"""The ranks of a weight group: how they meet, wait for one another, move bytes, and fail together.

Invariants:

- Every wait ends at the deadline that ``start`` set, with an error that names what, and where it can, whom it waited
  for.
- A failure breaks the group on the rank that met it, for good: that rank says why in the store and drops its
  connections, so that its peers fail at once and with its reason instead of waiting.
- The group is apart from torch's default one. The store (TCP, hosted by rank 0) carries words, gloo carries weights.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed
from torch import Tensor

from prl.errors import WeightSyncError
from prl.network import address_towards
from prl.types import WeightGroup

_dist: Any = torch.distributed
"""Untyped: torch's stubs leave out the names and options of the process groups that this module needs."""
_POLL_S = (0.0005, 0.02)
_FAILED = "failed"


class Ranks:
    """One rank's membership. Not safe for two threads at once, except for ``close``."""

    def __init__(self, group: WeightGroup, rank: int) -> None:
        self.rank = rank
        self._group = group
        self._round = 0
        self._broken: str | None = None
        self._deadline = time.monotonic() + group.timeout_s
        self._store: Any = None
        self._gloo: Any = None
        self._on_its_way: Any = None
        """What was begun. Nobody else may hold it: with it alive, and a traceback is enough for that, the connections
        stay open when they are dropped, and the peers wait."""
        self._purpose = ""

    def connect(self) -> None:
        """Meet the other ranks at ``group.address:port``; rank 0 hosts the meeting.

        Raises:
            WeightSyncError: the address cannot be used, or a rank did not come within ``group.timeout_s``.
        """
        group, place = self._group, f"{self._group.address}:{self._group.port}"
        with self.breaking(f"rank {self.rank} could not join the weight group at {place}"):
            store = _dist.TCPStore(
                group.address,
                group.port,
                is_master=self.rank == 0,
                timeout=timedelta(seconds=group.timeout_s),
                wait_for_workers=False,
            )
            self._store = _dist.PrefixStore("prl-weights", store)
            self.say("joined", b"1")
            self.wait_for("joined", range(group.world_size), "to join")
            options = _dist.ProcessGroupGloo._Options()  # noqa: SLF001 -- the only way to choose the interface
            options._devices = [_device(group.address)]  # noqa: SLF001
            options._timeout = self._remaining()  # noqa: SLF001
            words = _dist.PrefixStore("gloo", self._store)
            self._gloo = _dist.ProcessGroupGloo(words, self.rank, group.world_size, options)

    def start(self) -> None:
        """Begin a transfer: what is said belongs to it, and its deadline runs."""
        if self._broken is not None:
            raise WeightSyncError(f"rank {self.rank} cannot transfer weights: {self._broken}")
        self._round += 1
        self._deadline = time.monotonic() + self._group.timeout_s

    def say(self, word: str, value: bytes) -> None:
        """Tell all ranks ``value``."""
        self._store.set(self._key(word, self.rank), value)

    def wait_for(self, word: str, ranks: range, purpose: str) -> list[bytes]:
        """What each of ``ranks`` said; ``purpose`` completes "waited for rank 2 ..."."""
        missing = list(ranks)
        pause = _POLL_S[0]
        while missing := [rank for rank in missing if not self._store.check([self._key(word, rank)])]:
            if (reason := self._reason()) is not None:
                raise WeightSyncError(reason)
            if time.monotonic() > self._deadline:
                who = f"{'ranks' if len(missing) > 1 else 'rank'} {', '.join(map(str, missing))}"
                limit = f"{self._group.timeout_s:g} s (weights.timeout_s)"
                raise WeightSyncError(f"rank {self.rank} waited {limit} for {who} {purpose}")
            time.sleep(pause)
            pause = min(2 * pause, _POLL_S[1])
        return [self._store.get(self._key(word, rank)) for rank in ranks]

    def begin(self, message: Tensor, purpose: str) -> None:
        """Begin to fill ``message`` (bytes, on the CPU) on every rank with rank 0's; until ``finish`` it is gloo's."""
        options = _dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        options.timeout = self._remaining()
        self._purpose = f"the broadcast of {len(message)} bytes of {purpose}"
        with self._telling():
            self._on_its_way = self._gloo.broadcast([message], options)

    def finish(self) -> None:
        """Wait until what was begun has arrived everywhere, if anything was."""
        try:
            if self._on_its_way is not None:
                with self._telling():
                    self._on_its_way.wait()
        finally:
            self._on_its_way = None

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """What gloo says goes wrong is told as a failure of this rank's wait."""
        try:
            yield
        except RuntimeError as error:
            raise WeightSyncError(f"rank {self.rank} waited for {self._purpose}: {error}") from error

    @contextlib.contextmanager
    def breaking(self, what: str) -> Iterator[None]:
        """Any exception in here breaks the group on this rank and is told to the others."""
        try:
            yield
        except BaseException as error:
            reason = self._reason() or f"{what}: {error or type(error).__name__}"
            self._broken = f"the weight group is broken ({reason}); connect a new one"
            if self._store is not None:
                with contextlib.suppress(RuntimeError):  # the store is gone with its host; there is nobody to tell
                    self._store.compare_set(_FAILED, "", reason)
            self._drop()
            if isinstance(error, Exception):
                raise WeightSyncError(reason) from error
            raise

    def close(self) -> None:
        """Leave. Peers that are in a transfer fail. Idempotent."""
        self._broken = self._broken or "the weight group is closed on this rank"
        self._drop()
        self._store = None

    def _key(self, word: str, rank: int) -> str:
        return f"{self._round}/{word}/{rank}"

    def _remaining(self) -> timedelta:
        return timedelta(seconds=max(0.001, self._deadline - time.monotonic()))

    def _reason(self) -> str | None:
        """The reason of the rank that failed first, if one did and the store still stands."""
        with contextlib.suppress(RuntimeError):  # the store is gone with its host
            if self._store is not None and self._store.check([_FAILED]):
                return str(self._store.get(_FAILED).decode())
        return None

    def _drop(self) -> None:
        gloo, self._gloo, self._on_its_way = self._gloo, None, None
        if gloo is not None:
            gloo.abort()


def _device(address: str) -> Any:
    """Gloo listens where this rank is reached from ``address``, unless GLOO_SOCKET_IFNAME names an interface.

    Its own choice would be what this host's name stands for, which other hosts need not reach.
    """
    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        return _dist.ProcessGroupGloo.create_device(interface=interface.split(",")[0])
    return _dist.ProcessGroupGloo.create_device(hostname=address_towards(address))
