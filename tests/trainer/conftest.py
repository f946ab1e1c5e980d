from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from prl.trainer import protocol
from prl.trainer.gathering import Gathering
from prl.trainer.ranks import Ranks
from prl.wire import Channel
from tests.trainer.cases import make_model
from tests.trainer.fake_rank import Connect, FakeRank


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the tiny models, by kind."""
    return {kind: make_model(tmp_path_factory.mktemp(kind), kind) for kind in ("tied", "untied")}


@pytest.fixture(scope="module")
def one_rank() -> Iterator[None]:
    """This process as the only rank of a gloo group, on one thread."""
    import torch
    import torch.distributed as dist

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.set_num_threads(threads)


@pytest.fixture
async def gathering() -> AsyncIterator[Gathering]:
    """Two ranks expected, with everything under a deadline."""
    async with asyncio.timeout(20):
        gathering = Gathering(Ranks(2), "secret")
        yield gathering
        gathering.close()
        gathering.ranks.close()
        await asyncio.sleep(0)  # one turn of the loop, in which the sockets close


@pytest.fixture
async def connect(gathering: Gathering) -> AsyncIterator[Connect]:
    """Opens connections to an address; all are closed at the end."""
    opened: list[FakeRank] = []

    async def open_one(address: str) -> FakeRank:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        opened.append(FakeRank(Channel[protocol.FromController](reader, writer, protocol.FromController)))
        return opened[-1]

    yield open_one
    for fake in opened:
        fake.channel.close()


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret of ranks that are started by hand."""
    monkeypatch.setenv("PRL_TOKEN", "secret")
