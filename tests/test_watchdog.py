"""A run that stands still is noticed in every state, acted on where that helps, and ended with the cause where not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import prl
from prl.chain import Waiting
from prl.engines.simulated_stream import Script, StreamFault
from prl.errors import StallError
from prl.failure import running
from prl.log import captured
from prl.trainer.simulated import TrainerScript
from prl.waits import Waits, waiting
from prl.watchdog import FOLDER, Watchdog
from tests.test_why import Break, broken, call, drive, patient
from tests.virtual import in_virtual_time

__all__ = ["broken"]  # a fixture
STALLED = Script(streams=(StreamFault(kind="stall", token=3),))


def dumps(run_dir: Path) -> list[str]:
    """What was written about stalls, oldest first."""
    return [path.read_text() for path in sorted((run_dir / FOLDER).glob("*.txt"))]


# ---- a whole run -----------------------------------------------------------------------------------------------------

STALLS = {
    "the start": (TrainerScript(calls=(call("open"),)), "<- the trainer: start for 3"),
    "a step": (TrainerScript(calls=(call("train", 1),)), "the trainer: step 2 for 3"),
    "a checkpoint": (TrainerScript(calls=(call("save"),)), "checkpoint of step 2 <- the trainer: saves for 3"),
    "the end": (TrainerScript(calls=(call("export"),)), "saving <- the trainer: exports for 3"),
}


@pytest.mark.parametrize("state", STALLS)
def test_a_run_that_stands_still_ends_with_the_cause(state: str, tmp_path: Path, broken: Break) -> None:
    """Whatever the run is in, nothing moving for stall_timeout_s ends it with the chain and the file of all stacks."""
    trainer, says = STALLS[state]
    broken(trainer=trainer)

    @in_virtual_time
    async def main() -> None:
        with pytest.raises(StallError, match=r"run\.stall_timeout_s") as caught:
            await drive(prl.Pipeline(patient(), run_dir=tmp_path / "run"))
        (dump,) = dumps(tmp_path / "run")
        assert says in str(caught.value)
        assert str(tmp_path / "run" / FOLDER) in str(caught.value)
        assert says in dump
        assert "SimulatedTrainer" in dump, "the task that hangs, and where"
        assert asyncio.get_running_loop().time() < 60

    main()


def test_an_engine_that_owes_tokens_is_given_up_and_the_run_goes_on(tmp_path: Path, broken: Break) -> None:
    """A lost rollout does not block the batch for ever: its engine is replaced, its streams go on, the run is done."""
    broken(engine=STALLED)
    pipeline = prl.Pipeline(patient(), run_dir=tmp_path / "run")
    in_virtual_time(drive)(pipeline)
    assert pipeline.summary is not None
    assert (pipeline.summary.status, pipeline.summary.steps, pipeline.summary.engine_restarts) == ("done", 6, 2)
    (dump,) = dumps(tmp_path / "run")
    assert "no token" in dump
    assert '"gave up engine-0, engine-1"' in (tmp_path / "run" / "events.jsonl").read_text()


def test_an_engine_that_goes_on_owing_ends_the_run(tmp_path: Path, broken: Break) -> None:
    """Field notes A, a rollout that never returns: where the engine in its place owes as well, that is told."""
    broken(engine=STALLED, later=Script(streams=(StreamFault(kind="stall"),)))
    with pytest.raises(StallError, match=r"trainer waits for batch 1 <- group \d <- engine-\d: no token for 3"):
        in_virtual_time(drive)(prl.Pipeline(patient(), run_dir=tmp_path / "run"))
    assert len(dumps(tmp_path / "run")) == 2


# ---- what is a stall -------------------------------------------------------------------------------------------------


class Watched:
    """A run that only waits, its watchdog, and what that did."""

    def __init__(self, folder: Path, *, progress: Callable[[], object] = lambda: None) -> None:
        self.waits, self.lags = Waits(), list[float]()
        self.dog = Watchdog(
            self.waits, folder, stall_timeout_s=30, progress=progress, on_lag=self.lags.append, act=self._act
        )

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Any]:
        """Run the watchdog."""
        async with running(self.dog.run()):
            yield self

    def _act(self, _: Waiting) -> None:
        return None


@in_virtual_time
async def test_a_long_step_whose_rank_lives_is_no_stall(tmp_path: Path) -> None:
    """Signs of life every few seconds keep a wait of ten minutes alive; half a minute after the last it is a stall."""
    clock = asyncio.get_running_loop().time

    async def step() -> None:
        async with Watched(tmp_path)() as run:
            with run.waits.doing("step 1"), waiting("trainer rank 0", alive_at=lambda: min(clock(), 600.0)):
                await asyncio.sleep(1000)

    with pytest.raises(StallError, match="step 1 <- trainer rank 0 for 11 min"):
        await step()
    assert clock() == pytest.approx(630, abs=3)


@pytest.mark.parametrize(("limit_s", "ends_at"), [(None, 30), (200, 230)])
def test_a_wait_with_a_deadline_is_left_to_it(limit_s: float | None, ends_at: float, tmp_path: Path) -> None:
    """Who has a deadline is not ended before it; a deadline that did not come true is a stall, as is a wait without."""

    async def stall() -> None:
        async with Watched(tmp_path)() as run:
            with run.waits.doing("the step"), waiting("a part", limit_s=limit_s):
                await asyncio.sleep(1000)

    @in_virtual_time
    async def main() -> None:
        with pytest.raises(StallError, match="the step <- a part"):
            await stall()
        assert asyncio.get_running_loop().time() == pytest.approx(ends_at, abs=3)

    main()


@in_virtual_time
async def test_one_part_that_moves_keeps_the_others(tmp_path: Path) -> None:
    """A stall is when nothing moves: of two things that are waited for, one begins anew every 20 s."""
    async with Watched(tmp_path)() as run, asyncio.TaskGroup() as group:
        with run.waits.doing("the step"):

            async def silent() -> None:
                with waiting("silent"):
                    await asyncio.sleep(200)

            group.create_task(silent())
            for _ in range(10):
                with waiting("busy"):
                    await asyncio.sleep(20)
    assert dumps(tmp_path) == []


@in_virtual_time
async def test_counters_that_move_are_no_stall(tmp_path: Path) -> None:
    """Tokens that come, or slots that change, show that the run goes on whatever it waits for."""
    clock = asyncio.get_running_loop().time
    async with Watched(tmp_path, progress=lambda: clock() // 25)() as run:
        with run.waits.doing("the step"), waiting("a part"):
            await asyncio.sleep(300)
    assert dumps(tmp_path) == []


@in_virtual_time
async def test_a_caller_that_asks_for_nothing_is_no_stall(tmp_path: Path) -> None:
    """Between two steps the run belongs to its caller, however long."""
    async with Watched(tmp_path)() as run:
        with run.waits.doing("step 1"):
            await asyncio.sleep(1)
        await asyncio.sleep(1000)
    assert dumps(tmp_path) == []


@in_virtual_time
async def test_what_may_take_any_time_is_warned_of_once(tmp_path: Path) -> None:
    """Reading data has no deadline: the run says, once and with all stacks, that it waits for it, and goes on."""
    async with Watched(tmp_path)() as run:
        with captured() as _, run.waits.doing("reading data"), waiting("tokenizer and data", limit_s=float("inf")):
            await asyncio.sleep(500)
    (dump,) = dumps(tmp_path)
    assert "it takes long: reading data <- tokenizer and data for 3" in dump
