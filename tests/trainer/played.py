"""A trainer whose ranks are played by the test: a real controller's side, and sockets, without torch."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from prl.trainer import protocol
from prl.trainer.base import TrainerReady
from prl.trainer.remote import FsdpTrainer
from prl.wire import Channel
from tests.trainer.cases import make_config

READY = TrainerReady(step=0, manifest=[], state={}, num_parameters=6, memory_bytes=10)
Reply = Callable[[protocol.FromController], protocol.Reply | None]


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def assert_gone(pids: Iterable[int], within_s: float) -> None:
    """Every process ends in time; one that waits to be reaped has ended."""
    deadline = time.monotonic() + within_s
    left = list(pids)
    while left := [pid for pid in left if psutil.pid_exists(pid) and _status(pid) != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < deadline, f"still running: {left}"
        await asyncio.sleep(0.05)


def _status(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_ZOMBIE)


@asynccontextmanager
async def played(
    reply: Reply,
    tmp_path: Path,
    num_ranks: int = 1,
    ready: Callable[[int], TrainerReady] = lambda _: READY,
    opened: Callable[[TrainerReady], None] = lambda _: None,
    **tables: dict[str, Any],
) -> AsyncIterator[FsdpTrainer]:
    """An open trainer whose ranks answer what ``reply`` says; None never answers."""
    port = free_port()
    trainer_table = {"launch": "external", "listen": f"127.0.0.1:{port}", "num_ranks": num_ranks}
    config = make_config(Path("m"), **{**tables, "trainer": {**trainer_table, **tables.get("trainer", {})}})
    trainer = FsdpTrainer(config, "m", tmp_path, None)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        players = [group.create_task(play(rank, num_ranks, port, ready(rank), reply)) for rank in range(num_ranks)]
        try:
            opened(await trainer.open())
            yield trainer
        finally:
            await trainer.close()
            for player in players:
                player.cancel()


async def play(rank: int, num_ranks: int, port: int, ready: TrainerReady, reply: Reply) -> None:
    """One rank: connects, loads, answers what ``reply`` says until it is told to leave or is left."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
    channel = Channel[protocol.FromController](reader, writer, protocol.FromController)
    with contextlib.closing(channel), contextlib.suppress(ConnectionError):
        await channel.send(protocol.Hello(rank=rank, world_size=num_ranks, pid=1000 + rank, token="secret"))
        while not isinstance(command := await channel.receive(), protocol.Shutdown):
            answer = protocol.Ready(ready=ready) if isinstance(command, protocol.Setup) else reply(command)
            if answer is not None:
                await channel.send(answer)
