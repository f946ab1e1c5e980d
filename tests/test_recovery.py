"""Runs that are killed and resumed, over simulated engines and a simulated trainer, judged by their journal."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
import pytest

import prl
from prl import journal, virtual_time
from prl.config import Config, PipelineConfig, RunConfig
from prl.ledger import Accounts
from prl.models import resolve_model
from prl.recovery import find_start
from prl.tokenizer import Tokenizer
from tests.test_pipeline import lines, simulated, take_steps

NUM_STEPS = 8


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Import what reads the tokenizer first: a life that is killed while a thread does so leaves it half done."""
    Tokenizer.load(resolve_model("builtin:tiny-math"))


def config_of(
    *, checkpoint_every: int = 3, max_lag: int | None = 1, seeded: bool = False, steps_per_round: int | None = None
) -> Config:
    """A short run without evaluations, in conventional mode where a round has so many steps."""
    pipeline = PipelineConfig(max_lag=max_lag, groups_per_step=2, group_size=2)
    if steps_per_round is not None:
        pipeline = PipelineConfig(mode="conventional", steps_per_round=steps_per_round, groups_per_step=2, group_size=2)
    run = RunConfig(num_steps=NUM_STEPS, checkpoint_every=checkpoint_every, keep_checkpoints=2)
    config = simulated(run=run, pipeline=pipeline)
    sampling = msgspec.structs.replace(config.sampling, seeded=seeded)
    return msgspec.structs.replace(config, eval=msgspec.structs.replace(config.eval, num_samples=0), sampling=sampling)


def copy_as_it_is(run: Path, left: Path) -> None:
    """Copy a folder in which a thread may be renaming or removing a checkpoint; what is half written comes along."""
    for _ in range(20):
        try:
            shutil.copytree(run, left)
        except (shutil.Error, FileNotFoundError):
            shutil.rmtree(left, ignore_errors=True)
        else:
            return
    pytest.fail(f"{run} never stood still")


async def killed_after(config: Config, run: Path, *, seconds: float, resume: bool) -> tuple[Path, bool]:
    """Run for so long; the folder as a SIGKILL at that moment would leave it, and whether the run was done by then."""
    left = run.with_name(run.name + "+")
    done = False

    async def kill() -> None:
        async with asyncio.timeout(seconds), prl.Pipeline(config, run_dir=run, resume=resume) as pipeline:
            try:
                while pipeline.step_number < config.run.num_steps:
                    await pipeline.step()
            except asyncio.CancelledError:
                copy_as_it_is(run, left)
                raise

    try:
        await kill()
        done = True
    except (TimeoutError, prl.PrlError):
        if not left.exists() and run.exists():  # noqa: ASYNC240 -- tiny; killed while it started
            copy_as_it_is(run, left)
    return (left if left.exists() else run), done


def accounts_of(run: Path) -> Accounts:
    """What the journal says."""
    return journal.read(run / "journal").ledger.accounts()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("max_lag", [0, 1, None, "rounds"])
def test_every_prompt_is_trained_once_whenever_the_run_is_killed(
    tmp_path: Path, seed: int, max_lag: int | Literal["rounds"] | None
) -> None:
    """Field notes G, data position: killed any number of times at any time, no prompt is lost or trained twice."""
    random = Random(f"{seed} {max_lag}")
    checkpoint_every, rounds = random.choice([0, 1, 3]), max_lag == "rounds"
    max_lag = None if max_lag == "rounds" else max_lag
    config = config_of(checkpoint_every=checkpoint_every, max_lag=max_lag, steps_per_round=4 if rounds else None)

    async def lives() -> tuple[Path, int]:
        run, done, kills = tmp_path / "run", False, 0
        while not done:
            resume = (run / "config.toml").exists()
            run, done = await killed_after(config, run, seconds=random.uniform(0.5, 12.0), resume=resume)
            kills += not done
            newest = journal.segments(run / "journal")[-1][1] if (run / "journal").exists() else None
            if not done and newest is not None and random.random() < 0.5:  # the last writes did not reach the disk
                data = newest.read_bytes()
                newest.write_bytes(data[: max(200, len(data) - random.randrange(400))])
        return run, kills

    run, kills = virtual_time.run(lives())
    accounts = accounts_of(run)
    assert (accounts.lost, accounts.trained_twice) == ([], [])
    assert (accounts.steps, accounts.trained) == (NUM_STEPS, 2 * NUM_STEPS), accounts
    metrics = lines(run / "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(1, NUM_STEPS + 1))
    samples = lines(run / "samples.jsonl")
    assert {sample["prompt_id"] for sample in samples} == set(range(2 * NUM_STEPS)) or max_lag is None
    assert len({(sample["step"], sample["prompt_id"]) for sample in samples}) == 2 * NUM_STEPS
    if max_lag is not None:
        assert max(line["lag_max"] for line in metrics) <= max_lag, f"after {kills} kills"
    if rounds:
        assert max(line["lag_max"] for line in metrics) <= 3, f"after {kills} kills"


def test_a_killed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    """With max_lag = 0 and seeded streams, 6 steps = 3 + kill + resume + 3, checkpoint or not: the same weights."""

    async def whole(run: Path, config: Config) -> bytes:
        async with prl.Pipeline(config, run_dir=run) as pipeline:
            await take_steps(pipeline, NUM_STEPS)
        return (run / "export" / "simulated-weights.txt").read_bytes()

    async def resumed(run: Path, config: Config) -> bytes:
        async with prl.Pipeline(config, run_dir=run, resume=True) as pipeline:
            await take_steps(pipeline, NUM_STEPS - 5)
        return (run / "export" / "simulated-weights.txt").read_bytes()

    for checkpoint_every in (0, 3, 5):  # with 5 the engines sample while the checkpoint is written before the crash
        config = config_of(checkpoint_every=checkpoint_every, max_lag=0, seeded=True)
        expected = virtual_time.run(whole(tmp_path / f"whole-{checkpoint_every}", config))
        broken = tmp_path / f"broken-{checkpoint_every}"
        stopped_after(broken, config, 5)
        assert virtual_time.run(resumed(broken, config)) == expected


@pytest.mark.parametrize(("killed_after", "checkpoint_every"), [(1, 0), (2, 2), (3, 3), (5, 0), (7, 5)])
def test_rounds_do_not_shift(tmp_path: Path, killed_after: int, checkpoint_every: int) -> None:
    """Conventional mode, killed within a round: its other steps are trained on its data, pushes stay at multiples of G.

    So the lags, the prompts of every step and the weights are those of a run of one part.
    """
    config = config_of(checkpoint_every=checkpoint_every, seeded=True, steps_per_round=3)

    async def rest(run: Path, *, resume: bool) -> bytes:
        async with prl.Pipeline(config, run_dir=run, resume=resume) as pipeline:
            await take_steps(pipeline, NUM_STEPS - pipeline.step_number)
        return (run / "export" / "simulated-weights.txt").read_bytes()

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = virtual_time.run(rest(whole, resume=False))
    stopped_after(broken, config, killed_after)
    assert virtual_time.run(rest(broken, resume=True)) == expected
    for key in ("lag_max", "reward_mean", "tokens_trained"):
        assert [line[key] for line in lines(broken / "metrics.jsonl")] == [
            line[key] for line in lines(whole / "metrics.jsonl")
        ]
    accounts = accounts_of(broken)
    assert (accounts.lost, accounts.trained_twice, accounts.trained) == ([], [], 2 * NUM_STEPS)
    pushed = [line["version"] for line in lines(broken / "events.jsonl") if line["event"] == "pushed"]
    assert pushed == [3, 6]


def stopped_after(run: Path, config: Config, steps: int) -> None:
    """Take so many steps and crash."""

    async def main() -> None:
        async with prl.Pipeline(config, run_dir=run) as pipeline:
            await take_steps(pipeline, steps)
            raise KeyError("a crash between two steps")

    with pytest.raises(KeyError):
        virtual_time.run(main())


def resumed_to_the_end(run: Path, config: Config) -> int:
    """Go on to the last step, with every prompt accounted for; the steps that were done already."""

    async def main() -> int:
        async with prl.Pipeline(config, run_dir=run, resume=True) as pipeline:
            done = pipeline.step_number
            await take_steps(pipeline, NUM_STEPS - done)
            return done

    done = virtual_time.run(main())
    accounts = accounts_of(run)
    assert (accounts.lost, accounts.trained_twice, accounts.trained) == ([], [], 2 * NUM_STEPS)
    return done


def test_what_was_sampled_is_used(tmp_path: Path) -> None:
    """Finished groups wait to be trained and streams go on from their tokens: nothing is sampled twice."""
    run, config = tmp_path / "run", config_of(max_lag=2)
    stopped_after(run, config, 4)
    start = find_start(run, config)
    assert (start.ledger.step, len(start.batches), start.issued_again) == (4, 1, {})
    known = {
        (number, index): member.token_ids
        for number, entry in start.ledger.open.items()
        for index, member in entry.members.items()
        if member.token_ids
    }
    assert known

    async def resumed() -> None:
        async with prl.Pipeline(config, run_dir=run, resume=True) as pipeline:
            await take_steps(pipeline, NUM_STEPS - 4)

    virtual_time.run(resumed())
    samples: dict[int, list[Any]] = {}
    for sample in lines(run / "samples.jsonl"):
        samples.setdefault(sample["prompt_id"], []).append(sample["token_ids"])
    for (number, index), tokens in known.items():
        if number in samples:
            assert samples[number][index][: len(tokens)] == tokens


def test_a_smaller_bound_issues_old_tokens_again(tmp_path: Path) -> None:
    """Resumed with a smaller max_lag, prompts whose tokens would be too old are sampled anew, and the bound holds."""
    run = tmp_path / "run"
    stopped_after(run, config_of(max_lag=4), 4)
    config = config_of(max_lag=0)
    expected = find_start(run, config).issued_again
    assert list(expected) == ["too_old"]

    async def resumed() -> list[prl.StepReport]:
        async with prl.Pipeline(config, run_dir=run, resume=True) as pipeline:
            return await take_steps(pipeline, NUM_STEPS - 4)

    assert [report.lag_max for report in virtual_time.run(resumed())] == [0] * (NUM_STEPS - 4)
    told = [line["num_prompts"] for line in lines(run / "events.jsonl") if "issued again" in line["event"]]
    assert told == list(expected.values())
    assert accounts_of(run).issued_again == expected
    assert accounts_of(run).lost == []


def test_without_a_journal_the_checkpoint_alone_is_enough(tmp_path: Path) -> None:
    """A journal that was deleted costs the steps after the checkpoint, and a word about it; no prompt is lost."""
    run, config = tmp_path / "run", config_of()
    stopped_after(run, config, 5)
    shutil.rmtree(run / "journal")
    start = find_start(run, config)
    assert start.ledger.step == 3
    assert any("holds no journal" in warning for warning in start.warnings)
    assert resumed_to_the_end(run, config) == 3


def test_lost_groups_send_the_run_back_to_its_checkpoint(tmp_path: Path) -> None:
    """Damage before a step of the journal: the run goes on at the checkpoint, says so, and the accounts are exact."""
    run, config = tmp_path / "run", config_of()
    stopped_after(run, config, 5)
    _, segment = journal.segments(run / "journal")[-1]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(bytes(data))
    assert 3 <= resumed_to_the_end(run, config) <= 5
    assert any("damaged" in str(event) for event in lines(run / "events.jsonl"))


@pytest.mark.parametrize("num_bytes", [0, 10, 200])
def test_a_journal_that_knows_less_than_the_checkpoint_is_not_believed(tmp_path: Path, num_bytes: int) -> None:
    """A segment whose first records are gone: the run goes on at the checkpoint, and counts what it had trained."""
    run, config = tmp_path / "run", config_of()
    stopped_after(run, config, 5)
    newest = journal.segments(run / "journal")[-1][1]
    newest.write_bytes(newest.read_bytes()[:num_bytes])
    start = find_start(run, config)
    assert (start.ledger.step, start.ledger.accounts().trained) == (3, 2 * 3)
    assert start.warnings
    assert resumed_to_the_end(run, config) == 3


def test_a_lost_segment_is_not_made_up_for_by_a_later_one(tmp_path: Path) -> None:
    """The newest checkpoint is gone, and the journal at the one before: what that had trained is not trained again."""
    run, config = tmp_path / "run", config_of(checkpoint_every=2)
    stopped_after(run, config, 5)
    shutil.rmtree(run / "checkpoints" / "step-000004")
    lost = dict(journal.segments(run / "journal"))[2]
    lost.write_bytes(lost.read_bytes()[:10])
    start = find_start(run, config)
    assert (start.ledger.step, start.ledger.accounts().trained) == (2, 2 * 2)
    assert resumed_to_the_end(run, config) == 2


def test_old_checkpoints_and_segments_go(tmp_path: Path) -> None:
    """``run.keep_checkpoints`` are kept, with the journal back to the oldest of them; the accounts stay whole."""

    async def main() -> None:
        async with prl.Pipeline(config_of(checkpoint_every=1), run_dir=tmp_path / "run") as pipeline:
            await take_steps(pipeline, NUM_STEPS)

    virtual_time.run(main())
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-000007", "step-000008"]
    assert [step for step, _ in journal.segments(tmp_path / "run" / "journal")] == [7, 8]
    assert accounts_of(tmp_path / "run").trained == 2 * NUM_STEPS
