"""The simulated engine as a subject of the contract tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path

from prl.engines.base import Decoding
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import FIRST_VERSION_TOKEN, Script
from prl.simulation import MANIFEST, Meeting
from prl.types import WeightGroup, WeightUpdate
from tests.engines.contract import Subject

GROUP = WeightGroup(transport="simulated", address="contract", port=1, world_size=2, timeout_s=10)


class SimulatedSubject(Subject):
    """The factory is rank 0 of a meeting."""

    def __init__(self, engine: SimulatedEngine, meeting: Meeting, *, max_num_seqs: int) -> None:
        super().__init__(engine, prompt=[5, 6, 7], max_num_seqs=max_num_seqs, long=200)
        self._simulated, self._meeting = engine, meeting

    async def transfer(self, version: int) -> None:
        """Meet the load."""
        weights = blake2b(version.to_bytes(8, "little"), digest_size=16).digest()
        await self._send(version, version, weights)

    async def failing_transfer(self, version: int) -> None:
        """Send another version than the engine was told."""
        await self._send(version, version + 1, b"x" * 16)

    async def stage(self, version: int) -> WeightUpdate:
        """Meet the staging."""
        update = WeightUpdate(version=version, transport="simulated", manifest=MANIFEST)
        assert await self.engine.stage(update)
        await self._meeting.send(version, blake2b(version.to_bytes(8, "little"), digest_size=16).digest())
        return update

    async def break_off(self, version: int) -> None:
        """Send nothing."""
        assert await self.engine.stage(WeightUpdate(version=version, transport="simulated", manifest=MANIFEST))

    async def reconnect(self) -> None:
        """In a new meeting."""
        async with asyncio.TaskGroup() as group:
            joined = group.create_task(Meeting.join(GROUP, 0))
            group.create_task(self.engine.connect(GROUP, 1))
        self._meeting = joined.result()

    async def _send(self, announced: int, sent: int, weights: bytes) -> None:
        update = WeightUpdate(version=announced, transport="simulated", manifest=MANIFEST)
        failures: list[Exception] = []

        async def load() -> None:
            try:
                await self.engine.load(update)
            except Exception as error:  # noqa: BLE001 - raised below
                failures.append(error)

        async with asyncio.TaskGroup() as group:
            group.create_task(self._meeting.send(sent, weights))
            group.create_task(load())
        if failures:
            raise failures[0]

    async def kill(self) -> None:
        """As scripted accidents do."""
        self._simulated.kill()

    async def stopping(self) -> Decoding:
        """Its streams want to stop after some thirty tokens, whatever the stop tokens are."""
        return Decoding(temperature=0, max_tokens=10_000, stop_token_ids=[3, 4])

    def version_of(self, token: int) -> int | None:
        """The script makes each token say it."""
        return token - FIRST_VERSION_TOKEN


@asynccontextmanager
async def subject(folder: Path) -> AsyncIterator[Subject]:
    """A quick engine in real time whose tokens say their version."""
    script = Script(base_s=0.0005, per_seq_s=0.0, tokens="version", stream_interval=3, stages=True)
    engine = SimulatedEngine(index=0, max_num_seqs=4, script=script, seed=0)
    await engine.open()
    async with asyncio.TaskGroup() as group:
        joined = group.create_task(Meeting.join(GROUP, 0))
        group.create_task(engine.connect(GROUP, 1))
    yield SimulatedSubject(engine, joined.result(), max_num_seqs=4)
    await engine.close()
