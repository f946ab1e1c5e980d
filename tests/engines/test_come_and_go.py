"""Engines that are added and removed while the whole pipeline runs, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import prl
from prl import journal, virtual_time
from prl.config import Config
from prl.engines.seat import EngineStatus
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script
from prl.engines.tally import Tally
from prl.simulation import CallFault
from tests.engines.test_seats import Scripts, config_of, lines, scripts
from tests.test_pipeline import take_steps

__all__ = ["scripts"]


async def until(condition: Callable[[], bool]) -> None:
    """Wait, in virtual time, until something is so."""
    while not condition():  # noqa: ASYNC110 -- of several parts, none of which says when
        await asyncio.sleep(0.02)


def by_name(pipeline: prl.Pipeline) -> dict[str, EngineStatus]:
    """Every engine."""
    return {engine.name: engine for engine in pipeline.engines()}


def state_of(pipeline: prl.Pipeline, name: str) -> str:
    """How far an engine is; ``gone`` where there is none."""
    engine = by_name(pipeline).get(name)
    return "gone" if engine is None else engine.state


def run(
    folder: Path, config: Config, meanwhile: Callable[[prl.Pipeline], Awaitable[None]], num_steps: int = 8
) -> list[prl.StepReport]:
    """Take the steps while something happens, and at least until it has."""

    async def main() -> list[prl.StepReport]:
        async with prl.Pipeline(long(config), run_dir=folder) as pipeline, asyncio.TaskGroup() as tasks:
            happens = tasks.create_task(meanwhile(pipeline))  # type: ignore[arg-type]
            reports = await take_steps(pipeline, num_steps)
            while not happens.done():
                reports += await take_steps(pipeline, 1)
            return reports

    return virtual_time.run(main())


def long(config: Config) -> Config:
    """A run whose end is far."""
    return msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, num_steps=1000))


def assert_exact(folder: Path, reports: list[prl.StepReport], max_lag: int | None = 1) -> None:
    """Every prompt trained once, none lost or dropped, no step missing, within the bound; and no number fell."""
    accounts = journal.read(folder / "journal").ledger.accounts()
    assert (accounts.lost, accounts.trained_twice, accounts.left) == ([], [], {})
    assert (accounts.trained, accounts.steps) == (2 * len(reports), len(reports))
    assert [line["step"] for line in lines(folder / "metrics.jsonl")] == list(range(1, len(reports) + 1))
    assert max_lag is None or max(report.lag_max for report in reports) <= max_lag
    assert min(report.tokens_generated for report in reports) >= 0
    assert all(0 <= report.engine_busy <= 1 for report in reports)


def test_an_engine_that_is_added_serves_with_the_current_weights(tmp_path: Path, scripts: Scripts) -> None:
    """It starts beside the others, holds the run's version before its first token, and then serves its share."""

    async def add(pipeline: prl.Pipeline) -> None:
        await until(lambda: pipeline.step_number >= 2)
        assert await pipeline.add_engine() == "engine-2"
        assert state_of(pipeline, "engine-2") == "starting"
        await until(lambda: state_of(pipeline, "engine-2") == "serving")
        added = by_name(pipeline)["engine-2"]
        assert (added.version, added.tokens_generated) == (pipeline.step_number, 0)
        await until(lambda: by_name(pipeline)["engine-2"].tokens_generated > 0)

    reports = run(tmp_path / "run", config_of(1), add)
    assert_exact(tmp_path / "run", reports)
    assert [engine.name for engine in scripts.made] == ["engine-0", "engine-1", "engine-2"]
    events = [line["event"] for line in lines(tmp_path / "run" / "events.jsonl")]
    assert events.count("an engine that was added serves") == 1
    assert "an engine serves again" not in events


@pytest.mark.parametrize("max_lag", [0, 1, None])
def test_the_streams_of_one_that_is_removed_go_on_elsewhere(
    tmp_path: Path, scripts: Scripts, max_lag: int | None
) -> None:
    """It leaves with what it sampled, its streams are continued and counted apart, and nobody takes it for dead."""

    async def remove(pipeline: prl.Pipeline) -> None:
        await until(lambda: pipeline.step_number >= 2 and by_name(pipeline)["engine-1"].streams > 0)
        assert await pipeline.remove_engine("1") == "engine-1"
        assert await pipeline.remove_engine("engine-1") == "engine-1", "asked twice, it leaves once"
        assert state_of(pipeline, "engine-1") == "leaving"
        await until(lambda: state_of(pipeline, "engine-1") == "gone")
        with pytest.raises(prl.RefusedError, match=r"no engine 'engine-1': there are engine-0$"):
            await pipeline.remove_engine("engine-1")

    reports = run(tmp_path / "run", config_of(max_lag), remove)
    assert_exact(tmp_path / "run", reports, max_lag)
    assert sum(report.streams_handed_over for report in reports) > 0
    assert sum(report.streams_moved + report.engine_restarts for report in reports) == 0
    assert sum(engine.statistics().tokens_generated for engine in scripts.made) >= sum(
        report.tokens_generated for report in reports
    )
    assert scripts.made[1].statistics().tokens_generated > 0


def test_what_it_sampled_is_all_kept(tmp_path: Path, scripts: Scripts) -> None:
    """With nothing cut off, every token that any engine sampled is in the journal: no length is favoured."""

    async def remove(pipeline: prl.Pipeline) -> None:
        await until(lambda: pipeline.step_number >= 1 and by_name(pipeline)["engine-0"].streams > 0)
        await pipeline.remove_engine("engine-0")
        await until(lambda: state_of(pipeline, "engine-0") == "gone")
        await until(lambda: pipeline.step_number >= 4)
        await pipeline._record.journal.flush()
        ledger, _, _, batches = journal.read(tmp_path / "run" / "journal", resume_from=0)
        entries = [entry for batch in batches.values() for entry in batch] + list(ledger.open.values())
        kept = sum(len(member.token_ids) for entry in entries for member in entry.members.values())
        sampled = sum(engine.statistics().tokens_generated for engine in scripts.made)
        assert kept > 100
        assert 0 <= sampled - kept < 5 * 4, "what the open streams are about to say"

    scripts.by_seat = {index: [Script(stream_interval=5)] for index in range(2)}
    config = config_of(0)
    config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, checkpoint_every=0))
    run(tmp_path / "run", config, remove, num_steps=0)


def test_enough_engines_stay(tmp_path: Path, scripts: Scripts) -> None:
    """The only one is never removed; below ``engine.min_engines`` only who insists is heard, and the run goes on."""

    async def remove(pipeline: prl.Pipeline) -> None:
        await until(lambda: pipeline.step_number >= 1)
        with pytest.raises(prl.RefusedError, match=r"1 engines would serve, fewer than engine\.min_engines = 2"):
            await pipeline.remove_engine("engine-0")
        await pipeline.remove_engine("engine-0", force=True)
        with pytest.raises(prl.RefusedError, match="engine-1 is the only engine"):
            await pipeline.remove_engine("engine-1", force=True)
        await asyncio.sleep(120)
        assert list(by_name(pipeline)) == ["engine-1"]

    reports = run(tmp_path / "run", config_of(1, min_engines=2, recovery_timeout_s=100.0), remove)
    assert_exact(tmp_path / "run", reports)


def test_names_are_new_and_places_are_used_again(tmp_path: Path, scripts: Scripts) -> None:
    """Who comes where another has left has its share of the machine, not its name."""

    async def replace(pipeline: prl.Pipeline) -> None:
        await until(lambda: pipeline.step_number >= 1)
        await pipeline.remove_engine("engine-0")
        await until(lambda: state_of(pipeline, "engine-0") == "gone")
        assert [await pipeline.add_engine() for _ in range(2)] == ["engine-2", "engine-3"]
        assert pipeline._overview.fleet is not None
        assert [seat.place for seat in pipeline._overview.fleet.engines.seats.all] == [1, 0, 2]
        await until(lambda: {engine.state for engine in pipeline.engines()} == {"serving"})

    assert_exact(tmp_path / "run", run(tmp_path / "run", config_of(1), replace))


def test_one_that_never_gets_ready_costs_the_run_nothing(tmp_path: Path, scripts: Scripts) -> None:
    """It is tried as often as ``engine.max_restarts`` says, shows why, can be removed; steps go on, minima are met."""
    scripts.by_seat[2] = [Script(calls=(CallFault(call="open", kind="raise"),))] * 50
    hung = Script(calls=(CallFault(call="open", kind="hang"),))
    scripts.by_seat[3] = [hung]

    async def add(pipeline: prl.Pipeline) -> None:
        await until(lambda: pipeline.step_number >= 1)
        await pipeline.add_engine()
        await until(lambda: state_of(pipeline, "engine-2") == "failed")
        assert "engine-2 failed in open" in by_name(pipeline)["engine-2"].why
        await pipeline.add_engine()
        await asyncio.sleep(1)
        await pipeline.remove_engine("engine-3")
        await pipeline.remove_engine("engine-2")
        await until(lambda: len(pipeline.engines()) == 2)

    config = config_of(1, max_restarts=3, min_engines=3, recovery_timeout_s=5.0)
    assert_exact(tmp_path / "run", run(tmp_path / "run", config, add))
    assert [engine.name for engine in scripts.made].count("engine-2") == 4


def is_paused(scripts: Scripts) -> bool:
    """Whether a push has stopped the engines."""
    return any(engine.statistics().paused for engine in scripts.made)


@pytest.mark.parametrize("what", ["add", "remove"])
def test_during_a_push(tmp_path: Path, scripts: Scripts, what: str) -> None:
    """Asked for while weights are loaded, it waits for the push, which is disturbed by neither."""
    scripts.by_seat = {index: [Script(load_s=2.0)] for index in range(2)}
    scripts.by_seat[2] = [Script(open_s=0.0)]

    async def change(pipeline: prl.Pipeline) -> None:
        await until(lambda: pipeline.step_number >= 2 and is_paused(scripts))
        if what == "add":
            await pipeline.add_engine()
        else:
            await pipeline.remove_engine("engine-1")
        await asyncio.sleep(0.5)
        assert is_paused(scripts)
        assert [engine.name for engine in pipeline.engines()][:2] == ["engine-0", "engine-1"]
        await until(lambda: state_of(pipeline, "engine-2" if what == "add" else "engine-1") in {"serving", "gone"})

    assert_exact(tmp_path / "run", run(tmp_path / "run", config_of(1), change))
    events = [line["event"] for line in lines(tmp_path / "run" / "events.jsonl")]
    assert not [event for event in events if "lost" in event]


@pytest.mark.parametrize("call", ["connect", "load"])
@pytest.mark.parametrize("kind", ["die", "hang", "raise"])
@pytest.mark.parametrize("removed", ["engine-0", "engine-1"])
def test_while_an_update_fails(tmp_path: Path, scripts: Scripts, call: str, kind: Any, removed: str) -> None:
    """Whether the one that fails is removed or the other: the update is done in the end, and the run goes on."""
    scripts.by_seat[1] = [Script(calls=(CallFault(call=call, kind=kind, nth=1),))]

    async def change(pipeline: prl.Pipeline) -> None:
        await pipeline.add_engine()  # makes a new weight group: the second connect
        await until(lambda: state_of(pipeline, "engine-2") == "serving" or is_paused(scripts))
        await pipeline.remove_engine(removed, force=True)
        await until(lambda: state_of(pipeline, removed) == "gone" and state_of(pipeline, "engine-2") == "serving")

    assert_exact(tmp_path / "run", run(tmp_path / "run", config_of(1), change))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("max_lag", [0, 1, None])
def test_engines_may_come_go_and_die_in_any_order(
    tmp_path: Path, scripts: Scripts, seed: int, max_lag: int | None
) -> None:
    """Random additions, removals and deaths: nothing is lost or trained twice, and who is there at the end serves."""
    random = Random(f"come and go {seed} {max_lag}")

    def script() -> Script:
        death = random.uniform(0.3, 8.0) if random.random() < 0.4 else None
        return Script(open_s=random.uniform(0, 2), load_s=random.uniform(0, 0.2), die_at_s=death)

    scripts.by_seat = {index: [script() for _ in range(3)] for index in range(20)}

    refusals = list[str]()

    async def change(pipeline: prl.Pipeline) -> None:
        for _ in range(14):
            await asyncio.sleep(random.expovariate(1.5))
            if random.random() < 0.5:
                await pipeline.add_engine()
            else:
                name = random.choice(pipeline.engines()).name
                try:
                    await pipeline.remove_engine(name, force=random.random() < 0.3)
                except prl.RefusedError as refused:
                    refusals.append(str(refused))
        await until(lambda: all(engine.state == "serving" for engine in pipeline.engines()))

    reports = run(tmp_path / "run", config_of(max_lag, min_engines=2), change)
    assert_exact(tmp_path / "run", reports, max_lag)
    assert len(scripts.made) > 2
    assert all("is the only engine" in said or "would serve" in said for said in refusals)


def test_slots_follow_the_engines_where_no_bound_fixes_them(tmp_path: Path, scripts: Scripts) -> None:
    """The paper's mode keeps every engine full: with a third one there are more slots, with one there are fewer."""
    counts = list[int]()

    async def change(pipeline: prl.Pipeline) -> None:
        def num_slots() -> int:
            slots = pipeline.status().slots
            return 0 if slots is None else slots.num_slots

        counts.append(num_slots())
        await pipeline.add_engine()
        await until(lambda: num_slots() > counts[0])
        counts.append(num_slots())
        await pipeline.remove_engine("engine-0")
        await pipeline.remove_engine("engine-1")
        await until(lambda: num_slots() < counts[0])
        counts.append(num_slots())

    assert_exact(tmp_path / "run", run(tmp_path / "run", config_of(None), change), None)
    assert counts == [2 * 8, 3 * 8, 8]


def test_a_run_that_does_not_train_keeps_its_engines(tmp_path: Path, scripts: Scripts) -> None:
    """While it starts, and when it has ended, both are refused and say what the run does."""
    said = list[str]()

    async def main() -> None:
        pipeline = prl.Pipeline(config_of(1), run_dir=tmp_path / "run")
        async with pipeline:
            pass
        for change in (pipeline.add_engine(), pipeline.remove_engine("engine-0")):
            with pytest.raises(prl.RefusedError) as refused:
                await change
            said.append(str(refused.value))

    virtual_time.run(main())
    assert said == ["the run does not train now, and its engines stay who they are: ending the processes"] * 2


def test_the_tally_neither_falls_nor_jumps() -> None:
    """Tokens are the sum of all that ever counted, busy seconds the mean over those that count at the time."""

    class Worked(SimulatedEngine):
        """Did so much."""

        tokens, busy_s = 0, 0.0

        def statistics(self) -> Any:
            """Say so."""
            now = super().statistics()
            return msgspec.structs.replace(now, tokens_generated=self.tokens, busy_s=self.busy_s)

    async def main() -> None:
        engines = [Worked(index=i, max_num_seqs=1, script=Script(), seed=0) for i in range(3)]
        here = engines[:2]
        tally = Tally(lambda: [engine.statistics() for engine in here])

        def work(tokens: int, *busy_s: float) -> None:
            for engine, seconds in zip(here, busy_s, strict=True):
                engine.tokens += tokens
                engine.busy_s += seconds

        work(100, 10, 20)
        assert tally.totals()[:2] == (200, 15)
        with tally.kept():
            here.append(engines[2])
        assert tally.totals()[:2] == (200, 15)
        work(10, 6, 3, 3)
        assert tally.totals()[:2] == (230, 19)
        with tally.kept():
            del here[0]
        assert tally.totals()[:2] == (230, 19)
        work(1, 4, 2)
        assert tally.totals()[:2] == (232, 22)
        with tally.kept():
            here.clear()
        assert tally.totals()[:2] == (232, 22)

    virtual_time.run(main())
