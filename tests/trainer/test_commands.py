from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from prl.errors import TrainerDeadError, TrainerError
from tests.trainer.cases import make_batch
from tests.trainer.played import played

pytestmark = pytest.mark.usefixtures("token")


async def test_a_step_that_does_not_end_names_its_deadline(tmp_path: Path) -> None:
    """Silence of a rank in a step ends with the key of the deadline, and the trainer takes no more commands."""
    async with played(lambda _: None, tmp_path, trainer={"step_timeout_s": 0.1}) as trainer:
        with pytest.raises(TrainerError, match=r"'train step 0' within trainer\.step_timeout_s = 0\.1 s"):
            await trainer.train(make_batch(0, 1))
        with pytest.raises(TrainerDeadError, match="was interrupted in 'train step 0'"):
            await trainer.score([1, 2])


async def test_an_interrupted_trainer_is_as_good_as_dead(tmp_path: Path) -> None:
    """Ranks that were left in the middle of a command are alive and of no use: ``failed`` says so at once."""
    async with played(lambda _: None, tmp_path) as trainer, asyncio.TaskGroup() as group:
        watch = group.create_task(trainer.failed())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await trainer.score([1, 2])
        assert await watch == "the trainer was interrupted in 'score'"


async def test_two_commands_at_once_are_refused(tmp_path: Path) -> None:
    """The second command does not reach the ranks; after a cancelled one only close is left."""
    async with played(lambda _: None, tmp_path) as trainer, asyncio.TaskGroup() as group:
        first = group.create_task(trainer.score([1, 2]))
        await asyncio.sleep(0)
        with pytest.raises(TrainerError, match=r"cannot save .*the trainer is in 'score'"):
            await trainer.save(tmp_path / "x", {})
        first.cancel()
