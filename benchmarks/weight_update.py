"""How long engines stand still for new weights, beside a plain copy of as many bytes.

    python benchmarks/weight_update.py [--quick] --out FILE.json

Real parts: one trainer rank under torchrun, the gloo transfer, one vLLM engine. Models: ``builtin:tiny-math`` and a
randomly initialised Llama of SmolLM2-135M's shape (what the numbers are does not change what moving them costs); engine
and wire in float32 and in bfloat16. The trainer's master weights are float32, so for bfloat16 they are cast.

The copy: ``torch.Tensor.copy_`` of the same tensors in the engine's dtype, one thread, memory that has been touched
before, which is the least that any update costs. Standing still: for an idle engine all of the pause; for one that is
sampling (8 streams), from when it has finished its step to when it goes on, and ``step_s`` before it is the wait for
that step, in which it still samples. ``transfer_s`` is beside generation: nothing stands still for it.

Headline: the largest ratio of standing still to the copy over the rows of the larger model, medians; target at most 3.
Beside it the spread of that row's pushes over the median copy.
The small model is shown beside it: its copy takes less than the messages that say "stop" and "go on". ``--quick``:
float32 only.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import harness
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from prl import parts
from prl.config import Config
from prl.engines.base import Decoding
from prl.engines.pool import EnginePool
from prl.failure import together
from prl.models import resolve_model
from prl.process import free_port
from prl.settings import load_config
from prl.sync import WeightSync
from prl.trainer.base import Trainer
from prl.types import Batch, Sample, TensorSpec

MATH = Path(__file__).parent.parent / "configs/math.toml"
LOOPBACK, TIMEOUT_S = "127.0.0.1", 60.0
LARGE = "SmolLM2-135M's shape"
TARGET_RATIO = 3.0
NUM_REPEATS, NUM_STREAMS, STREAM_TOKENS = 7, 8, 1900
PROBE = list(range(3, 19))
SETTINGS = (
    "engine.count=1",
    "engine.max_num_seqs=16",
    "engine.max_model_len=2048",
    "engine.kv_cache_gib=0.5",
    "trainer.num_ranks=1",
    "weights.transport=gloo",
)


def smollm2_shape(folder: Path) -> str:
    """Random weights in the shape of SmolLM2-135M."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def plain_copy(manifest: list[TensorSpec]) -> list[float]:
    """Seconds to copy tensors of these shapes and dtypes, once per repeat."""
    torch.set_num_threads(1)
    sources = [torch.ones(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in manifest]
    targets = [torch.zeros_like(source) for source in sources]
    taken = []
    for _ in range(NUM_REPEATS):
        started = time.perf_counter()
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)
        taken.append(time.perf_counter() - started)
    return taken


class Timed:
    """Engines whose calls are timed."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self.seconds: dict[str, float] = {}

    def __getattr__(self, call: str) -> Callable[..., Awaitable[Any]]:
        """The pool's ``call``."""

        async def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = await getattr(self._pool, call)(*arguments)
            self.seconds[call] = time.perf_counter() - started
            return result

        return timed


async def stream(pool: EnginePool, number: int, first_tokens: asyncio.Semaphore) -> None:
    """Sample until cancelled, one sequence after the other."""
    decoding = Decoding(temperature=1.0, max_tokens=STREAM_TOKENS, stop_token_ids=[])
    while True:
        async with aclosing(pool.generate(PROBE, decoding, group=number)) as chunks:
            async for _ in chunks:
                first_tokens.release()


class Pair:
    """A trainer and an engine, joined; every push comes after a step, so that every version differs."""

    def __init__(self, trainer: Trainer, pool: EnginePool, sync: WeightSync, engines: Timed) -> None:
        self.pool, self._trainer, self._sync, self._engines = pool, trainer, sync, engines
        self._version = 0

    async def start(self) -> None:
        """Push the checkpoint's weights."""
        await self._sync.push(0)

    async def pushes(self, kind: str) -> dict[str, Any]:
        """Medians of the parts of ``NUM_REPEATS`` pushes; ``kind`` says what the engine does meanwhile."""
        reports, loads = [], []
        for _ in range(NUM_REPEATS):
            await self._trainer.train(one_batch(self._version))
            self._version += 1
            reports.append(await self._sync.push(self._version))
            loads.append(self._engines.seconds["load"])
        # An idle engine has no step to wait for: all of its pause is standing still.
        still = [report.pause_s - (report.drain_s if kind == "sampling" else 0.0) for report in reports]
        return {
            "engine": kind,
            "stood_still_s": harness.spread(still),
            "load_s": harness.spread(loads),
            "step_s": harness.spread([report.drain_s for report in reports]),
            "transfer_s": harness.spread([report.publish_s for report in reports]),
        }


def one_batch(step: int) -> Batch:
    """Two short sequences."""
    length = len(PROBE)
    sample = Sample(
        token_ids=PROBE,
        loss_mask=[0] + [1] * (length - 1),
        logprobs=[-3.0] * length,
        versions=[step] * length,
        advantages=[0.0] + [1.0] * (length - 1),
    )
    return Batch(step=step, samples=[sample, sample], plan=[[[0, 1]]], num_sequences=2)


@asynccontextmanager
async def joined(config: Config, model: str, folder: Path) -> AsyncIterator[tuple[Pair, list[TensorSpec]]]:
    """Start both sides, join them, push the first weights; end every process."""
    pool = EnginePool(parts.make_engines(config, model, folder, "gloo"), config.engine, gate_timeout_s=TIMEOUT_S)
    trainer = parts.make_trainer(config, model, folder, None)
    try:
        ready = (await together({}, "start", trainer=trainer.open, engines=pool.open))["trainer"]
        port = free_port(LOOPBACK)
        group = pool.weight_group(transport="gloo", address=LOOPBACK, port=port, timeout_s=TIMEOUT_S)
        await together({}, "join", trainer=lambda: trainer.connect(group), engines=lambda: pool.connect(group))
        engines: Any = Timed(pool)
        sync = WeightSync(
            trainer,
            engines,
            transport="gloo",
            manifest=ready.manifest,
            probe=PROBE,
            tolerance=parts.tolerance_of(config),
            gap_of=parts.gap_of(config),
            timeout_s=TIMEOUT_S,
            verify_every=1,
        )
        pair = Pair(trainer, pool, sync, engines)
        await pair.start()
        yield pair, ready.manifest
    finally:
        await together({}, "close", trainer=trainer.close, engines=pool.close)


async def measure_one(name: str, model: str, dtype: str, folder: Path) -> list[dict[str, Any]]:
    """Idle and sampling, one model, one dtype."""
    config = load_config(MATH, [*SETTINGS, f"engine.dtype={dtype}"])
    async with joined(config, model, folder) as (pair, manifest):
        rows = [await pair.pushes("idle")]
        first_tokens = asyncio.Semaphore(0)
        async with asyncio.TaskGroup() as tasks:
            streams = [tasks.create_task(stream(pair.pool, number, first_tokens)) for number in range(NUM_STREAMS)]
            for _ in streams:
                await first_tokens.acquire()
            rows.append(await pair.pushes("sampling"))
            for task in streams:
                task.cancel()
    copy = harness.spread(plain_copy(manifest))
    num_bytes = sum(math.prod(spec.shape) * getattr(torch, spec.dtype).itemsize for spec in manifest)
    return [
        {
            "model": name,
            "dtype": dtype,
            "mb": round(num_bytes / 1e6, 1),
            "copy_s": copy,
            "ratio": harness.spread([seconds / copy["median"] for seconds in row["stood_still_s"]["values"]]),
            **row,
        }
        for row in rows
    ]


def measure(quick: bool) -> dict[str, Any]:
    """Both models."""
    warnings.simplefilter("ignore")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        models = {"tiny-math": resolve_model("builtin:tiny-math"), LARGE: smollm2_shape(folder / "model")}
        for name, model in models.items():
            for dtype in ("float32", "bfloat16")[: 1 if quick else 2]:
                rows += asyncio.run(measure_one(name, model, dtype, folder / f"{name}-{dtype}"))
    worst = max((row["ratio"] for row in rows if row["model"] == LARGE), key=lambda ratio: ratio["median"])
    headline = worst["median"]
    return {
        "headline": headline,
        "headline_by_push": worst,
        "target": f"standing still for at most {TARGET_RATIO} times a plain copy, larger model",
        "target_met": headline <= TARGET_RATIO,
        "updates": rows,
    }


if __name__ == "__main__":
    harness.main(__doc__, measure, tables=["updates"])
