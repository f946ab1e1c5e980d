"""What a ``vllm serve`` process samples for the controller, against the same engine in a host process of prl's.

    python benchmarks/server_engine.py [--quick] --out FILE.json

Both are vLLM on the built-in model, started side by side with the same settings. They sample in turns, the other one
idle: ``NUM_STREAMS`` streams at once, log-probabilities and versions included. Beside the rate stands what a token
costs in processor time: the controller, the engine's front end (prl's host, or the server's HTTP side) and vLLM's core.
On two cores the front end and the core have one each, and the controller shares.

Headline: the server's tokens a second over the host's, pair by pair. Target: 0.9.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import harness
import psutil
import uvloop

from prl.config import EngineConfig
from prl.engines.base import Decoding, Engine
from prl.engines.server import ServerEngine
from prl.engines.server_command import server_command, server_environment
from prl.engines.server_questions import Wanted
from prl.engines.vllm import VllmEngine
from prl.models import resolve_model
from prl.process import Child, free_port

MODEL = "builtin:tiny-math"
NUM_STREAMS, PROMPT = 64, [5, 6, 7, 8, 9, 10]
TARGET = 0.9
CONFIG = EngineConfig(max_num_seqs=NUM_STREAMS, max_model_len=512, start_timeout_s=600)


@asynccontextmanager
async def engines(folder: Path) -> AsyncIterator[dict[str, tuple[Engine, int]]]:
    """Both, open, each with the process that its front end is."""
    model, port = resolve_model(MODEL), free_port("127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    command = server_command(model, CONFIG, "gloo", host="127.0.0.1", port=port)
    server = await Child.start("server", command, folder / "server.log", server_environment(CONFIG))
    wanted = Wanted(model=model, sizes={}, transport="gloo", max_model_len=CONFIG.max_model_len)
    remote = ServerEngine(index=1, url=url, config=CONFIG, wanted=wanted)
    local = VllmEngine(index=0, model=model, config=CONFIG, transport="gloo", seed=0, log_dir=folder)
    try:
        async with asyncio.TaskGroup() as tasks:
            for engine in (local, remote):
                tasks.create_task(engine.open())
        (host,) = (child.pid for child in psutil.Process().children() if child.pid != server.pid)
        yield {"host": (local, host), "server": (remote, server.pid)}
    finally:
        await local.close()
        await remote.close()
        await server.stop()


async def sample(engine: Engine, max_tokens: int) -> int:
    """``NUM_STREAMS`` streams to their ends; the number of their tokens."""
    decoding = Decoding(temperature=1.0, max_tokens=max_tokens, stop_token_ids=[])

    async def one() -> int:
        async with aclosing(engine.generate(PROMPT, decoding)) as chunks:
            return sum([len(chunk.token_ids) async for chunk in chunks])

    async with asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(one()) for _ in range(NUM_STREAMS)]
    return sum(stream.result() for stream in streams)


def cpu_s(front_end: int) -> tuple[float, float, float]:
    """Seconds of processor time so far: the controller, the front end, what it has started."""
    process = psutil.Process(front_end)
    cores = sum(sum(child.cpu_times()[:2]) for child in process.children(recursive=True))
    return time.process_time(), sum(process.cpu_times()[:2]), cores


async def one_repeat(engine: Engine, front_end: int, max_tokens: int) -> dict[str, float]:
    """What a token cost on each side."""
    began, before = time.perf_counter(), cpu_s(front_end)
    num_tokens = await sample(engine, max_tokens)
    after, wall_s = cpu_s(front_end), time.perf_counter() - began
    controller, front, core = ((b - a) / num_tokens * 1e6 for a, b in zip(before, after, strict=True))
    return {"tokens_per_s": num_tokens / wall_s, "controller_us": controller, "front_end_us": front, "core_us": core}


async def measured(*, quick: bool) -> dict[str, Any]:
    """Repeats in turns, as rows and as the headline."""
    num_repeats, max_tokens = (5, 256) if quick else (15, 448)
    repeats: dict[str, list[dict[str, float]]] = {"host": [], "server": []}
    with tempfile.TemporaryDirectory() as folder:
        async with engines(Path(folder)) as both:
            for engine, _ in both.values():
                await sample(engine, 64)
            for _ in range(num_repeats):
                for name, (engine, front_end) in both.items():
                    repeats[name].append(await one_repeat(engine, front_end, max_tokens))
    rows = [
        {"engine": name} | {key: harness.spread([repeat[key] for repeat in each]) for key in each[0]}
        for name, each in repeats.items()
    ]
    rates = {name: [repeat["tokens_per_s"] for repeat in each] for name, each in repeats.items()}
    headline = harness.ratios(rates["server"], rates["host"])
    return {
        "rows": rows,
        "headline": headline,
        "target": TARGET,
        "target_met": headline["median"] >= TARGET,
        "load": os.getloadavg()[0],
    }


def measure(quick: bool) -> dict[str, Any]:
    """The whole benchmark."""
    return uvloop.run(measured(quick=quick))


if __name__ == "__main__":
    harness.main(__doc__ or "", measure, tables=["rows"])
