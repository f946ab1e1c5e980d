"""Each stage alone: what a decode step and a training step cost on the cores that a layout gives them.

Invariant: a stage is measured as a run would use it, through the same engines, streams, batches and ranks, with the
other stage at rest; the controller's own work on streams and batches is part of it.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from kept_engines import KeptEngines, Layout, descendants, pin, with_tables

from prl import Config, Group, Prompt, machinery, parts
from prl.engines.base import Decoding
from prl.engines.pool import EnginePool
from prl.models import resolve_model
from prl.prompts import open_source
from prl.tokenizer import Tokenizer
from prl.types import Batch

SETTLE_S, MEASURE_S = 1.5, 3.0


async def decode_seconds(engines: KeptEngines, config: Config, sizes: Sequence[int]) -> dict[int, float]:
    """Seconds of one decode step by sequences per engine, all engines at work, streams replaced as they end."""
    tokenizer = Tokenizer.load(resolve_model(config.model))
    source = open_source(config, tokenizer)
    decoding = Decoding(
        temperature=config.sampling.temperature,
        max_tokens=config.sampling.max_tokens,
        stop_token_ids=tokenizer.stop_token_ids,
    )
    kept = engines.kept(max(sizes))
    pool = EnginePool(kept, config.engine, gate_timeout_s=config.weights.timeout_s)
    await pool.open()
    return {size: await _one_size(pool, source.next, decoding, size, len(kept)) for size in sizes}


async def _one_size(
    pool: EnginePool, next_prompt: Callable[[], Prompt], decoding: Decoding, size: int, num_engines: int
) -> float:
    async def stream(index: int) -> None:
        while True:
            async with aclosing(pool.generate(next_prompt().token_ids, decoding, group=index)) as chunks:
                async for _ in chunks:
                    pass

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stream(index)) for index in range(size * num_engines)]
        await asyncio.sleep(SETTLE_S)
        started, before = time.monotonic(), pool.statistics().tokens_generated
        await asyncio.sleep(MEASURE_S)
        tokens, elapsed_s = pool.statistics().tokens_generated - before, time.monotonic() - started
        for task in tasks:
            task.cancel()
    return elapsed_s * size * num_engines / tokens


class Recorded(NamedTuple):
    """What the runs of a body train on, in order."""

    groups: list[Group]
    batches: list[Batch]


@contextmanager
def recorded() -> Iterator[Recorded]:
    """What the runs of the body train on."""
    found = Recorded([], [])
    make_maker = parts.batch_maker

    def recording(config: Config) -> Callable[[int, list[Group]], Awaitable[Batch]]:
        make = make_maker(config)

        async def made(step: int, groups: list[Group]) -> Batch:
            batch = await make(step, groups)
            found.groups.extend(groups)
            found.batches.append(batch)
            return batch

        return made

    with patch.object(parts, "batch_maker", recording):
        yield found


async def train_seconds(config: Config, layout: Layout, batches: Sequence[Batch]) -> dict[str, Any]:
    """Cost of a training step, fixed and per token, and samples per second, the trainer alone on its cores.

    Args:
        config: of a run.
        layout: the ranks and their cores.
        batches: those of a run's first steps, planned for as many ranks. The first two are not counted.
    """
    config = with_tables(config, trainer={"num_ranks": layout.num_ranks})
    spent: list[tuple[int, float, int, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = machinery.make_trainer(config, resolve_model(config.model), Path(folder), None)
        before = descendants()
        try:
            await trainer.open()
            if layout.trainer_cores is not None:
                pin(descendants() - before, layout.trainer_cores)
            for batch in batches:
                started = time.monotonic()
                await trainer.train(batch)
                num_tokens = sum(len(sample.token_ids) for sample in batch.samples)
                num_sampled = sum(sum(sample.loss_mask) for sample in batch.samples)
                spent.append((num_tokens, time.monotonic() - started, len(batch.samples), num_sampled))
        finally:
            await trainer.close()
    counted = spent[2:]
    tokens, seconds = [float(step[0]) for step in counted], [step[1] for step in counted]
    slope, fixed = np.polyfit(tokens, seconds, 1)
    if fixed < 0 or slope <= 0:  # too little spread to tell them apart
        slope, fixed = sum(seconds) / sum(tokens), 0.0
    return {
        "fixed_s": float(fixed),
        "token_s": float(slope),
        "samples_per_s": sum(step[2] for step in counted) / sum(seconds),
        "tokens_per_s": sum(tokens) / sum(seconds),
        "sampled_tokens_per_s": sum(step[3] for step in counted) / sum(seconds),
        "step_s": statistics.median(seconds),
    }
