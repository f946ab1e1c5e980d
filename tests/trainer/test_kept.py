"""Trainers that die and are started again, under the whole pipeline in virtual time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import prl
from prl import journal, machinery, virtual_time
from prl.config import Config, PipelineConfig, RunConfig, TrainerConfig
from prl.engines.base import Decoding
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script
from prl.errors import TrainerDeadError, TrainerError, WeightSyncError
from prl.fleet import Fleet
from prl.simulation import CallFault
from prl.timeline import Timeline
from prl.trainer.base import Phase, Trainer, TrainReport
from prl.trainer.kept import KeptTrainer
from prl.trainer.simulated import SimulatedTrainer, TrainerScript
from prl.types import Batch, WeightGroup
from tests.test_pipeline import lines, simulated, take_steps
from tests.virtual import in_virtual_time

NUM_STEPS = 8
SLOW = TrainerScript(open_s=600.0)
"""A start that takes longer than any deadline of a weight update or a rollout."""


def config_of(max_lag: int, checkpoint_every: int = 3, max_restarts: int = 100) -> Config:
    """A short seeded run without evaluations."""
    config = simulated(
        run=RunConfig(num_steps=NUM_STEPS, checkpoint_every=checkpoint_every),
        pipeline=PipelineConfig(max_lag=max_lag, groups_per_step=2, group_size=2),
        trainer=TrainerConfig(kind="simulated", max_restarts=max_restarts),
    )
    sampling = msgspec.structs.replace(config.sampling, seeded=True)
    return msgspec.structs.replace(config, eval=msgspec.structs.replace(config.eval, num_samples=0), sampling=sampling)


class PunctualEngine(SimulatedEngine):
    """Waits for the others of a weight group no longer than the group says, as real ones do."""

    def __init__(self, index: int, base_s: float = 0.01) -> None:
        super().__init__(index=index, max_num_seqs=8, script=Script(base_s=base_s), seed=0)

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """Join, or be late."""
        try:
            async with asyncio.timeout(group.timeout_s):
                await super().connect(group, rank_offset)
        except TimeoutError:
            raise WeightSyncError(f"{self.name}: the weight group did not come together") from None


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> list[TrainerScript]:
    """What happens to each trainer that is made, in turn; nothing to those after them."""
    left: list[TrainerScript] = []

    def make(_: Config, __: str, ___: Path, resume: Path | None, **____: bool) -> SimulatedTrainer:
        return SimulatedTrainer(publish_s=0.3, resume_from=resume, script=left.pop(0) if left else TrainerScript())

    monkeypatch.setattr(machinery, "make_trainer", make)
    monkeypatch.setattr(machinery, "make_engines", lambda *_: [PunctualEngine(index) for index in range(2)])
    return left


async def whole(run: Path, config: Config) -> bytes:
    """Run to the end; the weights it ended with."""
    async with prl.Pipeline(config, run_dir=run) as pipeline:
        await take_steps(pipeline, NUM_STEPS)
    return (run / "export" / "simulated-weights.txt").read_bytes()


def deaths(seed: int) -> list[TrainerScript]:
    """Trainers that die at random times, between and in the middle of whatever they do."""
    random = Random(seed)
    return [TrainerScript(die_at_s=random.uniform(0.5, 4.0)) for _ in range(random.randrange(1, 4))]


@pytest.mark.parametrize("seed", range(8))
def test_a_run_whose_trainer_dies_learns_the_same(tmp_path: Path, scripts: list[TrainerScript], seed: int) -> None:
    """Dead at any moment, it is started again and the run ends with the weights of an undisturbed one."""
    config = config_of(max_lag=0, checkpoint_every=seed % 4)
    undisturbed = virtual_time.run(whole(tmp_path / "undisturbed", config))
    scripts += deaths(seed)
    assert virtual_time.run(whole(tmp_path / "disturbed", config)) == undisturbed
    assert [line["step"] for line in lines(tmp_path / "disturbed" / "metrics.jsonl")] == list(range(1, NUM_STEPS + 1))
    accounts = journal.read(tmp_path / "disturbed" / "journal").ledger.accounts()
    assert (accounts.lost, accounts.trained_twice, accounts.trained) == ([], [], 2 * NUM_STEPS)
    events = [json.loads(line) for line in (tmp_path / "disturbed" / "events.jsonl").read_bytes().splitlines()]
    assert any(event["event"] == "the trainer is started again" for event in events)


@pytest.mark.parametrize("seed", range(4))
def test_the_lag_bound_holds_over_restarts(tmp_path: Path, scripts: list[TrainerScript], seed: int) -> None:
    """Engines go on while the trainer is started again, and no token gets older than the bound."""
    scripts += deaths(100 + seed)
    virtual_time.run(whole(tmp_path / "run", config_of(max_lag=2)))
    assert max(line["lag_max"] for line in lines(tmp_path / "run" / "metrics.jsonl")) <= 2


def test_one_death_too_many_ends_the_run(tmp_path: Path, scripts: list[TrainerScript]) -> None:
    """After ``trainer.max_restarts`` the next death is the run's failure, as it was."""
    scripts += [TrainerScript(die_at_s=3.0)] * 3
    with pytest.raises(TrainerError, match="died"):
        virtual_time.run(whole(tmp_path / "run", config_of(max_lag=1, max_restarts=2)))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_only_the_first_start_is_no_restart(
    tmp_path: Path, scripts: list[TrainerScript], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer in the place of a dead one knows it: its own death counts, and it waits for nobody to come back."""
    told, make = list[bool](), machinery.make_trainer

    def noted(*arguments: Any, is_restart: bool = False) -> Any:
        told.append(is_restart)
        return make(*arguments)

    monkeypatch.setattr(machinery, "make_trainer", noted)
    scripts += [TrainerScript(die_at_s=3.0)] * 2
    virtual_time.run(whole(tmp_path / "run", config_of(max_lag=1)))
    assert told == [False, True, True]


def test_a_bug_in_the_trainer_is_not_a_death(tmp_path: Path, scripts: list[TrainerScript]) -> None:
    """What a rank reports of itself would come back: it ends the run at once."""
    scripts.append(TrainerScript(calls=(CallFault(call="train", nth=2, kind="raise"),)))
    with pytest.raises(TrainerError) as raised:
        virtual_time.run(whole(tmp_path / "run", config_of(max_lag=1)))
    assert not isinstance(raised.value, TrainerDeadError)


def test_the_death_of_an_idle_trainer_is_mended_at_once(tmp_path: Path, scripts: list[TrainerScript]) -> None:
    """While the run waits for a batch the watch starts the trainer again, without waiting for the next command."""
    scripts.append(TrainerScript(die_at_s=1.0))

    async def main() -> dict[str, Any]:
        async with prl.Pipeline(config_of(max_lag=1), run_dir=tmp_path / "run") as pipeline:
            while pipeline.trainer_restarts == 0:  # noqa: ASYNC110 -- in virtual time
                await asyncio.sleep(0.1)
            return {"step": pipeline.step_number}

    assert virtual_time.run(main()) == {"step": 0}


def dies_in(call: str, nth: int, open_s: float = 0.0) -> TrainerScript:
    """A trainer that dies in the n-th call of a method, counted from 0."""
    return TrainerScript(calls=(CallFault(call=call, nth=nth, kind="die"),), open_s=open_s)


@pytest.mark.parametrize("call", ["publish", "score", "train", "save"])
def test_a_slow_restart_is_waited_for(tmp_path: Path, scripts: list[TrainerScript], call: str) -> None:
    """Ten minutes of start end no wait: no prompt is dropped, no deadline cuts the start, the weights are the same."""
    config = config_of(max_lag=1)
    config = msgspec.structs.replace(
        config, pipeline=msgspec.structs.replace(config.pipeline, rollout_timeout_s=100.0, max_lag=0)
    )
    undisturbed = virtual_time.run(whole(tmp_path / "undisturbed", config))
    scripts += [dies_in(call, 1), SLOW]
    assert virtual_time.run(whole(tmp_path / "run", config)) == undisturbed
    accounts = journal.read(tmp_path / "run" / "journal").ledger.accounts()
    assert (accounts.left, accounts.trained) == ({}, 2 * NUM_STEPS)


def test_streams_wait_for_a_slow_restart(
    tmp_path: Path, scripts: list[TrainerScript], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines whose load was half done stand still for ten minutes; the prompts under way are answered after it."""
    config = config_of(max_lag=3)
    monkeypatch.setattr(machinery, "make_engines", lambda *_: [PunctualEngine(index, base_s=0.2) for index in range(2)])
    pipeline = msgspec.structs.replace(config.pipeline, rollout_timeout_s=100.0)
    scripts += [dies_in("publish", 2), SLOW]
    virtual_time.run(whole(tmp_path / "run", msgspec.structs.replace(config, pipeline=pipeline)))
    assert journal.read(tmp_path / "run" / "journal").ledger.accounts().left == {}


@pytest.mark.parametrize(
    "again",
    [dies_in("open", 0), dies_in("train", 1), TrainerScript(calls=(CallFault(call="open", kind="raise"),))],
    ids=["open", "replay", "does not start"],
)
def test_a_restart_that_fails_is_followed_by_another(
    tmp_path: Path, scripts: list[TrainerScript], again: TrainerScript
) -> None:
    """Each attempt counts; the run goes on as long as there is one left."""
    scripts += [dies_in("train", 2), again]
    virtual_time.run(whole(tmp_path / "run", config_of(max_lag=0, checkpoint_every=0, max_restarts=2)))
    scripts += [dies_in("train", 2), again]
    with pytest.raises(TrainerDeadError, match=r"died in|failed in open"):
        virtual_time.run(whole(tmp_path / "short", config_of(max_lag=0, checkpoint_every=0, max_restarts=1)))


def test_a_death_while_steps_are_done_again(tmp_path: Path, scripts: list[TrainerScript]) -> None:
    """A trainer that dies on the way from the checkpoint to the journal's last step is brought to where it was."""
    config, run = config_of(max_lag=0), tmp_path / "run"
    undisturbed = virtual_time.run(whole(tmp_path / "undisturbed", config))

    async def crash() -> None:
        async with prl.Pipeline(config, run_dir=run) as pipeline:
            await take_steps(pipeline, 5)
            raise KeyError("a crash two steps after the checkpoint")

    async def resume() -> bytes:
        async with prl.Pipeline(config, run_dir=run, resume=True) as pipeline:
            await take_steps(pipeline, NUM_STEPS - pipeline.step_number)
        return (run / "export" / "simulated-weights.txt").read_bytes()

    with pytest.raises(KeyError):
        virtual_time.run(crash())
    scripts.append(dies_in("train", 1))
    assert virtual_time.run(resume()) == undisturbed


def test_engines_go_on_while_the_trainer_is_mended(tmp_path: Path, scripts: list[TrainerScript]) -> None:
    """An update that failed before anything was loaded leaves them on the version before it, and they answer."""
    scripts += [TrainerScript(die_at_s=1.0), SLOW]

    async def nothing(_: Trainer, __: int) -> None:
        """No step was done."""

    async def main() -> float:
        fleet = Fleet(config_of(max_lag=1), "m", tmp_path, transport="gloo", resume=None, replay=nothing)
        clock = asyncio.get_running_loop().time
        await fleet.open()
        await fleet.join()
        await asyncio.sleep(2.0)
        started = clock()
        async with asyncio.TaskGroup() as group:
            mend = group.create_task(fleet.mend(1))
            await asyncio.sleep(1.0)
            async for _ in fleet.engines.generate(
                [1], Decoding(temperature=1.0, max_tokens=4, stop_token_ids=[]), group=0
            ):
                pass
            answered_s = clock() - started
            assert await mend
            assert clock() - started >= 600.0
        await fleet.close()
        return answered_s

    assert virtual_time.run(main()) < 10.0


def test_engines_that_are_back_have_time_to_join_a_trainer_that_is_not(
    tmp_path: Path, scripts: list[TrainerScript], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both engines and the trainer die at once; the trainer takes longer than ``engine.recovery_timeout_s``."""
    made: list[int] = []

    def make_engine(*_: Any, index: int, **__: Any) -> SimulatedEngine:
        made.append(index)
        dies = Script(base_s=0.01, die_at_s=3.0) if len(made) <= 2 else Script(base_s=0.01)
        return SimulatedEngine(index=index, max_num_seqs=8, script=dies, seed=0)

    monkeypatch.setattr(machinery, "make_engine", make_engine)
    scripts += [TrainerScript(die_at_s=3.0), TrainerScript(open_s=90.0)]
    config = config_of(max_lag=1)
    engine = msgspec.structs.replace(config.engine, recovery_timeout_s=30.0)
    virtual_time.run(whole(tmp_path / "run", msgspec.structs.replace(config, engine=engine)))
    accounts = journal.read(tmp_path / "run" / "journal").ledger.accounts()
    assert (accounts.lost, accounts.trained_twice, accounts.trained) == ([], [], 2 * NUM_STEPS)


@pytest.mark.parametrize("call", ["connect", "publish"])
def test_a_trainer_that_dies_before_the_first_weights_is_mended(
    tmp_path: Path, scripts: list[TrainerScript], call: Any
) -> None:
    """At start-up as later: another is started, and the engines join that one."""
    scripts += [TrainerScript(calls=(CallFault(call=call, kind="die"),))]
    virtual_time.run(whole(tmp_path / "run", config_of(max_lag=1)))
    accounts = journal.read(tmp_path / "run" / "journal").ledger.accounts()
    assert (accounts.lost, accounts.trained_twice, accounts.trained) == ([], [], 2 * NUM_STEPS)


class TellingTrainer(SimulatedTrainer):
    """Two ranks, the second of which waits for the first."""

    async def train(self, batch: Batch) -> TrainReport:
        """As always, and says what each rank did."""
        told = [[Phase("training", 0.5)], [Phase("training", 0.125), Phase("waiting", 0.25, "sums")]]
        return msgspec.structs.replace(await super().train(batch), phases=told)


@in_virtual_time
async def test_each_rank_has_a_lane_of_its_own() -> None:
    """With what it did itself in a step, where the trainer tells that."""
    timeline = Timeline(is_kept=True)

    async def nothing(_: Trainer, __: int) -> None:
        """No step was done."""

    kept = KeptTrainer(
        TellingTrainer(step_s=0.5),
        lambda _: TellingTrainer(step_s=0.5),
        newest_checkpoint=lambda: None,
        replay=nothing,
        max_restarts=0,
        timeline=timeline,
        num_ranks=2,
    )
    await kept.open()
    await kept.train(Batch(step=0, samples=[], plan=[[], []], num_sequences=0))
    await kept.close()
    told = [(span.lane[-1], span.state, round(span.end - span.start, 3), span.why) for span in timeline.take()]
    assert told == [
        ("0", "training", 0.5, None),
        ("1", "training", 0.125, None),
        ("1", "waiting", 0.25, "sums"),
        ("1", "waiting", 0.125, "the answers of all ranks"),
    ]
