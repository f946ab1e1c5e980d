"""A real ``vllm serve`` process on a tiny model, the engine that drives it, and that as a contract subject."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prl.config import EngineConfig
from prl.engines.server import ServerEngine
from prl.engines.server_command import KEY_VARIABLE as KEY_ON_SERVER
from prl.engines.server_command import server_command, server_environment
from prl.engines.server_questions import Wanted
from prl.engines.vllm_environment import is_cpu_build
from prl.process import Child, free_port
from tests.engines.contract import Subject
from tests.engines.vllm_factory import (
    FIRST_READABLE,
    MAX_NUM_SEQS,
    SIZES,
    TrainedSubject,
    Trainer,
    perturb,
    readable,
    tiny_model,
)

START_TIMEOUT_S = 150.0
KEY_VARIABLE = "PRL_TEST_ENGINE_KEY"
KEY = "a-key-of-the-tests"


async def start_server(
    model: Path, log: Path, *, port: int, max_num_seqs: int = MAX_NUM_SEQS, more: Sequence[str] = ()
) -> Child:
    """Start one, as ``prl engines command`` says, and return at once: the engine waits until it answers.

    ``more`` are flags besides.
    """
    config = EngineConfig(max_num_seqs=max_num_seqs, max_model_len=1024)
    command = server_command(str(model), config, "gloo", host="127.0.0.1", port=port)
    here = {KEY_ON_SERVER: KEY, "PYTHONPATH": str(Path(__file__).parents[2])}
    return await Child.start("server", [*command, *more], log, server_environment(config) | here)


def server_engine(
    url: str, model: Path, *, index: int = 0, sizes: dict[str, int] | None = None, **config: Any
) -> ServerEngine:
    """An engine that is not open yet; ``config`` overrides fields of ``[engine]``."""
    settings: dict[str, Any] = {
        "kind": "server",
        "servers": [url],
        "api_key_env": KEY_VARIABLE,
        "max_num_seqs": MAX_NUM_SEQS,
        "max_model_len": 1024,
        "stream_interval": 1,
        "start_timeout_s": START_TIMEOUT_S,
    }
    names = ("vocab_size", "hidden_size", "num_hidden_layers")
    wanted = Wanted(
        model=str(model),
        sizes={name: SIZES[name] for name in names} if sizes is None else sizes,
        transport="gloo",
        max_model_len=1024,
    )
    return ServerEngine(index=index, url=url, config=EngineConfig(**(settings | config)), wanted=wanted)


class ServerSubject(TrainedSubject):
    """Its tokens tell the version that sampled them; behind it are two data-parallel ranks."""

    num_copies = 2

    async def sampled_by_copy(self) -> list[int]:
        """As the server counts them, by rank."""
        assert isinstance(self.engine, ServerEngine)
        async with self.engine._link.request("GET", "/metrics", b"") as response:
            told = (await response.read()).decode()
        counts = re.findall(r'^vllm:generation_tokens_total\{engine="(\d+)".*\} (\S+)$', told, re.MULTILINE)
        return [int(float(count)) for _, count in sorted(counts)]

    def version_of(self, token: int) -> int | None:
        """What ``readable`` weights of each version sample."""
        return token - FIRST_READABLE


def make_readable(model: Any, version: int) -> None:
    """Weights that sample one token, and other ones than before for every other token too."""
    readable(model, version)
    perturb(model, "", by=1e-4)


async def opened(engine: ServerEngine, server: Child) -> None:
    """Open the engine as soon as the server answers; what the server said if it ends before."""
    async with asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(engine.open())
        ending = tasks.create_task(server.ended())
        await asyncio.wait([opening, ending], return_when=asyncio.FIRST_COMPLETED)
        assert not ending.done(), ending.result()
        ending.cancel()


@asynccontextmanager
async def subject(folder: Path) -> AsyncIterator[Subject]:
    """An engine on two data-parallel ranks of a tied model, streaming every second step."""
    pytest.importorskip("vllm")
    if not is_cpu_build():
        pytest.skip("the arguments are those of a CPU")
    model = tiny_model(tied=True)
    readable(model, 0)
    model.save_pretrained(folder / "model")
    port = free_port("127.0.0.1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_VARIABLE, KEY)
        ranks = ("--data-parallel-size", str(ServerSubject.num_copies))
        server = await start_server(folder / "model", folder / "server.log", port=port, more=ranks)
        engine = server_engine(f"http://127.0.0.1:{port}", folder / "model", stream_interval=2)
        try:
            await opened(engine, server)
            trainer = await Trainer.connect([engine], model)
            made = ServerSubject(trainer, make_readable, partial(os.killpg, server.pid, signal.SIGKILL))
            yield made
            made.close()
            await engine.close()
        finally:
            await server.stop(grace_s=2)
