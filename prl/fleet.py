"""The processes of a run: engines and trainer, started and ended together, and in one weight group meanwhile.

Invariants:

- Whoever is there is in a weight group before weights are sent: ``join`` makes a new one, or one for each part of the
  engines that takes its turn, where an engine or the trainer was started again since.
- After an update that failed, ``mend`` takes out who is dead or does not answer, and waits for a trainer that is
  started again, with engines that go on where they can. Where all are alive the update is tried once more: what failed
  may have been the network.
- A trainer that is started again takes minutes. That is waited for before the engines are asked to join, whose wait for
  one another has a deadline that is much shorter.
- An engine is added where the machine has room for it, as far as can be told beforehand; a server anywhere.
- Closing is bounded in time, and neither side waits for the other's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from prl import machinery, preflight
from prl.config import Config
from prl.deadlines import awake_timeout
from prl.engines.pool import EnginePool
from prl.errors import RefusedError, WeightSyncError
from prl.failure import failures_to, together_as_it_was
from prl.log import get_logger
from prl.servers import address_problem, host_of, same_form
from prl.timeline import Timeline
from prl.trainer import checkpoint
from prl.trainer.base import Trainer, TrainerReady
from prl.trainer.kept import KeptTrainer
from prl.types import TensorSpec
from prl.waits import waiting

log = get_logger(__name__)


class Fleet:
    """See the module.

    Args:
        config: the whole configuration.
        model: a folder, or a hub name.
        run_dir: where logs and checkpoints are.
        transport: vLLM's name of the weight-transfer backend.
        resume: the checkpoint that the trainer loads.
        replay: trains a trainer that holds the weights after so many steps on all steps done since.
        timeline: shows what each of them does.
    """

    def __init__(
        self,
        config: Config,
        model: str,
        run_dir: Path,
        *,
        transport: str,
        resume: Path | None,
        replay: Callable[[Trainer, int], Awaitable[None]],
        timeline: Timeline | None = None,
    ) -> None:
        self.transport, self._timeout_s = transport, config.weights.timeout_s
        self.manifest: list[TensorSpec] = []
        self.engines = EnginePool(
            machinery.make_engines(config, model, run_dir, transport),
            config.engine,
            gate_timeout_s=config.weights.timeout_s,
            rolling=config.weights.rolling,
            staged=machinery.is_staged(config, transport),
            remake=lambda index, place: machinery.make_engine(
                config, model, run_dir, transport, index=index, place=place
            ),
            places=machinery.places_of(config),
            timeline=timeline,
        )
        self._config = config
        self._adding = asyncio.Lock()
        self.trainer = KeptTrainer(
            machinery.make_trainer(config, model, run_dir, resume),
            lambda folder: machinery.make_trainer(config, model, run_dir, folder, is_restart=True),
            newest_checkpoint=lambda: _newest_checkpoint(run_dir / "checkpoints"),
            replay=replay,
            max_restarts=config.trainer.max_restarts,
            held=[self.engines.deadlines, self.engines.quorum.deadlines],
            timeline=timeline,
            num_ranks=config.trainer.num_ranks,
        )
        self._tried_again: int | None = None
        """The version whose update was tried again although nobody was dead."""

    async def open(self) -> TrainerReady:
        """Start engines and trainer side by side."""
        opened = await together_as_it_was("start", trainer=self.trainer.open, engines=self.engines.open)
        ready: TrainerReady = opened["trainer"]
        self.manifest = ready.manifest
        return ready

    async def join(self) -> None:
        """Bring engines and trainer together in a new weight group, unless all that are there are in one."""
        await self.trainer.mended()
        self.trainer.tell()  # restarts until here are no reason why what begins now may fail
        await self.engines.quorum.one_is_there()
        if not (self.trainer.apart or self.engines.seats.apart):
            return
        hosts = [host_of(seat.place) for seat in self.engines.seats.there() if isinstance(seat.place, str)]
        part, num_parts = 0, 1
        try:
            while part < num_parts:
                with waiting("the weight group", limit_s=self._timeout_s):
                    async with awake_timeout(self._timeout_s):
                        num_parts = await self._meet(hosts, part)
                part += 1
        except TimeoutError:
            late = ", ".join(self.engines.pending) or "the trainer"
            limit = f"weights.timeout_s = {self._timeout_s:g} s"
            raise WeightSyncError(f"engines and trainer did not meet within {limit}: {late} did not come") from None

    async def _meet(self, hosts: list[str], part: int) -> int:
        """Bring the trainer and this part of the engines, some of them on ``hosts``, together; the number of parts."""
        address, port = await self.trainer.meeting(hosts)
        group = self.engines.weight_group(
            transport=self.transport,
            address=self._config.weights.host or address,
            port=port,
            timeout_s=self._timeout_s / 2,  # who did not come, or hangs, is named before weights.timeout_s has passed
            part=part,
            bucket_bytes=self._config.weights.bucket_bytes,
        )
        await together_as_it_was(
            "join",
            patient={"trainer"},
            trainer=lambda: self.trainer.connect(group),
            engines=lambda: self.engines.connect(group),
        )
        return group.num_parts

    async def mend(self, version: int) -> bool:
        """After the update to ``version`` failed: take out whoever was the cause; whether to try again."""
        lost = await self.engines.weed()
        revived = await self.trainer.has_died()
        if revived:
            await self.engines.go_on_without(version)
            await self.trainer.mended()
            self.trainer.tell()
        again = not (lost or revived) and self._tried_again != version
        if again:
            self._tried_again, self.engines.seats.apart = version, True
        return lost or revived or again

    async def add(self, server: str | None = None) -> str:
        """Start another engine, or open the ``server`` at an address, in the background; its name.

        Raises:
            RefusedError: the machine has no room for it, the address is none, or the run starts no engines here.
        """
        if server is not None:
            if (problem := address_problem(server)) is not None:
                raise RefusedError(problem)
            if self._config.engine.kind == "simulated":
                raise RefusedError(f"engine.kind = 'simulated': the server at {server} has no place in a simulated run")
            return self.engines.seats.add(same_form(server)).engine.name
        if self._config.engine.kind == "server":
            raise RefusedError(
                "engine.kind = 'server': the engines of this run are servers; name the address of one more"
            )
        async with self._adding:
            num_engines = sum(isinstance(seat.place, int) for seat in self.engines.seats.all) + 1
            await asyncio.to_thread(preflight.room_for, self._config, num_engines)
            return self.engines.seats.add().engine.name

    def remove(self, name: str, *, force: bool) -> str:
        """Take an engine out, in the background; its name. Raises RefusedError; NotFoundError for an unknown name."""
        seats = self.engines.seats
        seat = seats.find(name)
        seats.remove(seat, force=force)
        return seat.engine.name

    async def close(self) -> None:
        """End every process."""
        async with asyncio.TaskGroup() as group:
            group.create_task(closed(self.trainer.close))
            group.create_task(closed(self.engines.close))


def _newest_checkpoint(checkpoints: Path) -> Path | None:
    """Where a trainer that is started again goes on; what is passed over is said. Blocking."""
    found = checkpoint.latest(checkpoints, verified=True)
    for reason in found.skipped.values():
        log.warning("a checkpoint is passed over", why=reason)
    return found.folder


async def closed(close: Callable[..., Awaitable[Any]], *arguments: None) -> None:
    """Close one part; what fails is logged, since raised it would stand in for what ended the run."""
    with failures_to(lambda error: log.error("a part did not close", exc_info=error), "a close"):
        await close(*arguments)
