"""What a run may keep that goes on for days: nothing of what is done with. Counted, over many deaths and a resume.

A step, a death, a stream that leaves an object behind shows as the number of objects of its type, which is flat
otherwise: whatever is open has a bound. Compared are two stretches of one life, each after its warm-up and each at its
lowest, since what is under way differs from step to step.
"""

from __future__ import annotations

import asyncio
import gc
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from weakref import WeakSet

import msgspec
import pytest

import prl
from prl import disk, machinery, virtual_time
from prl.config import Config, EngineConfig, RunConfig, TrainerConfig
from prl.config_eval import EvalConfig
from prl.engines import lives
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script
from prl.trainer.simulated import SimulatedTrainer, TrainerScript
from tests.test_pipeline import simulated

NUM_STEPS, WARM_UP, STRETCH = 30, 6, 3
NUM_BETWEEN = NUM_STEPS - WARM_UP - STRETCH
"""Steps from one stretch to the other."""
FEW = NUM_BETWEEN // 2
"""Objects of a type that may have come, and a quarter of those that were there: fewer than there were steps, or deaths,
and about what a group more or less makes that is under way."""
CACHED = Counter[type]({struct.Struct: 100})
"""The standard library keeps a hundred formats that were used."""
MANY_TIMERS = 400
"""An event loop keeps timers that were cancelled, with what they were set in, until most of a hundred are."""


class Mortals:
    """Engines and trainers each of which dies soon."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.alive: WeakSet[Any] = WeakSet()
        self.num_made = 0

    def engine(self, *_: Any, index: int, **__: Any) -> SimulatedEngine:
        """Stand in for ``machinery.make_engine``."""
        script = Script(open_s=0.2, die_at_s=self._random.uniform(0.3, 1.2))
        return self._born(SimulatedEngine(index=index, max_num_seqs=8, script=script, seed=0))

    def trainer(self, _: Config, __: str, ___: Path, resume: Path | None, **____: bool) -> SimulatedTrainer:
        """Stand in for ``machinery.make_trainer``."""
        script = TrainerScript(open_s=0.2, die_at_s=self._random.uniform(5.0, 20.0))
        return self._born(SimulatedTrainer(publish_s=0.05, resume_from=resume, script=script))

    def _born(self, one: Any) -> Any:
        self.num_made += 1
        self.alive.add(one)
        return one

    def forget(self) -> None:
        """The simulated trainer keeps its batches, for whoever compares runs: nobody does here."""
        for one in self.alive:
            if isinstance(one, SimulatedTrainer):
                one.trained.clear()


async def at_once(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Stand in for a thread."""
    return work(*arguments, **named)


@pytest.fixture
def fresh_heap() -> Iterator[None]:
    """Each run freezes its own heap, as it does outside of tests: only then does it see what it made alone."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def mortals(monkeypatch: pytest.MonkeyPatch) -> Mortals:
    """The engines and trainers of the test."""
    made = Mortals(seed=0)
    monkeypatch.setattr(machinery, "make_engine", made.engine)
    monkeypatch.setattr(machinery, "make_trainer", made.trainer)
    monkeypatch.setattr(lives, "LAST_BACK_OFF_S", 0.5)
    monkeypatch.setattr(disk, "_in_thread", at_once)  # a thread takes its time on a busy machine
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return made


def config() -> Config:
    """A run whose end is far, and whose parts may die as often as they like."""
    engine = EngineConfig(kind="simulated", count=2, max_num_seqs=8, max_model_len=256, max_restarts=1000)
    return msgspec.structs.replace(
        simulated(),
        run=RunConfig(num_steps=1000, checkpoint_every=5, stall_timeout_s=10_000),
        engine=engine,
        trainer=TrainerConfig(kind="simulated", max_restarts=1000),
        eval=EvalConfig(num_samples=0),
    )


async def objects() -> Counter[type]:
    """How many of each type there are that the run made since it started (``frozen_heap`` leaves out the others)."""
    for _ in range(MANY_TIMERS):
        asyncio.get_running_loop().call_later(1e6, gc.collect).cancel()
    await asyncio.sleep(0)
    gc.collect()
    return Counter(map(type, gc.get_objects()))


async def at_least(before: Counter[type]) -> Counter[type]:
    """The fewest of each that there were, and are now."""
    now = await objects()
    return now & (before or now)


async def life(run: Path, mortals: Mortals, num_steps: int, *, resume: bool) -> Counter[type]:
    """Of each type, how many more objects there are late in a life than can be early in it."""
    early, late, num_made = Counter[type](), Counter[type](), 0
    async with prl.Pipeline(config(), run_dir=run, resume=resume) as pipeline:
        for step in range(num_steps):
            await pipeline.step()
            mortals.forget()
            if WARM_UP <= step < WARM_UP + STRETCH:
                early, num_made = await at_least(early), mortals.num_made
            elif step >= num_steps - STRETCH:
                late = await at_least(late)
        assert num_steps < NUM_STEPS or mortals.num_made - num_made > FEW
    return late - early - Counter({kind: FEW + early[kind] // 4 for kind in late})


@pytest.mark.usefixtures("fresh_heap")
def test_nothing_that_is_done_with_is_kept(tmp_path: Path, mortals: Mortals) -> None:
    """A fresh run and a resumed one hold as much after many steps, streams and deaths as before them."""
    for resume in (False, True):  # fills what the process keeps for good, once
        virtual_time.run(life(tmp_path / "warm-up", mortals, 2, resume=resume))
    for resume in (False, True):
        grown = virtual_time.run(life(tmp_path / "run", mortals, NUM_STEPS, resume=resume))
        kept = {kind.__qualname__: count for kind, count in (grown - CACHED).items()}
        assert kept == {}, f"what {'a resumed' if resume else 'a fresh'} run keeps"
    gc.collect()
    assert len(mortals.alive) == 0
