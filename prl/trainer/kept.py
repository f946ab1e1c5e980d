"""A trainer that is started again when it dies: from the newest checkpoint, and the steps after it once more.

Invariants:

- Only death is mended: a rank that is gone or hangs. What a rank reports of itself (a bug, no memory) would come back.
- A trainer that was started again has done exactly the steps that the one before had done, on the same batches, before
  it is asked for anything; it is in no weight group then (``apart``) until it is connected again.
- It is started again at most ``max_restarts`` times in a run, one start at a time, whoever noticed the death first: a
  command, or the watch. A start that fails is followed by the next. The death that is one too many is the error that
  everybody sees.
- A start takes minutes, so nothing that has a shorter deadline waits for one: while the trainer is dead, the commands
  of a weight update fail at once, and only those that nobody cuts short (``train``, ``save``, ``export``, ``mended``,
  the watch) start another. One that is cut short all the same leaves the dead one in place, for the next of these.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from prl.deadlines import Deadlines
from prl.errors import TrainerDeadError, TrainerError, WeightSyncError
from prl.failure import raise_as_it_was
from prl.log import get_logger
from prl.timeline import State, Timeline
from prl.trainer.base import Trainer, TrainerReady, TrainReport
from prl.types import Batch, WeightGroup, WeightUpdate
from prl.waits import Wait, current, waiting

NOTICE_S = 3.0
"""How long after a failed weight update the death of a rank may take to be noticed."""
TRAINER_LANES = "trainer rank"
"""How the names of the ranks' lanes begin."""
T = TypeVar("T")
log = get_logger(__name__)


class KeptTrainer:
    """See the module; the protocol is ``base.Trainer``'s.

    Args:
        first: the trainer that a run begins with, not opened.
        again: makes another, not opened, that resumes from a checkpoint or, with None, starts fresh.
        newest_checkpoint: the newest complete one at the time of a restart. Blocking.
        replay: trains a trainer that holds the weights after so many steps on all steps done since.
        max_restarts: in one run.
        held: deadlines that stand still while one is started again.
        timeline: shows what the ranks do.
        num_ranks: how many there are.
    """

    def __init__(
        self,
        first: Trainer,
        again: Callable[[Path | None], Trainer],
        *,
        newest_checkpoint: Callable[[], Path | None],
        replay: Callable[[Trainer, int], Awaitable[None]],
        max_restarts: int,
        held: Sequence[Deadlines] = (),
        timeline: Timeline | None = None,
        num_ranks: int = 1,
    ) -> None:
        self._timeline = timeline or Timeline()
        self._lanes = [f"{TRAINER_LANES} {rank}" for rank in range(num_ranks)]
        self._trainer, self._again = first, again
        self._newest_checkpoint, self._replay = newest_checkpoint, replay
        self._max_restarts, self._held = max_restarts, held
        self.num_restarts = self._num_told = 0
        self.apart = True
        """Whether it has to be connected (again) before it can publish."""
        self._dead: TrainerDeadError | None = None
        """What the present one died of, until another is in its place."""
        self._busy = asyncio.Lock()
        self._under_way: Wait | None = None
        """What the lock is held for."""
        self._done = {"busy_s": 0.0, "steps": 0.0, "skipped": 0.0, "tokens_trained": 0.0}
        """What earlier trainers did, the steps that were done again included."""

    async def open(self) -> TrainerReady:
        """Start the first one."""
        with self._during("starts"):
            return await self._trainer.open()

    async def meeting(self, hosts: list[str]) -> tuple[str, int]:
        """Where a weight group can meet. A death here is not mended here: an update is under way."""
        return await self._once(lambda trainer: trainer.meeting(hosts))

    async def connect(self, group: WeightGroup) -> None:
        """Open the sending side of the weight group. A death here is not mended here: the engines have to join too."""
        with self._during("waiting", "the weight group"):
            await self._once(lambda trainer: trainer.connect(group))
        self.apart = False

    async def train(self, batch: Batch) -> TrainReport:
        """One optimiser step on ``batch``."""

        async def train(trainer: Trainer) -> TrainReport:
            report = await trainer.train(batch)
            for lane, phases in zip(self._lanes, report.phases, strict=False):  # a trainer that tells none moves as one
                parts = ((phase.state, phase.seconds, phase.why) for phase in phases)
                self._timeline.divide(lane, parts, "the answers of all ranks")
            return report

        return await self._kept(train, lambda: self._during("training", step=batch.step + 1))

    async def publish(self, update: WeightUpdate) -> None:
        """Send the current weights. A death here is not mended here: the engines have to join again."""
        with self._during("publishing", version=update.version):
            await self._once(lambda trainer: trainer.publish(update))

    async def score(self, token_ids: list[int]) -> list[float]:
        """Log-probability of each token after the first. A death here is not mended here: an update is under way."""
        with self._during("publishing", "the proof on a few tokens"):
            return await self._once(lambda trainer: trainer.score(token_ids))

    async def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write a complete checkpoint."""
        await self._kept(lambda trainer: trainer.save(folder, state), lambda: self._during("saving", "a checkpoint"))

    async def export(self, folder: Path) -> None:
        """Write the weights for others."""
        await self._kept(lambda trainer: trainer.export(folder), lambda: self._during("saving", "the export"))

    async def failed(self) -> str:
        """Wait for a death that is not mended, and return why; others are mended here, unless a command was first."""
        while True:
            watched = self._trainer
            self._note(watched, await watched.failed())
            try:
                await self.mended()
            except TrainerDeadError as death:
                return str(death)

    async def has_died(self) -> bool:
        """After a weight update that failed: whether it may be done again because of a death, ``mended`` or not yet.

        Each restart is a reason once, so what fails for another reason is not tried for ever.
        """
        if self._dead is None and self.num_restarts == self._num_told:
            watched = self._trainer
            try:
                async with asyncio.timeout(NOTICE_S):
                    self._note(watched, await watched.failed())
            except TimeoutError:
                return False
        return True

    async def mended(self) -> None:
        """Wait until no restart is under way and none is due. Raises the death that was one too many."""
        async with self._alone():
            await self._replace_dead()

    def tell(self) -> None:
        """What restarts there were until now is no reason any more to do an update again."""
        self._num_told = self.num_restarts

    def statistics(self) -> dict[str, float]:
        """Busy seconds and counters, restarts included."""
        now = self._trainer.statistics()
        total = {name: before + now.get(name, 0.0) for name, before in self._done.items()}
        return {**now, **total, "restarts": float(self.num_restarts)}

    async def close(self) -> None:
        """End every process of the present one; the others are gone."""
        for lane in self._lanes:
            self._timeline.leave(lane)
        await self._trainer.close()

    @contextmanager
    def _during(
        self, state: State, why: str | None = None, *, step: int | None = None, version: int | None = None
    ) -> Iterator[None]:
        """All ranks do this: every command is one of all."""
        with ExitStack() as lanes:
            for lane in self._lanes:
                lanes.enter_context(self._timeline.during(lane, state, why, step=step, version=version))
            yield

    async def _once(self, call: Callable[[Trainer], Awaitable[T]]) -> T:
        """Ask the present one, dead or alive."""
        if self._dead is not None:  # the lock may be a restart's
            raise_as_it_was(self._dead)
        async with self._alone():
            trainer = self._trainer
            try:
                return await call(trainer)
            except (TrainerDeadError, WeightSyncError) as error:
                death = error if isinstance(error, TrainerDeadError) else error.__cause__
                if isinstance(death, TrainerDeadError):
                    self._note(trainer, death)
                raise

    async def _kept(
        self, call: Callable[[Trainer], Awaitable[T]], during: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> T:
        """Ask until one lives long enough to answer; the lanes say ``during`` while one is asked."""
        async with self._alone():
            while True:
                await self._replace_dead()
                try:
                    with during():
                        return await call(self._trainer)
                except TrainerDeadError as death:
                    self._dead = death

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """One thing at a time; who waits for another can say for what."""
        with waiting("the trainer", "is busy for another", on=lambda: [self._under_way]):
            await self._busy.acquire()
        self._under_way = current()
        try:
            yield
        finally:
            self._under_way = None
            self._busy.release()

    def _note(self, trainer: Trainer, death: TrainerDeadError | str) -> None:
        """This one is dead; nobody need know if another is in its place."""
        if trainer is self._trainer and self._dead is None:
            self._dead = TrainerDeadError(death) if isinstance(death, str) else death

    async def _replace_dead(self) -> None:
        """Put a trainer that has done the same steps in the place of a dead one, if the present one is."""
        if self._dead is None:
            return
        for deadlines in self._held:
            deadlines.hold(self)
        try:
            await self._replace()
        finally:
            for deadlines in self._held:
                deadlines.go_on(self)

    async def _replace(self) -> None:
        while self._dead is not None:
            if self.num_restarts == self._max_restarts:
                raise_as_it_was(self._dead)
            self.num_restarts += 1
            restart, why = self.num_restarts, str(self._dead)
            log.warning("the trainer is started again", restart=restart, of=self._max_restarts, why=why)
            self.apart = True
            for lane in self._lanes:
                self._timeline.enter(lane, "gone", why)
            with waiting("the trainer", f"is started again (restart {restart} of {self._max_restarts})"):
                await self._trainer.close()
                checkpoint = await asyncio.to_thread(self._newest_checkpoint)
                try:
                    another = await self._started(checkpoint)
                except TrainerDeadError as death:
                    self._dead = death
                    continue
            self._count(self._trainer)
            self._trainer, self._dead = another, None
            log.warning("the trainer goes on", restart=restart, checkpoint=str(checkpoint or "none"))

    async def _started(self, checkpoint: Path | None) -> Trainer:
        """Another trainer, as far as the run is; or nothing is left of it."""
        trainer = self._again(checkpoint)
        try:
            with self._during("starts"):
                ready = await _opened(trainer)
            with self._during("training", "steps since the checkpoint, again"):
                await self._replay(trainer, ready.step)
        except BaseException:
            self._count(trainer)
            await trainer.close()
            raise
        return trainer

    def _count(self, trainer: Trainer) -> None:
        """Keep what one did that is gone."""
        for name, value in trainer.statistics().items():
            if name in self._done:
                self._done[name] += value


async def _opened(trainer: Trainer) -> TrainerReady:
    """Start one where another has run. What keeps it from starting may pass, such as memory that is not free yet."""
    try:
        return await trainer.open()
    except TrainerError as error:
        raise TrainerDeadError(f"the trainer did not start again: {error}") from error
