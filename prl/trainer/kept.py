"""A trainer that is started again when it dies: from the newest checkpoint, and the steps after it once more.

Invariants:

- Only death is mended: a rank that is gone or hangs. What a rank reports of itself (a bug, no memory) would come back.
- A trainer that was started again has done exactly the steps that the one before had done, on the same batches, before
  it is asked for anything; it is in no weight group then (``apart``) until it is connected again.
- It is started again at most ``max_restarts`` times in a run, one start at a time, whoever noticed the death first: a
  command, or the watch. The death that is one too many is the error that everybody sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from prl.errors import TrainerDeadError
from prl.log import get_logger
from prl.trainer.base import Trainer, TrainerReady, TrainReport
from prl.types import Batch, WeightGroup, WeightUpdate

NOTICE_S = 3.0
"""How long after a failed weight update the death of a rank may take to be noticed."""
T = TypeVar("T")
log = get_logger(__name__)


class KeptTrainer:
    """See the module; the protocol is ``base.Trainer``'s.

    Args:
        make: makes a trainer, not opened, that resumes from a checkpoint or, with None, starts fresh.
        resume: the checkpoint that the first one resumes from.
        newest_checkpoint: the newest complete one at the time of a restart. Blocking.
        replay: trains a trainer that holds the weights after so many steps on all steps done since.
        max_restarts: in one run.
    """

    def __init__(
        self,
        make: Callable[[Path | None], Trainer],
        resume: Path | None,
        *,
        newest_checkpoint: Callable[[], Path | None],
        replay: Callable[[Trainer, int], Awaitable[None]],
        max_restarts: int,
    ) -> None:
        self._make, self._newest_checkpoint, self._replay = make, newest_checkpoint, replay
        self._trainer = make(resume)
        self._max_restarts = max_restarts
        self.num_restarts = self._num_told = 0
        self.apart = True
        """Whether it has to be connected (again) before it can publish."""
        self._busy = asyncio.Lock()
        self._done = {"busy_s": 0.0, "steps": 0.0, "skipped": 0.0, "tokens_trained": 0.0}
        """What earlier trainers did, the steps that were done again included."""

    async def open(self) -> TrainerReady:
        """Start the first one."""
        return await self._trainer.open()

    async def connect(self, group: WeightGroup) -> None:
        """Open the sending side of the weight group. A death here is not mended here: the engines have to join too."""
        async with self._busy:
            await self._trainer.connect(group)
            self.apart = False

    async def train(self, batch: Batch) -> TrainReport:
        """One optimiser step on ``batch``."""
        return await self._kept(lambda trainer: trainer.train(batch))

    async def publish(self, update: WeightUpdate) -> None:
        """Send the current weights. A death here is not mended here: the engines have to join again."""
        async with self._busy:
            await self._trainer.publish(update)

    async def score(self, token_ids: list[int]) -> list[float]:
        """Log-probability of each token after the first."""
        return await self._kept(lambda trainer: trainer.score(token_ids))

    async def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write a complete checkpoint."""
        await self._kept(lambda trainer: trainer.save(folder, state))

    async def export(self, folder: Path) -> None:
        """Write the weights for others."""
        await self._kept(lambda trainer: trainer.export(folder))

    async def failed(self) -> str:
        """Wait for a death that is not mended, and return why; others are mended here, unless a command was first."""
        while True:
            watched = self._trainer
            why = await watched.failed()
            if not await self._mended(watched, why):
                return why

    async def revive_if_dead(self) -> bool:
        """After a weight update that failed: whether to do it again, since the trainer died and was started again.

        Each restart is a reason once, so what fails for another reason is not tried for ever.
        """
        if self.num_restarts == self._num_told:
            watched = self._trainer
            try:
                async with asyncio.timeout(NOTICE_S):
                    why = await watched.failed()
            except TimeoutError:
                return False
            if not await self._mended(watched, why):
                return False
        self._num_told = self.num_restarts
        return True

    def statistics(self) -> dict[str, float]:
        """Busy seconds and counters, restarts included."""
        now = self._trainer.statistics()
        total = {name: before + now.get(name, 0.0) for name, before in self._done.items()}
        return {**now, **total, "restarts": float(self.num_restarts)}

    async def close(self) -> None:
        """End every process of the present one; the others are gone."""
        await self._trainer.close()

    async def _kept(self, call: Callable[[Trainer], Awaitable[T]]) -> T:
        async with self._busy:
            while True:
                try:
                    return await call(self._trainer)
                except TrainerDeadError as error:
                    if self.num_restarts == self._max_restarts:
                        raise
                    why = str(error)
                await self._start_again(why)

    async def _mended(self, dead: Trainer, why: str) -> bool:
        """Start again, unless somebody did; False where that would be once too often."""
        async with self._busy:
            if dead is self._trainer:
                if self.num_restarts == self._max_restarts:
                    return False
                await self._start_again(why)
        return True

    async def _start_again(self, why: str) -> None:
        """Replace the dead trainer by one that has done the same steps."""
        self.num_restarts += 1
        log.warning("the trainer is started again", restart=self.num_restarts, of=self._max_restarts, why=why)
        self.apart = True
        await self._trainer.close()
        for name, value in self._trainer.statistics().items():
            if name in self._done:
                self._done[name] += value
        checkpoint = await asyncio.to_thread(self._newest_checkpoint)
        self._trainer = self._make(checkpoint)
        ready = await self._trainer.open()
        await self._replay(self._trainer, ready.step)
        log.warning("the trainer goes on", restart=self.num_restarts, checkpoint=str(checkpoint or "none"))
