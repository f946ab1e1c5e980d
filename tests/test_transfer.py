"""The gloo weight transfer: whole, checked, agreed on, and never a hang."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from prl import transfer
from prl.errors import WeightSyncError
from prl.process import free_port
from prl.transfer import GlooGroup
from prl.types import TensorSpec, WeightGroup

TIMEOUT_S = 5.0
SOON_S = 2.0
"""Well under the timeout: what fails at once is told at once."""
Named = list[tuple[str, torch.Tensor]]


def weight_group(world_size: int, timeout_s: float = TIMEOUT_S, bucket_bytes: int = 1000) -> WeightGroup:
    """A meeting place that nobody uses yet."""
    return WeightGroup(
        transport="gloo",
        address="127.0.0.1",
        port=free_port("127.0.0.1"),
        world_size=world_size,
        timeout_s=timeout_s,
        bucket_bytes=bucket_bytes,
    )


def odd_tensors() -> Named:
    """Scalars, empties, primes, both dtypes, a view with strides, more bytes than a (small) bucket."""
    generator = torch.Generator().manual_seed(7)
    wide = torch.randn(64, 48, generator=generator)
    return [
        ("scalar", torch.randn((), generator=generator)),
        ("empty", torch.empty(0, 5)),
        ("primes", torch.randn(7, 11, 3, generator=generator).bfloat16()),
        ("one", torch.ones(1, dtype=torch.bfloat16)),
        ("transposed", wide.T),
        ("integers", torch.arange(13)),
        ("large", torch.randn(101, 211, generator=generator)),
    ]


def manifest_of(tensors: Named) -> list[TensorSpec]:
    """What the sender announces."""
    return [TensorSpec(name=n, dtype=str(t.dtype).removeprefix("torch."), shape=list(t.shape)) for n, t in tensors]


def receive(group: GlooGroup, version: int, manifest: list[TensorSpec]) -> Named:
    """Everything."""
    return list(group.receive(version, manifest))


class Ranks:
    """One thread per rank, so that each can wait for the others."""

    def __init__(self, group: WeightGroup) -> None:
        self._pool = ThreadPoolExecutor(group.world_size)
        self.groups = self.results(*[(lambda r=r: GlooGroup.join(group, r)) for r in range(group.world_size)])

    def start(self, *work: Callable[[], Any]) -> list[Future[Any]]:
        """Begin one call per rank."""
        return [self._pool.submit(call) for call in work]

    def results(self, *work: Callable[[], Any]) -> list[Any]:
        """What each rank's call returned."""
        return [future.result(2 * TIMEOUT_S) for future in self.start(*work)]

    def errors(self, *work: Callable[[], Any]) -> list[str]:
        """What each rank's call raised; every one must."""
        told = []
        for future in self.start(*work):
            with pytest.raises(WeightSyncError) as raised:
                future.result(2 * TIMEOUT_S)
            told.append(str(raised.value))
        return told

    def close(self) -> None:
        """Leave everywhere."""
        for group in self.groups:
            group.close()
        self._pool.shutdown()


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """As many ranks as the parameter says; two by default."""
    members = Ranks(weight_group(getattr(request, "param", 2)))
    yield members
    members.close()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4], indirect=True)
def test_everything_arrives_as_it_was(ranks: Ranks) -> None:
    """Every receiver gets every tensor, bit for bit, in order, twice in a row, whatever the bucket borders cut."""
    tensors = odd_tensors()
    manifest = manifest_of(tensors)
    sender, *receivers = ranks.groups
    for version in (1, 2):
        sending = lambda v=version: sender.send(v, manifest, iter(tensors))  # noqa: E731
        receiving = [(lambda g=group, v=version: receive(g, v, manifest)) for group in receivers]
        for received in ranks.results(sending, *receiving)[1:]:
            assert [name for name, _ in received] == [name for name, _ in tensors]
            for (_, got), (_, sent) in zip(received, tensors, strict=True):
                assert got.dtype == sent.dtype
                assert torch.equal(got, sent)


def noted(monkeypatch: pytest.MonkeyPatch, rank: int) -> list[str]:
    """When each bucket of ``rank`` begins its way and has ended it."""
    begin, finish, told = transfer.Ranks.begin, transfer.Ranks.finish, list[str]()

    def noting(self: Any, message: torch.Tensor, purpose: str) -> None:
        begin(self, message, purpose)
        if self.rank == rank:
            number = sum("begins" in line for line in told)
            told.append(f"{number} begins, {len(message) - transfer._CRC_BYTES} bytes")

    def ended(self: Any) -> None:
        finish(self)
        begun, over = (sum(word in line for line in told) for word in ("begins", "has ended"))
        if self.rank == rank and begun > over:
            told.append(f"{over} has ended")

    monkeypatch.setattr(transfer.Ranks, "begin", noting)
    monkeypatch.setattr(transfer.Ranks, "finish", ended)
    return told


@pytest.mark.parametrize("rank", [0, 1])
def test_the_next_bucket_is_made_ready_while_one_is_on_its_way(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """The sender gathers for it, the receiver takes the one before apart; a tensor may cross buckets, or share one."""
    told = noted(monkeypatch, rank)
    tensors = [("small", torch.ones(50)), ("large", torch.ones(450)), ("last", torch.ones(200))]
    manifest = manifest_of(tensors)
    sender, receiver = ranks.groups

    def told_of(given: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in given:
            told.append(name)
            yield name, tensor

    if rank == 0:
        ranks.results(lambda: sender.send(1, manifest, told_of(tensors)), lambda: receive(receiver, 1, manifest))
        begun = ["small", "large", "0 begins, 1000 bytes", "last", "0 has ended", "1 begins, 1000 bytes"]
        assert told == [*begun, "1 has ended", "2 begins, 800 bytes", "2 has ended"]
    else:
        ranks.results(lambda: sender.send(1, manifest, tensors), lambda: list(told_of(receiver.receive(1, manifest))))
        begun = ["0 begins, 1000 bytes", "0 has ended", "1 begins, 1000 bytes"]
        assert told == [*begun, "small", "1 has ended", "2 begins, 800 bytes", "large", "2 has ended", "last"]


def test_what_fits_into_a_bucket_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tensors there are."""
    told = noted(monkeypatch, 0)
    ranks = Ranks(weight_group(2, bucket_bytes=1_000_000))
    tensors = odd_tensors()
    manifest = manifest_of(tensors)
    sender, receiver = ranks.groups
    ranks.results(lambda: sender.send(1, manifest, tensors), lambda: receive(receiver, 1, manifest))
    ranks.close()
    num_bytes = sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)
    assert told == [f"0 begins, {num_bytes} bytes", "0 has ended"]


@pytest.mark.parametrize("ranks", [3], indirect=True)
def test_disagreement_is_an_error_on_every_rank_and_harms_nothing(ranks: Ranks) -> None:
    """Another version, or another manifest, on one rank: all ranks refuse at once, and the next transfer works."""
    tensors = odd_tensors()
    manifest = manifest_of(tensors)
    sender, first, second = ranks.groups
    begun = time.monotonic()
    for told in ranks.errors(
        lambda: sender.send(1, manifest, tensors),
        lambda: receive(first, 1, manifest),
        lambda: receive(second, 2, manifest),
    ):
        assert "disagree" in told
        assert "rank 2: version 2" in told
    for told in ranks.errors(
        lambda: sender.send(1, manifest, tensors),
        lambda: receive(first, 1, manifest[:-1]),
        lambda: receive(second, 1, manifest),
    ):
        assert "disagree" in told
    assert time.monotonic() - begun < SOON_S
    ranks.results(
        lambda: sender.send(1, manifest, tensors),
        lambda: receive(first, 1, manifest),
        lambda: receive(second, 1, manifest),
    )


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda tensors: [("other", tensors[0][1]), *tensors[1:]], "the manifest says ('scalar'"),
        (lambda tensors: [(tensors[0][0], tensors[0][1].double()), *tensors[1:]], "float64"),
        (lambda tensors: [(tensors[0][0], tensors[0][1][None]), *tensors[1:]], "[1]"),
        (lambda tensors: tensors[:-1], "no tensor for large"),
        (lambda tensors: [*tensors, ("extra", torch.ones(1))], "extra"),
    ],
)
def test_sender_keeps_to_the_manifest(ranks: Ranks, spoil: Callable[[Named], Named], told: str) -> None:
    """A tensor of another name, dtype or shape, one too few or one too many: an error on both sides that says which."""
    manifest = manifest_of(odd_tensors())
    sender, receiver = ranks.groups
    begun = time.monotonic()
    errors = ranks.errors(
        lambda: sender.send(1, manifest, spoil(odd_tensors())), lambda: receive(receiver, 1, manifest)
    )
    assert all(told in error for error in errors)
    assert time.monotonic() - begun < SOON_S


def test_damaged_bytes_are_noticed(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that arrives with a flipped bit is refused by checksum, and the sender is told."""
    begin, finish, coming = transfer.Ranks.begin, transfer.Ranks.finish, list[torch.Tensor]()

    def keeping(self: Any, message: torch.Tensor, purpose: str) -> None:
        begin(self, message, purpose)
        if self.rank == 1:
            coming.append(message)

    def damaging(self: Any) -> None:
        finish(self)
        if self.rank == 1:
            coming.pop()[3] ^= 1

    monkeypatch.setattr(transfer.Ranks, "begin", keeping)
    monkeypatch.setattr(transfer.Ranks, "finish", damaging)
    tensors = odd_tensors()
    manifest = manifest_of(tensors)
    sender, receiver = ranks.groups
    errors = ranks.errors(lambda: sender.send(1, manifest, tensors), lambda: receive(receiver, 1, manifest))
    assert all("damaged" in error for error in errors)


def test_sender_that_fails_midway_fails_the_receiver(ranks: Ranks) -> None:
    """An exception while the sender gathers a tensor reaches the receiver at once, with its reason."""
    tensors = odd_tensors()

    def gathering() -> Iterator[tuple[str, torch.Tensor]]:
        yield from tensors[:5]
        raise MemoryError("no room for the sixth")

    manifest = manifest_of(tensors)
    sender, receiver = ranks.groups
    begun = time.monotonic()
    errors = ranks.errors(lambda: sender.send(1, manifest, gathering()), lambda: receive(receiver, 1, manifest))
    assert all("no room for the sixth" in error for error in errors)
    assert time.monotonic() - begun < SOON_S


def test_receiver_that_leaves_early_fails_the_sender(ranks: Ranks) -> None:
    """A receiver that stops in the middle of a transfer breaks the group; both sides say so from then on."""
    tensors = odd_tensors()
    manifest = manifest_of(tensors)
    sender, receiver = ranks.groups

    def leave() -> None:
        stream = receiver.receive(1, manifest)
        next(stream)
        stream.close()

    begun = time.monotonic()
    sending, leaving = ranks.start(lambda: sender.send(1, manifest, tensors), leave)
    leaving.result(TIMEOUT_S)
    with pytest.raises(WeightSyncError, match="receiving version 1 failed"):
        sending.result(TIMEOUT_S)
    assert time.monotonic() - begun < SOON_S
    errors = ranks.errors(lambda: sender.send(2, manifest, tensors), lambda: receive(receiver, 2, manifest))
    assert all("connect a new one" in error for error in errors)


@pytest.mark.parametrize("present", [0, 1])
def test_absent_peer_is_named_in_time(present: int) -> None:
    """A peer that is there and does not take part: the other side gives up at its deadline and names it."""
    members = Ranks(weight_group(2, timeout_s=0.5))
    manifest = manifest_of(odd_tensors())
    work = [
        lambda: members.groups[0].send(3, manifest, odd_tensors()),
        lambda: receive(members.groups[1], 3, manifest),
    ][present]
    begun = time.monotonic()
    with pytest.raises(WeightSyncError, match=f"for rank {1 - present} to announce version 3"):
        work()
    assert 0.5 <= time.monotonic() - begun < 0.5 + SOON_S
    members.close()


def test_missing_rank_is_named_when_joining() -> None:
    """A rank that never comes is named by those who wait for it."""
    group = weight_group(3, timeout_s=0.5)
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(GlooGroup.join, group, rank) for rank in (0, 1)]:
            with pytest.raises(WeightSyncError, match="rank 2 to join"):
                future.result(TIMEOUT_S)


def test_port_in_use_is_an_error_at_once() -> None:
    """Rank 0 cannot host at a port that another holds, and says which."""
    first = Ranks(group := weight_group(1))
    with pytest.raises(WeightSyncError, match=f"127.0.0.1:{group.port}"):
        GlooGroup.join(group, 0)
    first.close()


def receive_one_and_stop(group: WeightGroup, manifest: list[TensorSpec], started: Any) -> None:
    """A receiver in a process of its own, that takes one tensor and stops moving."""
    stream = GlooGroup.join(group, 1).receive(1, manifest)
    next(stream)
    started.set()
    threading.Event().wait()


def test_killed_receiver_is_noticed() -> None:
    """SIGKILL of a receiver in the middle of a transfer ends the sender's wait well before its deadline."""
    context = multiprocessing.get_context("spawn")
    group, started = weight_group(2, timeout_s=30.0, bucket_bytes=4_000_000), context.Event()
    tensors = [(f"t{number}", torch.ones(1_000_000)) for number in range(40)]  # more than the sockets can hold
    manifest = manifest_of(tensors)
    child = context.Process(target=receive_one_and_stop, args=(group, manifest, started))
    child.start()
    sender = GlooGroup.join(group, 0)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(sender.send, 1, manifest, tensors)
        assert started.wait(20)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(WeightSyncError, match="version 1"):
            sending.result(20)
        assert time.monotonic() - begun < TIMEOUT_S
    child.join()
    sender.close()


def test_default_group_is_left_alone(ranks: Ranks, tmp_path: Any) -> None:
    """The weight group works beside an initialised default process group, and closing it leaves that one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        tensors = odd_tensors()
        manifest = manifest_of(tensors)
        sender, receiver = ranks.groups
        ranks.results(lambda: sender.send(1, manifest, tensors), lambda: receive(receiver, 1, manifest))
        ranks.close()
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 1
    finally:
        dist.destroy_process_group()


def test_bad_dtype_and_bad_rank_are_named() -> None:
    """A dtype that torch does not have, and a rank outside the group, are refused with their value."""
    members = Ranks(weight_group(1))
    with pytest.raises(WeightSyncError, match="'float33'"):
        members.groups[0].send(1, [TensorSpec(name="w", dtype="float33", shape=[1])], [("w", torch.ones(1))])
    members.close()
    with pytest.raises(WeightSyncError, match="rank 2"):
        GlooGroup.join(weight_group(2), 2)
