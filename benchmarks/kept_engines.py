"""Many short runs on engines that start once: what start-up would otherwise cost each setting of a benchmark.

Invariants:

- Every run has a trainer of its own, started from the checkpoint; only the engine processes are kept. They join the
  new trainer's weight group, and the first push brings the checkpoint's weights back and proves them. What is in their
  prefix cache is salted with the load that it belongs to, so no run reads another's.
- A run never has more streams in its engines than its own configuration says, whatever the engines were opened for.
- Pinning is by thread and inherited: an engine, and a trainer once its ranks have come, stay on the cores they got.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import msgspec
import psutil

from prl import Config, Pipeline, StepReport, machinery
from prl.engines.base import Decoding, Engine, EngineStatistics, Standstill
from prl.errors import EngineDeadError
from prl.models import resolve_model
from prl.types import TokenChunk, WeightGroup, WeightUpdate

PREFIX_BLOCK = 128
MIN_CORES = 2


class Layout(msgspec.Struct, frozen=True):
    """How processes are laid on the cores; ``None``: the kernel decides."""

    name: str
    num_engines: int
    num_ranks: int
    engine_cores: tuple[int, ...] | None = None
    trainer_cores: tuple[int, ...] | None = None
    """Of the ranks and of this process, which reads the streams and builds the batches."""


def split() -> Layout:
    """One engine on the first core that this process may use, one trainer rank and this process on the second."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < MIN_CORES:
        raise SystemExit(f"the split needs {MIN_CORES} cores, and this process may use {cores}: give it two")
    first, second = cores[:MIN_CORES]
    return Layout("split", num_engines=1, num_ranks=1, engine_cores=(first,), trainer_cores=(second,))


class Kept:
    """An engine that outlives the runs that use it: to them it opens and closes at once."""

    def __init__(self, engine: Any, max_num_seqs: int) -> None:
        self.name, self.num_workers = engine.name, engine.num_workers
        self._engine = engine
        self._slots = asyncio.Semaphore(max_num_seqs)

    async def open(self) -> None:
        """It is open; one that died between two runs, or in one, is not started again: its benchmark ends."""
        if self.statistics().dead:
            raise EngineDeadError(await self._engine.failed())

    async def close(self) -> None:
        """It stays open."""

    async def generate(self, token_ids: list[int], decoding: Decoding) -> AsyncGenerator[TokenChunk, None]:
        """As the engine does, at most ``max_num_seqs`` at once."""
        if len(token_ids) >= PREFIX_BLOCK:
            raise ValueError(f"kept engines are for prompts below {PREFIX_BLOCK} tokens, got {len(token_ids)}")
        async with self._slots, aclosing(self._engine.generate(token_ids, decoding)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """As the engine does."""
        await self._engine.connect(group, rank_offset)

    async def stage(self, update: WeightUpdate) -> bool:
        """As the engine does."""
        staged: bool = await self._engine.stage(update)
        return staged

    async def swap(self, update: WeightUpdate) -> Standstill:
        """As the engine does."""
        still: Standstill = await self._engine.swap(update)
        return still

    async def pause(self) -> None:
        """As the engine does."""
        await self._engine.pause()

    async def load(self, update: WeightUpdate) -> None:
        """As the engine does."""
        await self._engine.load(update)

    async def resume(self) -> None:
        """As the engine does."""
        await self._engine.resume()

    async def score(self, token_ids: list[int]) -> list[float]:
        """As the engine does."""
        scores: list[float] = await self._engine.score(token_ids)
        return scores

    async def failed(self) -> str:
        """As the engine does."""
        why: str = await self._engine.failed()
        return why

    def statistics(self) -> EngineStatistics:
        """As the engine does."""
        statistics: EngineStatistics = self._engine.statistics()
        return statistics


class KeptEngines:
    """The engines of one layout, opened for the largest of the runs to come. Use it as ``async with``."""

    def __init__(self, config: Config, layout: Layout, max_num_seqs: int) -> None:
        self._layout = layout
        self._folder = tempfile.TemporaryDirectory()
        self._config = with_tables(config, engine={"count": layout.num_engines, "max_num_seqs": max_num_seqs})
        self._engines: list[Engine] = []
        self.running: list[int] = []
        """Streams that were open at the end of each step of the latest run, waiting ones left out."""

    async def __aenter__(self) -> Self:
        before = descendants()
        self._own_cores = os.sched_getaffinity(0)
        transport = machinery.transport_of(self._config)
        model = resolve_model(self._config.model)
        self._engines = machinery.make_engines(self._config, model, Path(self._folder.name), transport)
        async with asyncio.TaskGroup() as opening:
            for engine in self._engines:
                opening.create_task(engine.open())
        if self._layout.engine_cores is not None:
            pin(descendants() - before, self._layout.engine_cores)
        return self

    async def __aexit__(self, *_: object) -> None:
        async with asyncio.TaskGroup() as closing:
            for engine in self._engines:
                closing.create_task(engine.close())
        pin([os.getpid()], sorted(self._own_cores))
        self._folder.cleanup()

    def kept(self, max_num_seqs: int) -> list[Engine]:
        """The engines for one run."""
        return [Kept(engine, max_num_seqs) for engine in self._engines]

    @asynccontextmanager
    async def pipeline(self, config: Config) -> AsyncIterator[Pipeline]:
        """A pipeline on these engines with a trainer of its own, laid out and started."""
        config = with_tables(
            config, engine={"count": self._layout.num_engines}, trainer={"num_ranks": self._layout.num_ranks}
        )
        engines, before = self.kept(config.engine.max_num_seqs), descendants()
        with tempfile.TemporaryDirectory() as folder, patch.object(machinery, "make_engines", lambda *_: engines):
            async with Pipeline(config, run_dir=Path(folder) / "run") as pipeline:
                if self._layout.trainer_cores is not None:
                    pin({os.getpid(), *(descendants() - before)}, self._layout.trainer_cores)
                yield pipeline

    async def run(self, config: Config, num_steps: int) -> list[StepReport]:
        """Take ``num_steps`` steps of a fresh run."""
        async with self.pipeline(with_tables(config, run={"num_steps": num_steps})) as pipeline:
            self.running, reports = [], []
            for _ in range(num_steps):
                reports.append(await pipeline.step())
                self.running.append(sum(engine.statistics().running for engine in self._engines))
            return reports


def with_tables(config: Config, **tables: dict[str, Any]) -> Config:
    """The configuration with some keys of some tables replaced."""
    changed = {name: msgspec.structs.replace(getattr(config, name), **keys) for name, keys in tables.items()}
    return msgspec.structs.replace(config, **changed)


def pin(pids: Iterable[int], cores: Sequence[int]) -> None:
    """Every thread of these processes onto ``cores``; threads to come inherit it."""
    for pid in pids:
        with suppress(FileNotFoundError):
            for task in list(Path(f"/proc/{pid}/task").iterdir()):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(task.name), cores)


def descendants() -> set[int]:
    """Every process below this one."""
    return {child.pid for child in psutil.Process().children(recursive=True)}
