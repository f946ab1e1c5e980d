"""Engines that die and are started again, under the whole pipeline in virtual time."""

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
from prl.config import Config, EngineConfig, PipelineConfig, RunConfig
from prl.config_weights import WeightsConfig
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script, StreamFault
from prl.errors import EngineDeadError, WeightSyncError
from prl.simulation import CallFault
from tests.test_pipeline import lines, simulated, take_steps

NUM_STEPS = 8


def config_of(max_lag: int | None = 1, *, seeded: bool = False, mode: Any = "pipeline", **engine: Any) -> Config:
    """A short run without evaluations."""
    config = simulated(
        run=RunConfig(num_steps=NUM_STEPS, checkpoint_every=3, stall_timeout_s=10_000),
        pipeline=PipelineConfig(mode=mode, max_lag=max_lag, groups_per_step=2, group_size=2, steps_per_round=4),
        engine=EngineConfig(kind="simulated", max_num_seqs=8, max_model_len=256, **{"count": 2, **engine}),
    )
    sampling = msgspec.structs.replace(config.sampling, seeded=seeded)
    return msgspec.structs.replace(config, eval=msgspec.structs.replace(config.eval, num_samples=0), sampling=sampling)


class Scripts:
    """What happens to each engine that is made for a seat, in turn; nothing to those after them."""

    def __init__(self) -> None:
        self.by_seat: dict[int, list[Script]] = {}
        self.made: list[SimulatedEngine] = []

    def make(self, *_: Any, index: int, **__: Any) -> SimulatedEngine:
        """Stand in for ``machinery.make_engine``."""
        return self._make(index)

    def _make(self, index: int) -> SimulatedEngine:
        left = self.by_seat.get(index, [])
        script = left.pop(0) if left else Script(open_s=2.0)
        engine = SimulatedEngine(index=index, max_num_seqs=8, script=script, seed=0)
        self.made.append(engine)
        return engine


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Scripts:
    """The engines of the test."""
    made = Scripts()
    monkeypatch.setattr(machinery, "make_engine", made.make)
    return made


async def whole(run: Path, config: Config) -> list[prl.StepReport]:
    """Run to the end."""
    async with prl.Pipeline(config, run_dir=run) as pipeline:
        return await take_steps(pipeline, NUM_STEPS)


def assert_exact(run: Path, max_lag: int | None) -> None:
    """Every prompt was trained once, in time, and no step is missing."""
    accounts = journal.read(run / "journal").ledger.accounts()
    assert (accounts.lost, accounts.trained_twice, accounts.left, accounts.trained) == ([], [], {}, 2 * NUM_STEPS)
    metrics = lines(run / "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(1, NUM_STEPS + 1))
    if max_lag is not None:
        assert max(line["lag_max"] for line in metrics) <= max_lag


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("max_lag", [0, 1, None])
def test_engines_may_die_at_any_time(tmp_path: Path, scripts: Scripts, seed: int, max_lag: int | None) -> None:
    """Between, in the middle of and all at once: the run goes on, and no prompt is lost, dropped or trained late."""
    random = Random(f"{seed} {max_lag}")
    for index in range(2):
        deaths = [random.uniform(0.5, 6.0) for _ in range(random.randrange(1, 4))]
        scripts.by_seat[index] = [Script(open_s=random.uniform(0, 3), die_at_s=death) for death in deaths]
    virtual_time.run(whole(tmp_path / "run", config_of(max_lag)))
    assert len(scripts.made) > 2
    assert_exact(tmp_path / "run", max_lag)


@pytest.mark.parametrize("call", ["stage", "pause", "load", "resume", "score", "connect"])
@pytest.mark.parametrize("kind", ["die", "hang", "raise"])
@pytest.mark.parametrize("count", [1, 2])
def test_engines_may_fail_in_an_update(tmp_path: Path, scripts: Scripts, call: str, kind: Any, count: int) -> None:
    """Dead, hanging or failing in each call of a weight update, one engine of two or the only one: the run goes on."""
    for nth in (1, 2):
        fault = CallFault(call=call, kind=kind, nth=nth)
        scripts.by_seat.setdefault(count - 1, []).append(Script(calls=(fault,)))
    virtual_time.run(whole(tmp_path / "run", config_of(1, count=count)))
    assert_exact(tmp_path / "run", 1)


@pytest.mark.parametrize(("seat", "staged"), [(0, True), (1, False), (2, True)])
def test_engines_may_die_between_the_turns_of_an_update(
    tmp_path: Path, scripts: Scripts, seat: int, staged: bool
) -> None:
    """Before its turn, in it or after it, whatever it has sampled with either version: no token is lost or misplaced.

    The engine that takes its turn last takes long for it, so the others serve the new version most of the time that an
    update lasts.
    """

    def script(index: int, die_at_s: float | None = None) -> Script:
        return Script(load_s=1.5 * (index == 2), die_at_s=die_at_s, stages=staged)

    scripts.by_seat = {index: [script(index)] for index in range(3)}
    scripts.by_seat[seat] = [*(script(seat, die_at_s) for die_at_s in (1.7, 2.3, 3.1, 3.9)), *[script(seat)] * 50]
    config = msgspec.structs.replace(config_of(1, count=3), weights=WeightsConfig(rolling=1, staged=staged))
    virtual_time.run(whole(tmp_path / "run", config))
    assert_exact(tmp_path / "run", 1)
    assert len(scripts.made) > 3


def test_the_others_go_on_meanwhile(tmp_path: Path, scripts: Scripts) -> None:
    """While an engine takes long to start again, the other one serves every step."""
    scripts.by_seat[0] = [Script(die_at_s=1.0), Script(open_s=200.0)]
    reports = virtual_time.run(whole(tmp_path / "run", config_of(1)))
    assert sum(report.time_s for report in reports) < 200
    assert_exact(tmp_path / "run", 1)


def test_an_engine_that_comes_back_serves(tmp_path: Path, scripts: Scripts) -> None:
    """It gets the current weights before its first stream, and then its share of the streams."""
    scripts.by_seat[0] = [Script(die_at_s=1.0)]
    virtual_time.run(whole(tmp_path / "run", config_of(1)))
    back = scripts.made[2]
    assert back.name == "engine-0"
    assert back.statistics().tokens_generated > 0
    assert back.statistics().version > 0
    events = [line["event"] for line in lines(tmp_path / "run" / "events.jsonl")]
    assert events.count("an engine serves again") == 1


def test_the_only_engine_comes_back(tmp_path: Path, scripts: Scripts) -> None:
    """With no engine left nothing can end a step: the one that is started again is given its weights at once."""
    die = StreamFault(kind="die", token=2, request=5)
    scripts.by_seat[0] = [Script(streams=(die,)), Script(open_s=30.0, streams=(die,))]
    virtual_time.run(whole(tmp_path / "run", config_of(0, count=1)))
    assert_exact(tmp_path / "run", 0)


def test_conventional_rounds_outlive_an_engine(tmp_path: Path, scripts: Scripts) -> None:
    """In the middle of a round the trainer's weights are no version that the engines serve: the newcomer waits."""
    scripts.by_seat[0] = [Script(die_at_s=3.0)]
    virtual_time.run(whole(tmp_path / "run", config_of(None, mode="conventional")))
    assert_exact(tmp_path / "run", None)


def test_too_few_engines_for_too_long_end_the_run(tmp_path: Path, scripts: Scripts) -> None:
    """Below ``engine.min_engines`` the run waits as long as it says, then ends with the cause."""
    scripts.by_seat[1] = [Script(die_at_s=2.0), *[Script(calls=(CallFault(call="open", kind="raise"),))] * 50]
    config = config_of(1, min_engines=2, recovery_timeout_s=60.0, max_restarts=50)
    config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, num_steps=100_000))

    async def main() -> None:
        async with prl.Pipeline(config, run_dir=tmp_path / "run") as pipeline:
            while True:
                await pipeline.step()

    async def timed() -> float:
        with pytest.raises(EngineDeadError, match=r"fewer than 2 engines \(engine.min_engines\).*engine-1 died 2 s"):
            await main()
        return asyncio.get_running_loop().time()

    assert 60 <= virtual_time.run(timed()) < 90
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"


def test_what_fails_every_time_ends_the_run(tmp_path: Path, scripts: Scripts) -> None:
    """An update that alive engines refuse twice is nobody's death: the run ends and names the side."""
    faults = tuple(CallFault(call="load", kind="raise", nth=nth) for nth in range(2, 9))
    scripts.by_seat = {0: [Script(calls=faults)], 1: [Script(calls=faults)]}
    with pytest.raises(WeightSyncError, match="engines"):
        virtual_time.run(whole(tmp_path / "run", config_of(1)))


def test_what_was_mended_is_counted(tmp_path: Path, scripts: Scripts) -> None:
    """Each step's line says what died since the one before, counts never fall, and the summary holds the sums."""
    scripts.by_seat[0] = [Script(streams=(StreamFault(kind="die", token=2, request=3),))]
    reports = virtual_time.run(whole(tmp_path / "run", config_of(1)))
    assert min(report.tokens_generated for report in reports) > 0
    assert all(0 <= report.engine_busy <= 1 for report in reports)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["engine_restarts"], summary["trainer_restarts"]) == (1, 0)
    assert sum(report.engine_restarts for report in reports) == 1
    assert sum(report.streams_moved for report in reports) > 0
    assert sum(engine.statistics().tokens_generated for engine in scripts.made) >= summary["tokens_generated"]


def test_an_engine_that_dies_in_every_update_is_left_out_at_last(tmp_path: Path, scripts: Scripts) -> None:
    """Opening and dying in the load costs ``engine.max_restarts`` updates, and then the others go on undisturbed."""
    looping = Script(calls=(CallFault(call="load", kind="die"),))
    scripts.by_seat[1] = [Script(die_at_s=1.0), *[looping] * 50]
    config = config_of(1, max_restarts=3)
    config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, num_steps=1000))
    empty = "an engine is not started again"

    async def main() -> list[str]:
        async with prl.Pipeline(config, run_dir=tmp_path / "run") as pipeline:
            events: list[str] = []
            while not any(event.startswith(empty) for event in events):
                await take_steps(pipeline, 1)
                events = [line["event"] for line in lines(tmp_path / "run" / "events.jsonl")]
            await take_steps(pipeline, 20)
        return [line["event"] for line in lines(tmp_path / "run" / "events.jsonl")]

    events = virtual_time.run(main())
    assert len([engine for engine in scripts.made if engine.name == "engine-1"]) == 1 + 3
    assert sum(event.startswith(empty) for event in events) == 1


class DeadOnArrival(SimulatedEngine):
    """Dies in the moment it is open, which is noticed five seconds later."""

    async def open(self) -> None:
        """Open and die."""
        await super().open()
        self.kill()

    async def failed(self) -> str:
        """Late."""
        why = await super().failed()
        await asyncio.sleep(5)
        return why


def test_engines_come_back_after_one_that_was_dead_on_arrival(tmp_path: Path, scripts: Scripts) -> None:
    """Whoever waits for a newcomer does not take a corpse for one, nor wait for a push that nobody is left to ask for.

    The other engine dies meanwhile, so that only those who come back can bring the run on.
    """
    scripts.by_seat = {0: [Script(die_at_s=1.0), Script()], 1: [Script(die_at_s=4.0)]}
    make = scripts._make

    def make_one(index: int) -> SimulatedEngine:
        engine = make(index)
        if len(scripts.made) == 3:
            engine = scripts.made[-1] = DeadOnArrival(index=index, max_num_seqs=8, script=Script(), seed=0)
        return engine

    scripts._make = make_one  # type: ignore[method-assign]
    reports = virtual_time.run(whole(tmp_path / "run", config_of(1, recovery_timeout_s=300.0)))
    assert sum(report.time_s for report in reports) < 60
    assert len(scripts.made) >= 4
    assert_exact(tmp_path / "run", 1)


# ---- deaths before the first weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["open", "connect", "load"])
def test_an_engine_that_dies_at_start_up_is_mended(tmp_path: Path, scripts: Scripts, call: Any) -> None:
    """Before the first weights as later: the others go on, and another comes in its place."""
    kind = "raise" if call == "open" else "die"
    scripts.by_seat[0] = [Script(calls=(CallFault(call=call, kind=kind),))]
    virtual_time.run(whole(tmp_path / "run", config_of(1, min_engines=1)))
    assert len(scripts.made) == 3
    assert_exact(tmp_path / "run", 1)


def test_the_only_engine_may_die_before_the_first_weights(tmp_path: Path, scripts: Scripts) -> None:
    """It was started once, so it can be started again; the weights wait for it."""
    scripts.by_seat[0] = [Script(calls=(CallFault(call="connect", kind="die"),)), Script(open_s=30.0)]
    virtual_time.run(whole(tmp_path / "run", config_of(1, count=1)))
    assert_exact(tmp_path / "run", 1)


def test_an_engine_may_die_in_the_first_evaluation(tmp_path: Path, scripts: Scripts) -> None:
    """The only engine dies while the untrained model is evaluated: its successor gets the weights, and answers on."""
    scripts.by_seat[0] = [Script(streams=(StreamFault(kind="die", token=1, request=1),))]
    config = config_of(1, count=1)
    evaluated = msgspec.structs.replace(config, eval=msgspec.structs.replace(config.eval, num_samples=4))
    virtual_time.run(whole(tmp_path / "run", evaluated))
    assert_exact(tmp_path / "run", 1)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["eval_before"] is not None


@pytest.mark.parametrize(("count", "min_engines"), [(1, 1), (2, 1), (3, 2)])
def test_what_keeps_the_engines_from_starting_ends_the_run(
    tmp_path: Path, scripts: Scripts, count: int, min_engines: int
) -> None:
    """Where fewer than ``engine.min_engines`` open, nothing is mended: the run ends at once, with each one's reason."""
    fails = Script(calls=(CallFault(call="open", kind="raise"),))
    scripts.by_seat = {index: [fails] for index in range(count)}
    clock: list[float] = []

    async def main() -> None:
        clock.append(asyncio.get_running_loop().time())
        try:
            await whole(tmp_path / "run", config_of(1, count=count, min_engines=min_engines))
        finally:
            clock.append(asyncio.get_running_loop().time())

    with pytest.raises(prl.EngineError, match="engine-0"):
        virtual_time.run(main())
    assert (len(scripts.made), clock[1] - clock[0] < 5.0) == (count, True)
