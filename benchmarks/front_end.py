"""How many tokens a second the controller takes from its engines, with log-probabilities and versions.

    python benchmarks/front_end.py [--quick] --out FILE.json

Everything is folded to completions by the real ``Rollout`` over the real ``EnginePool``; scoring is trivial, and text
is not decoded (``decode_us_per_token`` says what that would add). Three measurements, for ``stream_interval`` 1, 4, 16:

- ``vllm``: one real engine (``AsyncLLM`` in its host process) on the built-in model. It cannot sample as fast as the
  controller can take, so the figure is tokens per *CPU second* of the controller's process, every thread of it; beside
  it what the host and the core spend on a token.
- ``replay``: no model. A host process sends what a host would. As fast as it is taken, the rate is one of wall time:
  what one core takes from socket to completion, late chunks of a stream coming as one. With a message every
  ``PACE_S``, each stream is woken for each, and the rate is one of the controller's CPU, as with a real engine.
- ``simulated``: the engine of ``prl simulate``, which shares the controller's core, in virtual time: wall time again,
  the engine's own sampling included.

Headline: ``vllm`` at ``RECOMMENDED_INTERVAL`` with 256 streams. Target: 100,000.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import psutil
import uvloop

from prl import virtual_time
from prl.config import EngineConfig
from prl.engines.base import Decoding, Engine
from prl.engines.host_protocol import ADDRESS_VARIABLE, Call, Delta, Generate, Reply, Start, Tokens
from prl.engines.host_side import connect_back, end_process
from prl.engines.hosted import HostedEngine
from prl.engines.pool import EnginePool
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script
from prl.engines.vllm import VllmEngine
from prl.failure import FirstFailure
from prl.models import resolve_model
from prl.rollout import Done, Rollout
from prl.sampler import Sampler
from prl.tokenizer import Tokenizer
from prl.types import Completion, Finish, Prompt, Score
from prl.wire import WireClosedError

MODEL = "builtin:tiny-math"
INTERVALS = (1, 4, 16)
RECOMMENDED_INTERVAL = 16
NUM_STREAMS = (64, 256)
GROUP_SIZE = 16
TARGET_PER_S = 100_000
PACE_S = 0.006
REPLAY_STREAMS, REPLAY_PACE = "PRL_REPLAY_STREAMS", "PRL_REPLAY_PACE_S"
"""Environment variables of the replaying host: how many streams make a round, and seconds between two messages."""


async def score(_completion: Completion, _prompt: Prompt) -> Score:
    """Every completion is as good as any."""
    return Score(reward=1.0)


def no_text(_token_ids: list[int]) -> str:
    """Nobody reads it."""
    return ""


async def roll_out(pool: EnginePool, num_streams: int, max_tokens: int) -> int:
    """Open ``num_streams`` streams at once and fold them all to groups; the number of their tokens."""
    decoding = Decoding(temperature=1.0, max_tokens=max_tokens, stop_token_ids=[])
    rollout = Rollout(
        Sampler(pool, no_text),
        score,
        decoding=decoding,
        group_size=GROUP_SIZE,
        timeout_s=600,
        failure=FirstFailure(),
    )
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(rollout(prompt(number))) for number in range(num_streams // GROUP_SIZE)]
    outcomes = [task.result() for task in tasks]
    assert all(isinstance(outcome, Done) for outcome in outcomes), outcomes
    groups = [outcome.group for outcome in outcomes if isinstance(outcome, Done)]
    return sum(len(completion.token_ids) for group in groups for completion in group.completions)


def prompt(number: int) -> Prompt:
    """A short prompt of its own for each group."""
    return Prompt(id=number, token_ids=[5 + number % 200, 6, 7, 8], text="", messages=[], fields={})


def settings(interval: int, max_tokens: int) -> EngineConfig:
    """One engine that runs all streams at once."""
    return EngineConfig(
        max_num_seqs=max(NUM_STREAMS), max_model_len=max_tokens + 32, kv_cache_gib=1.0, stream_interval=interval
    )


# A real engine --------------------------------------------------------------------------------------------------------


def cpu_s() -> tuple[float, float, float]:
    """Seconds of CPU so far: this process, the engines' hosts (its children), their cores (the children's)."""
    hosts = psutil.Process().children()
    cores = [core for host in hosts for core in host.children(recursive=True)]
    host_s, core_s = (sum(sum(process.cpu_times()[:2]) for process in processes) for processes in (hosts, cores))
    return time.process_time(), host_s, core_s


async def measure_vllm(interval: int, max_tokens: int, num_repeats: int) -> list[dict[str, Any]]:
    """One row for each number of streams."""
    config, rows = settings(interval, max_tokens), []
    with tempfile.TemporaryDirectory() as folder:
        engine = VllmEngine(index=0, model=MODEL, config=config, transport="gloo", seed=0, log_dir=Path(folder))
        pool = EnginePool([engine], config, gate_timeout_s=60)
        await pool.open()
        try:
            for num_streams in NUM_STREAMS:
                await roll_out(pool, num_streams, 32)
                repeats = [await one_repeat(pool, num_streams, max_tokens) for _ in range(num_repeats)]
                columns = {name: harness.spread([repeat[name] for repeat in repeats]) for name in repeats[0]}
                rows.append({"stream_interval": interval, "streams": num_streams} | columns)
        finally:
            await pool.close()
    return rows


async def one_repeat(pool: EnginePool, num_streams: int, max_tokens: int) -> dict[str, float]:
    """What a token cost on each side."""
    began, before = time.perf_counter(), cpu_s()
    num_tokens = await roll_out(pool, num_streams, max_tokens)
    after, wall_s = cpu_s(), time.perf_counter() - began
    controller, host, core = ((b - a) / num_tokens * 1e6 for a, b in zip(before, after, strict=True))
    return {
        "tokens_per_controller_cpu_s": 1e6 / controller,
        "controller_us": controller,
        "host_us": host,
        "controller_and_host_us": controller + host,
        "core_us": core,
        "tokens_per_wall_s": num_tokens / wall_s,
    }


# A host without a model ----------------------------------------------------------------------------------------------


def replay() -> None:
    """Be a host process that sends tokens of all streams in one message per ``stream_interval`` steps, at once."""
    _, channel = connect_back()
    streams: dict[int, int] = {}
    interval, num_streams, pace_s = 1, int(os.environ[REPLAY_STREAMS]), float(os.environ[REPLAY_PACE])
    try:
        while True:
            match channel.receive():
                case Call(id=number, request=Start(config=config)):
                    interval = config.stream_interval
                    channel.send(Reply(id=number, vocab_size=1 << 20))
                case Generate(stream=stream, decoding=decoding):
                    streams[stream] = decoding.max_tokens
                    if len(streams) == num_streams:
                        for message in replayed(streams, interval):
                            time.sleep(pace_s)
                            channel.send(message)
                        streams = {}
    except WireClosedError:
        end_process("the controller closed the connection")


def replayed(streams: dict[int, int], interval: int) -> Iterator[Tokens]:
    """The messages of a round in which all streams have one length."""
    (max_tokens,) = set(streams.values())
    for first in range(0, max_tokens, interval):
        count = min(interval, max_tokens - first)
        finish: Finish | None = "length" if first + count == max_tokens else None
        ids, logprobs = list(range(100, 100 + count)), [-1.0 - 1 / (3 + number) for number in range(count)]
        yield Tokens(version=7, deltas=[Delta(stream, ids, logprobs, finish) for stream in streams])


async def measure_replay(interval: int, num_streams: int, max_tokens: int, num_repeats: int) -> dict[str, Any]:
    """What one core takes, socket to completion: without a pause between messages, and with one."""
    flood = await replay_rounds(interval, num_streams, max_tokens, num_repeats, pace_s=0)
    paced = await replay_rounds(interval, num_streams, max_tokens, num_repeats, pace_s=PACE_S)
    return {
        "stream_interval": interval,
        "streams": num_streams,
        "tokens_per_wall_s": harness.spread([num_tokens / wall_s for num_tokens, wall_s, _ in flood]),
        "tokens_per_controller_cpu_s_paced": harness.spread([num_tokens / cpu for num_tokens, _, cpu in paced]),
    }


async def replay_rounds(
    interval: int, num_streams: int, max_tokens: int, num_repeats: int, *, pace_s: float
) -> list[tuple[int, float, float]]:
    """Tokens, wall seconds and the controller's CPU seconds of each round."""
    config = settings(interval, max_tokens)
    start = Start(model="", config=config, transport="gloo", seed=0, num_threads=1, devices=[])
    environment = {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        REPLAY_STREAMS: str(num_streams),
        REPLAY_PACE: str(pace_s),
    }
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        engine = HostedEngine(
            name="engine-0", module=Path(__file__).stem, environment=environment, start=start, log_dir=Path(folder)
        )
        pool = EnginePool([engine], config, gate_timeout_s=60)
        await pool.open()
        try:
            for _ in range(num_repeats):
                began, cpu = time.perf_counter(), time.process_time()
                num_tokens = await roll_out(pool, num_streams, max_tokens)
                rounds.append((num_tokens, time.perf_counter() - began, time.process_time() - cpu))
        finally:
            await pool.close()
    return rounds


# An engine of the simulation ------------------------------------------------------------------------------------------


async def simulate(interval: int, num_streams: int, max_tokens: int) -> int:
    """The tokens of one round, in virtual time."""
    script = Script(stream_interval=interval)
    engine: Engine = SimulatedEngine(index=0, max_num_seqs=num_streams, script=script, seed=0)
    pool = EnginePool([engine], settings(interval, max_tokens), gate_timeout_s=60)
    await pool.open()
    num_tokens = await roll_out(pool, num_streams, max_tokens)
    await pool.close()
    return num_tokens


def measure_simulated(interval: int, num_streams: int, max_tokens: int, num_repeats: int) -> dict[str, Any]:
    """What one core does, sampling included."""
    rates = []
    for _ in range(num_repeats):
        began = time.perf_counter()
        num_tokens = virtual_time.run(simulate(interval, num_streams, max_tokens))
        rates.append(num_tokens / (time.perf_counter() - began))
    return {"stream_interval": interval, "streams": num_streams, "tokens_per_wall_s": harness.spread(rates)}


# ----------------------------------------------------------------------------------------------------------------------


def decode_us_per_token() -> float:
    """What the text of a completion costs."""
    tokenizer = Tokenizer.load(resolve_model(MODEL))
    token_ids = [5 + number % 200 for number in range(300)]
    began = time.process_time()
    for _ in range(100):
        tokenizer.decode(token_ids)
    return (time.process_time() - began) / (100 * len(token_ids)) * 1e6


def measure(quick: bool) -> dict[str, Any]:
    """All three, the real engine first."""
    num_repeats, max_tokens = (3, 200) if quick else (5, 400)
    vllm = [row for interval in INTERVALS for row in uvloop.run(measure_vllm(interval, max_tokens, num_repeats))]
    kinds = [(interval, num_streams) for interval in INTERVALS for num_streams in NUM_STREAMS]
    replays = [uvloop.run(measure_replay(*kind, max_tokens, num_repeats)) for kind in kinds]
    simulated = [measure_simulated(*kind, max_tokens // 4, num_repeats) for kind in kinds]
    best = next(row for row in reversed(vllm) if row["stream_interval"] == RECOMMENDED_INTERVAL)
    headline = best["tokens_per_controller_cpu_s"]["median"]
    return {
        "headline": headline,
        "headline_is": f"tokens per second of the controller's CPU, AsyncLLM, {best['streams']} streams, "
        f"stream_interval = {RECOMMENDED_INTERVAL}",
        "target": f"at least {TARGET_PER_S:,}",
        "target_met": headline >= TARGET_PER_S,
        "decode_us_per_token": decode_us_per_token(),
        "vllm": vllm,
        "replay": replays,
        "simulated": simulated,
    }


if __name__ == "__main__":
    if ADDRESS_VARIABLE in os.environ:
        replay()
    else:
        harness.main(__doc__, measure, tables=["vllm", "replay", "simulated"])
