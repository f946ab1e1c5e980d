from __future__ import annotations

import asyncio
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from prl.trainer import protocol
from prl.trainer.gathering import Gathering
from prl.trainer.ranks import RankFailure, Ranks
from prl.wire import Channel
from tests.trainer.cases import make_config


@asynccontextmanager
async def _worker(**variables: str) -> AsyncIterator[Process]:
    """A rank's process with this environment, killed at the end whatever happens."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "prl.trainer.worker"),
        env={"PATH": os.environ["PATH"], **variables},
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        async with asyncio.timeout(60):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _variables(address: str, token: str = "secret", rank: int = 0) -> dict[str, str]:
    return {
        "PRL_TRAINER_ADDRESS": address,
        "PRL_TOKEN": token,
        "RANK": str(rank),
        "WORLD_SIZE": "1",
        "PRL_TRAINER_WAIT_S": "0",
    }


async def test_missing_variables_are_named_with_the_command() -> None:
    """Started without an address, a rank says which variable is missing and how to start it."""
    async with _worker() as process:
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"PRL_TRAINER_ADDRESS" in errors
    assert b"torchrun --nproc-per-node" in errors


async def test_no_controller_is_one_line() -> None:
    """An address where nobody listens is one line, no traceback."""
    gathering = Gathering(Ranks(1), "secret")
    address = gathering.listen("127.0.0.1", 0)
    gathering.close()
    async with _worker(**_variables(address)) as process:
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert errors.decode().startswith(f"no controller at {address}")
    assert errors.count(b"\n") == 1


async def test_a_refused_rank_says_why_and_leaves() -> None:
    """With a wrong token the rank prints the controller's reason and exits with 1, before it imports torch."""
    gathering = Gathering(Ranks(1), "secret")
    address = gathering.listen("127.0.0.1", 0)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(gathering.gather())
        async with _worker(**_variables(address, token="guess")) as process:
            _, errors = await process.communicate()
        waiting.cancel()
    gathering.close()
    assert process.returncode == 1
    assert b"refused rank 0: wrong token" in errors


async def test_a_rank_has_a_log_of_its_own(tmp_path: Path) -> None:
    """Where torchrun's child says so, what a rank prints goes to its file, after what is there."""
    gathering = Gathering(Ranks(1), "secret")
    address = gathering.listen("127.0.0.1", 0)
    gathering.close()
    log = tmp_path / "trainer-rank-0.log"
    log.write_text("before\n")
    async with _worker(**_variables(address), PRL_TRAINER_LOGS=str(tmp_path)) as process:
        assert await process.communicate() == (b"", b"")
    assert log.read_text().startswith(f"before\nno controller at {address}")


async def test_a_rank_leaves_when_the_controller_is_gone() -> None:
    """When the controller's socket closes the rank ends by itself."""
    gathering = Gathering(Ranks(1), "secret")
    address = gathering.listen("127.0.0.1", 0)
    async with _worker(**_variables(address)) as process:
        assert await gathering.gather() is None
        assert gathering.ranks.pid(0) == process.pid
        gathering.ranks.close()
        assert await process.wait() == 1


async def test_a_rank_in_a_collective_leaves_when_the_controller_is_gone() -> None:
    """A rank that waits for a peer inside torch ends too, at once and not at torch's own deadline."""
    pytest.importorskip("torch")
    gathering = Gathering(Ranks(2), "secret")
    address = gathering.listen("127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {**_variables(address), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    setup = protocol.Setup(config=make_config(Path("m"), trainer={"num_ranks": 2}), model="m", resume=None)
    async with _worker(**variables) as process, asyncio.TaskGroup() as group:
        absent = await _absent_peer(address)
        assert await gathering.gather() is None
        asking = group.create_task(gathering.ranks.ask([setup, setup]))
        await _listens(port)  # rank 0 hosts the meeting of the ranks and waits there
        gathering.ranks.close()
        assert await process.wait() == 1
        await asking
        absent.close()


async def _absent_peer(address: str) -> asyncio.StreamWriter:
    """A rank 1 that says hello and nothing more."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    channel = Channel[protocol.FromController](reader, writer, protocol.FromController)
    await channel.send(protocol.Hello(rank=1, world_size=2, pid=1, token="secret"))
    return writer


async def _listens(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def test_a_failing_set_up_is_a_reply_and_the_rank_stays_to_be_stopped() -> None:
    """A model that does not exist is told to the controller; the rank then obeys Shutdown with exit code 0."""
    pytest.importorskip("torch")
    gathering = Gathering(Ranks(1), "secret")
    address = gathering.listen("127.0.0.1", 0)
    setup = protocol.Setup(config=make_config(Path("/no/such/model")), model="/no/such/model", resume=None)
    variables = {**_variables(address), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "HF_HUB_OFFLINE": "1"}
    async with _worker(**variables) as process:
        assert await gathering.gather() is None
        outcome = await gathering.ranks.ask([setup])
        assert isinstance(outcome, RankFailure)
        assert outcome.failed is not None
        assert "/no/such/model" in outcome.failed.error
        await gathering.ranks.shut_down()
        assert await process.wait() == 0
    gathering.ranks.close()
