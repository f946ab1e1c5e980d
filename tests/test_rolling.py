"""Engines that take up new weights in turns: one always goes on, tokens say who sampled them, the lag holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl import virtual_time
from prl.config import EngineConfig
from prl.engines.base import Decoding
from prl.engines.pool import EnginePool
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import FIRST_VERSION_TOKEN, Script
from prl.engines.updated import in_parts
from prl.simulation import CHECKPOINT, MANIFEST, Meeting
from prl.trainer.simulated import SimulatedTrainer
from prl.types import TokenChunk, WeightUpdate
from tests.test_controller import controller_over, lags
from tests.virtual import in_virtual_time

LONG = Decoding(temperature=1.0, max_tokens=400, stop_token_ids=[])


def watched(all_engines: list[SimulatedEngine], versions: list[set[int]]) -> Any:
    """Makes engines that note, whenever one of them stands still, that not all do, and which versions are served."""

    class Watched(SimulatedEngine):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            all_engines.append(self)

        async def pause(self) -> None:
            await super().pause()
            assert not all(engine.statistics().paused for engine in all_engines)
            versions.append({engine.statistics().version for engine in all_engines})

    return Watched


CASES = st.fixed_dictionaries(
    {
        "max_lag": st.integers(0, 3),
        "groups_per_step": st.integers(1, 3),
        "num_engines": st.integers(2, 5),
        "rolling": st.integers(1, 4),
        "staged": st.booleans(),
    }
)


@settings(max_examples=40, deadline=None)
@given(case=CASES, step_s=st.sampled_from([0.001, 0.2, 5.0]), load_s=st.sampled_from([0.0, 0.5]))
def test_one_engine_always_goes_on_and_the_lag_holds(case: dict[str, Any], step_s: float, load_s: float) -> None:
    """Never do all stand still; each token's version is the one that sampled it; none is older than the bound."""
    trainer, served = SimulatedTrainer(step_s=step_s, publish_s=0.1), list[set[int]]()
    script = Script(tokens="version", stages=case["staged"], load_s=load_s, length_median=20.0)

    async def main() -> None:
        async with controller_over(**case, script=script, trainer=trainer, make_engine=watched([], served)) as run:
            await run.steps(6)

    virtual_time.run(main())
    assert max(lags(trainer)) <= case["max_lag"]
    for _, batch in trainer.trained:
        for sample in batch.samples:
            sampled = zip(sample.token_ids, sample.versions, sample.loss_mask, strict=True)
            assert all(token in {0, FIRST_VERSION_TOKEN + version} for token, version, mask in sampled if mask)
    assert max(map(len, served)) == 2, "engines of two versions serve side by side while they take turns"


def test_parts_are_as_large_as_asked_and_two_at_least() -> None:
    """A part is never more than half of the engines; one engine is a part of its own; 0 puts all into one."""
    sizes = {
        (count, rolling): [len(part) for part in in_parts(list(range(count)), rolling)]  # type: ignore[arg-type]
        for count, rolling in [(0, 2), (1, 2), (2, 2), (5, 2), (5, 4), (5, 0), (6, 1)]
    }
    assert sizes == {
        (0, 2): [0],
        (1, 2): [1],
        (2, 2): [1, 1],
        (5, 2): [2, 2, 1],
        (5, 4): [3, 2],
        (5, 0): [5],
        (6, 1): [1] * 6,
    }


class Turns:
    """Two engines that stage, with the trainer's side of their weight group."""

    def __init__(self) -> None:
        script = Script(tokens="version", stages=True, length_median=1e6)
        self.engines = [SimulatedEngine(index=i, max_num_seqs=8, script=script, seed=0) for i in range(2)]
        self.pool = EnginePool(self.engines, EngineConfig(), gate_timeout_s=30, rolling=1)
        self.trainer: Meeting
        self.update = WeightUpdate(version=1, transport="gloo", manifest=MANIFEST)

    async def stage(self) -> None:
        """Join, and have everything there that version 1 needs."""
        await self.pool.open()
        group = self.pool.weight_group(transport="gloo", address="turns", port=1, timeout_s=10)
        async with asyncio.TaskGroup() as tasks:
            trainer = tasks.create_task(Meeting.join(group, 0))
            tasks.create_task(self.pool.connect(group))
        self.trainer = trainer.result()
        assert await self.pool.stage(self.update)
        await self.trainer.send(1, CHECKPOINT)


@asynccontextmanager
async def turns() -> AsyncIterator[Turns]:
    """Version 1 is staged on both, and served by none."""
    made = Turns()
    await made.stage()
    yield made
    await made.pool.close()


async def sample(pool: EnginePool, *, at_least: int = 0, max_tokens: int = 3) -> list[TokenChunk]:
    """One stream to its end."""
    decoding = Decoding(temperature=1.0, max_tokens=max_tokens, stop_token_ids=[])
    async with aclosing(pool.generate([5, 6], decoding, group=0, at_least=at_least)) as chunks:
        return [chunk async for chunk in chunks]


@in_virtual_time
async def test_new_streams_run_where_engines_go_on() -> None:
    """While one engine stands still, whatever is asked for is sampled by the other, with the version it serves."""
    async with turns() as made:
        await made.pool.pause(0)
        chunks = [chunk for _ in range(4) for chunk in await sample(made.pool)]
        assert {chunk.version for chunk in chunks} == {0}
        assert made.engines[0].statistics().tokens_generated == 0
        await made.pool.load(made.update, 0)
        await made.pool.resume(0)
        await made.pool.swap(made.update, 1)
        assert made.pool.statistics().versions == {"engine-0": 1, "engine-1": 1}


@in_virtual_time
async def test_a_stream_goes_on_where_the_weights_are_as_new() -> None:
    """Behind a token of version 1 nothing is sampled by version 0: the stream waits for an engine that had its turn.

    Otherwise the versions of a stream would fall where its engine dies between two turns.
    """
    async with turns() as made:
        await made.pool.swap(made.update, 0)
        assert {chunk.version for chunk in await sample(made.pool, at_least=1)} == {1}
        made.engines[0].kill()
        async with asyncio.TaskGroup() as tasks:
            behind = tasks.create_task(sample(made.pool, at_least=1))
            assert {chunk.version for chunk in await sample(made.pool)} == {0}
            assert not behind.done()
            await made.pool.swap(made.update, 1)
        assert {chunk.version for chunk in behind.result()} == {1}


@pytest.mark.parametrize("staged", [True, False])
@in_virtual_time
async def test_groups_of_engines_have_weight_groups_as_they_need_them(staged: bool) -> None:
    """What is staged reaches all engines in one weight group; what is not, each part in one of its own."""
    engines = [SimulatedEngine(index=i, max_num_seqs=1, script=Script(), seed=0) for i in range(5)]
    pool = EnginePool(engines, EngineConfig(), gate_timeout_s=30, rolling=2, staged=staged)
    await pool.open()
    groups = [
        pool.weight_group(transport="gloo", address="groups", port=part, timeout_s=10, part=part)
        for part in range(1 if staged else 3)
    ]
    found = [(group.part, group.num_parts, group.world_size) for group in groups]
    assert found == ([(0, 1, 6)] if staged else [(0, 3, 3), (1, 3, 3), (2, 3, 2)])
    assert list(pool.turns(is_staged=True)) == [0, 1, 2]
    assert list(pool.turns(is_staged=False)) == ([None] if staged else [0, 1, 2])
    await pool.close()
