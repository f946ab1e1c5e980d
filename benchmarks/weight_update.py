"""What a weight update costs the engines, sent in four ways, beside a plain copy of as many bytes.

    python benchmarks/weight_update.py [--quick] --out FILE.json

Real parts: one trainer rank under torchrun, the gloo transfer, two vLLM engines. Models: ``builtin:tiny-math`` and a
randomly initialised Llama of SmolLM2-135M's shape (what the numbers are does not change what moving them costs); engine
and wire in float32 and in bfloat16. The trainer's master weights are float32, so for bfloat16 they are cast.

    plain     ``weights.staged = false``, buckets of the mean size of a tensor: about one message a tensor
    packed    ``weights.staged = false``, buckets as configured by default
    staged    the default: received beside generation, all engines swap at once
    rolling   ``weights.rolling = 1``: staged, one engine swaps after the other

The copy: ``torch.Tensor.copy_`` of the same tensors in the engine's dtype, one thread, memory that has been touched
before, which is the least that any update costs. Columns of each push, of the engine that it took longest:
``stood_still_s``, for an idle engine all of the pause; for one that samples (8 streams on both), from when it had
finished its step until it went on. ``step_s`` before it is the wait for that step, in which it still samples.
``swap_s``: the calls that put the weights in place, messages included; of a plain update the whole load.
``transfer_s``: of a staged update it is beside generation. ``push_s``: from beginning to end. ``lost_tokens``: what the
engines would have sampled in that time, going by what they sample undisturbed, less what they did. On two cores that is
mostly the trainer's and the receivers' work in the place of the engines', which a machine with GPUs does not see.

Headline: the largest ratio of a staged standstill to the copy over the rows of the larger model, medians; target at
most 1.5. Beside it, ``pause_ratio``: how many times longer an engine that samples stands still for a packed update that
is not staged than for a staged one, the smallest over the larger model's dtypes; target at least 5.
The small model is shown beside it: its copy takes less than the messages that say "stop" and "go on". ``--quick``:
float32 only, three pushes, and the larger model only while it samples.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import harness
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from prl import machinery, parts
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
TARGET_RATIO, TARGET_PAUSE_RATIO = 1.5, 5.0
NUM_REPEATS, NUM_QUICK, NUM_STREAMS, STREAM_TOKENS = 7, 3, 8, 1900
UNDISTURBED_S = 4.0
"""How long the engines are watched sampling alone."""
PROBE = list(range(3, 19))
SETTINGS = (
    "engine.count=2",
    "engine.max_num_seqs=16",
    "engine.max_model_len=2048",
    "engine.kv_cache_gib=0.3",
    "engine.stream_interval=1",
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


class Mode(NamedTuple):
    """A way to send an update."""

    name: str
    staged: bool
    rolling: int = 0
    is_packed: bool = True


MODES = (
    Mode("plain", staged=False, is_packed=False),
    Mode("packed", staged=False),
    Mode("staged", staged=True),
    Mode("rolling", staged=True, rolling=1),
)


def num_bytes_of(manifest: list[TensorSpec]) -> int:
    """What an update of these tensors carries."""
    return sum(math.prod(spec.shape) * getattr(torch, spec.dtype).itemsize for spec in manifest)


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

    def turns(self, *, is_staged: bool) -> Any:
        """The pool's; a push begins."""
        self.seconds = {}
        return self._pool.turns(is_staged=is_staged)

    def __getattr__(self, call: str) -> Callable[..., Awaitable[Any]]:
        """The pool's ``call``; of several the longest."""

        async def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = await getattr(self._pool, call)(*arguments)
            self.seconds[call] = max(self.seconds.get(call, 0.0), time.perf_counter() - started)
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
    """A trainer and engines; every push comes after a step, so that every version differs."""

    def __init__(self, config: Config, trainer: Trainer, pool: EnginePool, manifest: list[TensorSpec]) -> None:
        self.pool, self._config, self._trainer, self.manifest = pool, config, trainer, manifest
        self._engines: Any = Timed(pool)
        self._sync: WeightSync
        self._version = 0

    async def use(self, mode: Mode) -> None:
        """Join anew, as ``mode`` wants it, and push once."""
        self.pool.staged, self.pool.rolling = mode.staged, mode.rolling
        mean = num_bytes_of(self.manifest) // len(self.manifest)
        group = self.pool.weight_group(  # one, also where engines take turns: all rolling modes here are staged
            transport="gloo",
            address=LOOPBACK,
            port=free_port(LOOPBACK),
            timeout_s=TIMEOUT_S,
            bucket_bytes=self._config.weights.bucket_bytes if mode.is_packed else mean,
        )
        joining = {"trainer": partial(self._trainer.connect, group), "engines": partial(self.pool.connect, group)}
        await together({}, "join", **joining)
        self._sync = WeightSync(
            self._trainer,
            self._engines,
            transport="gloo",
            manifest=self.manifest,
            probe=PROBE,
            tolerance=parts.tolerance_of(self._config),
            gap_of=parts.gap_of(self._config),
            timeout_s=TIMEOUT_S,
            verify_every=1,
            staged=mode.staged,
        )
        await self._sync.push(self._version)  # and prove it

    async def tokens_per_s(self) -> float:
        """What the engines sample while nobody disturbs them."""
        before, started = self.pool.statistics().tokens_generated, time.perf_counter()
        await asyncio.sleep(UNDISTURBED_S)
        return (self.pool.statistics().tokens_generated - before) / (time.perf_counter() - started)

    async def pushes(self, kind: str, num_repeats: int) -> dict[str, Any]:
        """Medians of the parts of so many pushes; ``kind`` says what the engines do meanwhile."""
        rate = await self.tokens_per_s() if kind == "sampling" else 0.0
        reports, swaps, lasted, lost = [], [], [], []
        for _ in range(num_repeats):
            await self._trainer.train(one_batch(self._version))
            self._version += 1
            before, started = self.pool.statistics().tokens_generated, time.perf_counter()
            reports.append(await self._sync.push(self._version))
            lasted.append(time.perf_counter() - started)
            lost.append(rate * lasted[-1] - (self.pool.statistics().tokens_generated - before))
            seconds = self._engines.seconds
            swaps.append(seconds["swap"] if "swap" in seconds else seconds["load"])
            await self._sync.prove()
        # An idle engine has no step to wait for: all of its pause is standing still.
        still = [report.pause_s - (report.drain_s if kind == "sampling" else 0.0) for report in reports]
        return {
            "engines": kind,
            "stood_still_s": harness.spread(still),
            "swap_s": harness.spread(swaps),
            "step_s": harness.spread([report.drain_s for report in reports]),
            "transfer_s": harness.spread([report.publish_s for report in reports]),
            "push_s": harness.spread(lasted),
            "tokens_per_s": round(rate, 1),
            "lost_tokens": harness.spread(lost),
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
async def opened(config: Config, model: str, folder: Path) -> AsyncIterator[Pair]:
    """Start both sides; end every process."""
    pool = EnginePool(machinery.make_engines(config, model, folder, "gloo"), config.engine, gate_timeout_s=TIMEOUT_S)
    trainer = machinery.make_trainer(config, model, folder, None)
    try:
        ready = (await together({}, "start", trainer=trainer.open, engines=pool.open))["trainer"]
        yield Pair(config, trainer, pool, ready.manifest)
    finally:
        await together({}, "close", trainer=trainer.close, engines=pool.close)


@asynccontextmanager
async def sampling(pool: EnginePool) -> AsyncIterator[None]:
    """All streams have begun, and go on until the body ends."""
    first_tokens = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(stream(pool, number, first_tokens)) for number in range(NUM_STREAMS)]
        for _ in streams:
            await first_tokens.acquire()
        yield
        for task in streams:
            task.cancel()


async def measure_one(name: str, model: str, dtype: str, folder: Path, *, quick: bool) -> list[dict[str, Any]]:
    """All modes, one model, one dtype."""
    kinds = ("sampling",) if quick and name == LARGE else ("idle", "sampling")
    num_repeats = NUM_QUICK if quick else NUM_REPEATS
    config, rows = load_config(MATH, [*SETTINGS, f"engine.dtype={dtype}"]), []
    async with opened(config, model, folder) as pair:
        for mode in MODES:
            await pair.use(mode)
            for kind in kinds:
                async with sampling(pair.pool) if kind == "sampling" else nullcontext():
                    rows.append((mode.name, await pair.pushes(kind, num_repeats)))
        manifest = pair.manifest
    copy = harness.spread(plain_copy(manifest))
    return [
        {
            "model": name,
            "dtype": dtype,
            "mb": round(num_bytes_of(manifest) / 1e6, 1),
            "copy_s": copy,
            "mode": mode,
            "ratio": harness.spread([seconds / copy["median"] for seconds in row["stood_still_s"]["values"]]),
            **row,
        }
        for mode, row in rows
    ]


def measure(quick: bool) -> dict[str, Any]:
    """Both models."""
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        models = {"tiny-math": resolve_model("builtin:tiny-math"), LARGE: smollm2_shape(folder / "model")}
        for name, model in models.items():
            for dtype in ("float32", "bfloat16")[: 1 if quick else 2]:
                rows += asyncio.run(measure_one(name, model, dtype, folder / f"{name}-{dtype}", quick=quick))
    large = [row for row in rows if row["model"] == LARGE]
    worst = max((row["ratio"] for row in large if row["mode"] == "staged"), key=lambda ratio: ratio["median"])
    headline, pause_ratio = worst["median"], min(pause_ratios(large).values())
    return {
        "headline": headline,
        "headline_by_push": worst,
        "pause_ratio": pause_ratio,
        "pause_ratio_by_dtype": pause_ratios(large),
        "target": f"a staged standstill of at most {TARGET_RATIO} times a plain copy, larger model, and at most"
        f" 1/{TARGET_PAUSE_RATIO:g} of that of a packed update that is not staged",
        "target_met": headline <= TARGET_RATIO and pause_ratio >= TARGET_PAUSE_RATIO,
        "updates": rows,
    }


def pause_ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Standstill of a packed update over that of a staged one while the engines sample, medians, by dtype."""
    still = {
        (row["dtype"], row["mode"]): row["stood_still_s"]["median"] for row in rows if row["engines"] == "sampling"
    }
    return {dtype: still[dtype, "packed"] / still[dtype, "staged"] for dtype, mode in still if mode == "staged"}


if __name__ == "__main__":
    harness.main(__doc__, measure, tables=["updates"])
