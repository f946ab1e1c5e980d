"""What the simulated engines and the simulated trainer agree on: a model, a weight group, and scripted faults.

The model needs no arithmetic. Its weights are a digest of everything they were trained on, in order, so two runs have
equal weights exactly when they trained on equal batches. Its log-probabilities are a function of (weights, previous
token, token): the engine and the trainer agree to the last bit when they hold the same weights, and differ a little
when they do not, which is what a verification of a weight update must notice.

A weight group is a meeting inside one event loop. It behaves as a collective does: nobody is past ``join`` before
everybody is there, a send ends when every receiver takes part, and whoever waits for a peer that failed waits until
a deadline of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal

import msgspec

from prl.types import Sample, TensorSpec, WeightGroup

_DIGEST_BYTES = 16
_DRIFT = 0.1
_LOWEST_LOGPROB = 5.0

CHECKPOINT = blake2b(b"the checkpoint that every simulated run starts from", digest_size=_DIGEST_BYTES).digest()
"""The weights of version 0."""
MANIFEST = [TensorSpec(name="model.simulated.weight", dtype="uint8", shape=[_DIGEST_BYTES])]
"""What a weight update of the simulated model sends."""


def draw(*key: bytes | int) -> int:
    """A 64-bit number that depends on ``key`` only."""
    parts = [part if isinstance(part, bytes) else part.to_bytes(8, "little", signed=True) for part in key]
    return int.from_bytes(blake2b(b"".join(parts), digest_size=8).digest(), "little")


def fraction(*key: bytes | int) -> float:
    """A number in (0, 1] that depends on ``key`` only."""
    return ((draw(*key) >> 11) + 1) / (1 << 53)


def token_logprob(weights: bytes, previous: int, token: int) -> float:
    """Log-probability of ``token`` after ``previous``: below 0, mostly small, and it drifts with the weights."""
    common = _LOWEST_LOGPROB * fraction(previous, token) ** 2
    return -common - _DRIFT * fraction(weights, previous, token)


def sequence_logprobs(weights: bytes, token_ids: Sequence[int]) -> list[float]:
    """Log-probability of each token after the first (length L - 1)."""
    return [token_logprob(weights, a, b) for a, b in itertools.pairwise(token_ids)]


def learn(weights: bytes, samples: Sequence[Sample]) -> bytes:
    """The weights after an optimiser step on ``samples``, in this order."""
    return blake2b(weights + msgspec.msgpack.encode(samples), digest_size=_DIGEST_BYTES).digest()


class CallFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that goes wrong in one call of an engine or a trainer."""

    call: str
    """The method, such as ``load`` or ``train``."""
    kind: Literal["delay", "hang", "raise", "die", "drop", "skip"]
    """``drop`` (load) reports success and moves nothing; ``skip`` (train) is a step with a non-finite gradient."""
    nth: int = 0
    """Which call of this method, counted from 0."""
    delay_s: float = 0.0
    """How late a delayed call starts."""


class CallFaults:
    """Counts the calls of one engine or trainer and says which fault strikes each."""

    def __init__(self, faults: Sequence[CallFault]) -> None:
        self._faults = faults
        self._num_calls: Counter[str] = Counter()

    async def strike(self, call: str) -> Literal["raise", "die", "drop", "skip"] | None:
        """Note a call; sit out a delay, wait for ever in a hang, and return what the caller must do itself."""
        nth = self._num_calls[call]
        self._num_calls[call] += 1
        for fault in self._faults:
            if (fault.call, fault.nth) != (call, nth):
                continue
            if fault.kind == "hang":
                await asyncio.get_running_loop().create_future()
            elif fault.kind == "delay":
                await asyncio.sleep(fault.delay_s)
            else:
                return fault.kind
        return None


class Meeting:
    """A weight group inside one event loop: rank 0 sends, every other rank receives."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._ranks: set[int] = set()
        self._all_joined = asyncio.Event()
        self._receivers: list[asyncio.Future[tuple[int, bytes]]] = []
        self._arrival = asyncio.Event()

    @classmethod
    async def join(cls, group: WeightGroup, rank: int) -> Meeting:
        """Meet the other ranks at the group's address. The caller owns the deadline.

        Raises:
            ValueError: the rank is taken, or the ranks disagree about the size of the group.
        """
        meetings = _meetings.setdefault(asyncio.get_running_loop(), {})
        address = (group.address, group.port)
        meeting = meetings.setdefault(address, cls(group.world_size))
        meeting._enter(group, rank)  # noqa: SLF001 - a class method of the same class
        if meeting._all_joined.is_set():  # noqa: SLF001
            # Complete: the address is free for the next group.
            del meetings[address]
        try:
            await meeting._all_joined.wait()  # noqa: SLF001
        except asyncio.CancelledError:
            meeting._ranks.discard(rank)  # noqa: SLF001
            raise
        return meeting

    def _enter(self, group: WeightGroup, rank: int) -> None:
        if group.world_size != self._world_size or not 0 <= rank < self._world_size or rank in self._ranks:
            msg = (
                f"rank {rank} of {group.world_size} cannot join the weight group at {group.address}:{group.port}: "
                f"it has {self._world_size} ranks, of which {sorted(self._ranks)} are there"
            )
            raise ValueError(msg)
        self._ranks.add(rank)
        if len(self._ranks) == self._world_size:
            self._all_joined.set()

    async def send(self, version: int, weights: bytes) -> None:
        """Hand ``weights`` to every receiver, once all of them wait for it."""
        while len(self._receivers) < self._world_size - 1:
            self._arrival.clear()
            await self._arrival.wait()
        receivers, self._receivers = self._receivers, []
        for receiver in receivers:
            receiver.set_result((version, weights))

    async def receive(self) -> tuple[int, bytes]:
        """Wait for the next send; its version and weights."""
        arrived = self.expect()
        try:
            return await arrived
        finally:
            self.forget(arrived)

    def expect(self) -> asyncio.Future[tuple[int, bytes]]:
        """Take part in the next send, without waiting for it."""
        arrived: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._receivers.append(arrived)
        self._arrival.set()
        return arrived

    def forget(self, arrived: asyncio.Future[tuple[int, bytes]] | None) -> None:
        """A receiver that gave up is not there for the sender."""
        if arrived in self._receivers:
            self._receivers.remove(arrived)


_meetings: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], Meeting]] = (
    weakref.WeakKeyDictionary()
)
"""The incomplete meetings of each event loop by address: what a network is to real ranks."""
