"""The simulated trainer."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from prl.errors import CheckpointError, TrainerError
from prl.simulation import CHECKPOINT, MANIFEST, CallFault, Meeting, learn, sequence_logprobs
from prl.trainer.simulated import SimulatedTrainer, TrainerScript
from prl.types import Batch, Sample, WeightGroup, WeightUpdate
from tests.virtual import in_virtual_time

GROUP = WeightGroup(transport="simulated", address="trainer", port=1, world_size=2, timeout_s=10)


def batch(step: int, weights: bytes = CHECKPOINT, *, shift: float = 0.0, tokens: int = 6) -> Batch:
    """One sample whose last tokens were sampled by ``weights``, with log-probabilities moved by ``shift``."""
    token_ids = [step + 10 * i for i in range(tokens)]
    logprobs = [0.0, *(logprob + shift for logprob in sequence_logprobs(weights, token_ids))]
    mask = [0, 0] + [1] * (tokens - 2)
    sample = Sample(
        token_ids=token_ids,
        loss_mask=mask,
        logprobs=logprobs,
        versions=[-1 if not m else step for m in mask],
        advantages=[0.5 * m for m in mask],
    )
    return Batch(step=step, samples=[sample], plan=[[[0]]], num_sequences=1)


def scripted(*faults: CallFault, **fields: Any) -> SimulatedTrainer:
    """A trainer with these faults."""
    return SimulatedTrainer(step_s=2.0, script=TrainerScript(calls=faults, **fields))


def now() -> float:
    """Virtual seconds."""
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_step_takes_its_time_and_grows_the_version() -> None:
    """A step lasts ``step_s + per_token_s * tokens`` and makes the next version from this batch."""
    trainer = SimulatedTrainer(step_s=2.0, per_token_s=0.5)
    ready = await trainer.open()
    assert (ready.step, ready.state, ready.manifest) == (0, {}, MANIFEST)
    report = await trainer.train(batch(0))
    assert now() == 4
    assert (report.step, report.tokens_trained, report.train_s) == (0, 4, 4)
    assert (trainer.step, trainer.weights) == (1, learn(CHECKPOINT, batch(0).samples))
    assert trainer.trained == [(0, batch(0))]
    assert trainer.statistics() == {"busy_s": 4.0, "steps": 1.0, "skipped": 0.0, "tokens_trained": 4.0}


@in_virtual_time
async def test_batch_of_another_step_is_refused() -> None:
    """The trainer trains each step once and in order."""
    trainer = SimulatedTrainer()
    await trainer.open()
    with pytest.raises(TrainerError, match="the batch is for step 1, the trainer is at step 0"):
        await trainer.train(batch(1))
    await trainer.train(batch(0))
    with pytest.raises(TrainerError, match="the batch is for step 0, the trainer is at step 1"):
        await trainer.train(batch(0))


@in_virtual_time
async def test_one_command_at_a_time() -> None:
    """A command during another is refused and does not disturb it."""
    trainer = SimulatedTrainer()
    await trainer.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(trainer.train(batch(0)))
        await asyncio.sleep(0)
        with pytest.raises(TrainerError, match="asked to score while it was busy with train"):
            await trainer.score([1, 2])
    assert trainer.step == 1


@in_virtual_time
async def test_publish_meets_the_engines() -> None:
    """The weight group receives the current weights under the version's number, after ``publish_s``."""
    trainer = SimulatedTrainer(publish_s=3.0)
    await trainer.open()
    async with asyncio.TaskGroup() as group:
        engine = group.create_task(Meeting.join(GROUP, 1))
        group.create_task(trainer.connect(GROUP))
    await trainer.train(batch(0))
    started = now()
    async with asyncio.TaskGroup() as group:
        received = group.create_task(engine.result().receive())
        group.create_task(trainer.publish(WeightUpdate(version=1, transport="simulated", manifest=MANIFEST)))
    assert received.result() == (1, trainer.weights)
    assert now() == started + 3


@in_virtual_time
async def test_version_it_does_not_hold_is_not_published() -> None:
    """Another number than the current version is an error."""
    trainer = SimulatedTrainer()
    await trainer.open()
    with pytest.raises(TrainerError, match="version 1 was to be published, the trainer holds 0"):
        await trainer.publish(WeightUpdate(version=1, transport="simulated", manifest=MANIFEST))


@in_virtual_time
async def test_resumed_trainer_goes_on_exactly(tmp_path: Path) -> None:
    """Three steps, save, resume, three steps give the weights of six, and the controller's state comes back."""
    straight = SimulatedTrainer()
    await straight.open()
    for step in range(6):
        await straight.train(batch(step))
    first = SimulatedTrainer()
    await first.open()
    for step in range(3):
        await first.train(batch(step))
    await first.save(tmp_path / "step-3", {"cursor": 17})
    second = SimulatedTrainer(resume_from=tmp_path / "step-3")
    ready = await second.open()
    assert (ready.step, ready.state) == (3, {"cursor": 17})
    for step in range(3, 6):
        await second.train(batch(step))
    assert second.weights == straight.weights
    assert not list((tmp_path / "step-3").glob("*.draft"))


@pytest.mark.parametrize("content", [None, b"", b"\x81\xa4step\x03"])
@in_virtual_time
async def test_folder_without_a_checkpoint_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A missing or damaged file names its folder."""
    if content is not None:
        (tmp_path / "simulated-trainer.msgpack").write_bytes(content)
    with pytest.raises(CheckpointError, match="holds no checkpoint of a simulated trainer"):
        await SimulatedTrainer(resume_from=tmp_path).open()


@in_virtual_time
async def test_skipped_step_keeps_the_weights_and_grows_the_version() -> None:
    """A non-finite gradient leaves the weights, and step and version stay together."""
    trainer = scripted(CallFault(call="train", kind="skip", nth=1))
    await trainer.open()
    await trainer.train(batch(0))
    before = trainer.weights
    report = await trainer.train(batch(1))
    assert (report.skipped, trainer.weights, trainer.step) == (True, before, 2)
    assert math.isnan(report.grad_norm)
    assert not (await trainer.train(batch(2))).skipped


@in_virtual_time
async def test_a_nudge_makes_a_version_of_other_weights() -> None:
    """The scores before and after differ, and rescored one by one they are those of ``score``."""
    trainer = SimulatedTrainer()
    await trainer.open()
    before = await trainer.rescore([[1, 2, 3], [4, 5]], temperature=1.0)
    assert before == [await trainer.score([1, 2, 3]), await trainer.score([4, 5])]
    await trainer.nudge(["anything"], 0.1)
    assert trainer.step == 1
    assert await trainer.rescore([[1, 2, 3]], temperature=1.0) != before[:1]


@in_virtual_time
async def test_death_in_a_step_names_itself() -> None:
    """A trainer that dies in its second step raises there, tells ``failed``, and refuses what comes after."""
    trainer = scripted(CallFault(call="train", kind="die", nth=1))
    await trainer.open()
    await trainer.train(batch(0))
    with pytest.raises(TrainerError, match="died in train, as scripted"):
        await trainer.train(batch(1))
    assert await trainer.failed() == "the simulated trainer died in train, as scripted"
    with pytest.raises(TrainerError, match="died in train"):
        await trainer.score([1, 2])


@in_virtual_time
async def test_death_at_a_time_interrupts_the_step() -> None:
    """A step that is under way when the trainer dies ends then, not at its end."""
    trainer = scripted(die_at_s=0.5)
    await trainer.open()
    with pytest.raises(TrainerError, match=r"died 0\.5 s after its start"):
        await trainer.train(batch(0))
    assert now() == 0.5
    assert trainer.step == 0


@in_virtual_time
async def test_hanging_command_ends_with_its_callers_deadline() -> None:
    """A command that hangs can be given up, and the trainer takes the next one."""
    trainer = scripted(CallFault(call="train", kind="hang"))
    await trainer.open()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(600):
            await trainer.train(batch(0))
    assert (await trainer.train(batch(0))).step == 0


@in_virtual_time
async def test_close_is_idempotent_and_unsets_the_scripted_death() -> None:
    """After close nothing is due any more."""
    trainer = scripted(die_at_s=50.0)
    await trainer.open()
    await trainer.close()
    await trainer.close()
    await asyncio.sleep(100)
    assert trainer._death is None
