"""Who waits for whom, in every state of a run: simulated parts that do not go on, in virtual time."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import prl
from prl import machinery
from prl.config import Config, EngineConfig, EvalConfig, PipelineConfig, RewardConfig, RunConfig
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script, StreamFault
from prl.run_folder import RunFolder
from prl.simulation import CallFault
from prl.trainer.simulated import SimulatedTrainer, TrainerScript
from tests.test_pipeline import simulated
from tests.virtual import in_virtual_time

NEVER = 1e6
Break = Callable[..., None]


@prl.reward("test-hangs")
async def hangs(completion: prl.Completion, prompt: prl.Prompt) -> float:
    """No verdict on the third prompt, for a while."""
    if prompt.id % 8 == 2:
        await asyncio.sleep(50)
    return float(len(completion.token_ids))


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Runs whose engines (those that are started first) and trainer follow these scripts."""

    def break_(engine: Script | None = None, trainer: TrainerScript | None = None, later: Script | None = None) -> None:
        made: set[int] = set()

        def make_engine(*_: Any, index: int, **__: Any) -> SimulatedEngine:
            script = (later if index in made else engine) or Script()
            made.add(index)
            return SimulatedEngine(index=index, max_num_seqs=8, script=script, seed=0)

        def make_trainer(*arguments: Any, **_: bool) -> SimulatedTrainer:
            return SimulatedTrainer(script=trainer, resume_from=arguments[-1])

        monkeypatch.setattr(machinery, "make_engine", make_engine)
        monkeypatch.setattr(machinery, "make_trainer", make_trainer)

    return break_


def patient(**changes: Any) -> Config:
    """A run whose other deadlines are far away."""
    config = simulated(
        eval=EvalConfig(num_samples=0),
        engine=EngineConfig(kind="simulated", count=2, max_num_seqs=8, max_model_len=256, token_timeout_s=NEVER),
        run=RunConfig(num_steps=6, checkpoint_every=2, stall_timeout_s=30.0),
    )
    return msgspec.structs.replace(config, **changes)


async def drive(pipeline: prl.Pipeline) -> None:
    """A run from its start to its end."""
    async with pipeline:
        while pipeline.step_number < pipeline.config.run.num_steps:
            await pipeline.step()


async def chain_of(folder: Path, config: Config, *, until: str, seconds: float = 12.0) -> str:
    """What the run says ``seconds`` after its stage or chain held ``until``."""
    pipeline = prl.Pipeline(config, run_dir=folder)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(drive(pipeline))
        while until not in pipeline.why().chain:
            await asyncio.sleep(0.05)
            assert not task.done(), "the run has passed it"
        await asyncio.sleep(seconds)
        chain = pipeline.why().chain
        task.cancel()
    return chain


def call(name: str, nth: int = 0) -> CallFault:
    """The ``nth`` call of this name, from 0, never returns."""
    return CallFault(call=name, nth=nth, kind="hang")  # type: ignore[arg-type]


HANGING = [RewardConfig(name="test-hangs", timeout_s=60)]
CHAINS = {
    "an engine that starts": (
        {"engine": Script(open_s=100)},
        {},
        "starting 2 simulated engines",
        r"starting 2 simulated engines \(as configured\) and 1 trainer rank <- the engines: start <- engine-0: starts",
    ),
    "a trainer that starts": (
        {"trainer": TrainerScript(open_s=100)},
        {},
        "the trainer: start",
        "and 1 trainer rank <-",
    ),
    "a stream": (
        {"engine": Script(streams=(StreamFault(kind="stall", request=4, token=3),))},
        {},
        "no token for 8",
        r"trainer waits for batch \d <- group \d <- engine-\d: no token",
    ),
    "a round of streams": (
        {"engine": Script(streams=(StreamFault(kind="stall", request=4, token=3),))},
        {"pipeline": PipelineConfig(mode="conventional", groups_per_step=2, group_size=2, steps_per_round=2)},
        "no token for 8",
        r"trainer waits for batch \d <- group \d <- engine-\d: no token",
    ),
    "a reward": (
        {},
        {"rewards": HANGING},
        "reward",
        r"trainer waits for batch 2 <- group 2 <- reward test-hangs: member \d",
    ),
    "a step": ({"trainer": TrainerScript(calls=(call("train", 1),))}, {}, "the trainer: step 2", "the trainer: step 2"),
    "an update": (
        {"engine": Script(calls=(call("load", 1),))},
        {},
        "weight update to version 1",
        r"weight update to version 1 <- the engines: transfer <- engine-0: load of version 1",
    ),
    "the trainer in an update": (
        {"trainer": TrainerScript(calls=(call("publish", 1),))},
        {},
        "weight update to version 1",
        r"weight update to version 1 <- .*load of version 1",
    ),
    "an engine that is asked for the proof": (
        {"engine": Script(calls=(call("score", 1),))},
        {},
        "verification",
        "weight update to version 2: the proof of the version before <- .*proof of version 1 <- .* <- engine-0",
    ),
    "an evaluation": (
        {},
        {"rewards": HANGING, "eval": EvalConfig(num_samples=4)},
        "held-out prompt",
        "evaluating 4 held-out prompts <- evaluation of version 0 <- reward test-hangs: held-out prompt -?\\d+",
    ),
    "a checkpoint": (
        {"trainer": TrainerScript(calls=(call("save"),))},
        {},
        "checkpoint of step 2",
        "checkpoint of step 2 <- the trainer: saves",
    ),
    "the export": (
        {"trainer": TrainerScript(calls=(call("export"),))},
        {},
        "exports",
        "saving <- the trainer: exports",
    ),
}


@pytest.mark.parametrize("state", CHAINS)
def test_the_chain_names_what_has_to_move(state: str, tmp_path: Path, broken: Break) -> None:
    """In every state of a run the chain ends at what does not go on, and says for how long."""
    scripts, changes, until, expected = CHAINS[state]
    broken(**scripts)

    @in_virtual_time
    async def main() -> None:
        chain = await chain_of(tmp_path / "run", patient(**changes), until=until)
        assert pytest.approx(float(chain.rpartition(" for ")[2].split()[0]), abs=9) == 12, chain
        assert re.search(expected, chain), chain

    main()


@in_virtual_time
async def test_a_caller_between_two_steps_is_what_the_run_waits_for(tmp_path: Path) -> None:
    """Nobody is asked for anything then, and that is said; so it is when the run has been left."""
    async with prl.Pipeline(patient(), run_dir=tmp_path / "run") as pipeline:
        await pipeline.step()
        await asyncio.sleep(12)
        assert pipeline.why().chain == "the caller: has asked for no step for 12 s"
        loops = {loop.who for loop in pipeline.why().loops}
        assert {"admit", "rejoin", "engine watch", "trainer watch"} <= loops
    assert pipeline.why().chain.startswith("the caller")
    assert pipeline.why().loops == []


@in_virtual_time
async def test_a_disk_that_is_full_is_what_the_run_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field notes G: while the disk takes no writes, the chain ends there, and it is no stall."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with prl.Pipeline(patient(), run_dir=tmp_path / "run") as pipeline:
        await pipeline.step()
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "write_metrics", full)
            step = asyncio.ensure_future(pipeline.step())
            await asyncio.sleep(100)
            says = r"^the disk: metrics.jsonl cannot be written to .*: No space left on device for (9\d|100) s$"
            assert re.match(says, pipeline.why().chain)
        await step


@in_virtual_time
async def test_an_engine_that_is_started_again_is_told(tmp_path: Path, broken: Break) -> None:
    """With its only engine dead, the run says who starts it again and for how long."""
    broken(engine=Script(die_at_s=3.0), later=Script(open_s=60))
    config = patient(engine=EngineConfig(kind="simulated", count=1, max_num_seqs=8, max_model_len=256))
    chain = await chain_of(tmp_path / "run", config, until="engine-0: starts")
    assert re.search(r"<- the engines: wait for an engine to .* again <- engine-0: starts for", chain)
