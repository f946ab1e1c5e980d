"""The checkpoints of a run over simulated parts: a disk that does not take them, their pause, damage in one."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import prl
from prl import journal, virtual_time
from prl.buffer import Ticket
from prl.cli import main
from prl.config import Config, RewardConfig, RunConfig
from prl.engines.simulated import SimulatedEngine
from prl.errors import CheckpointError, DiskError
from prl.open_prompts import OpenPrompts
from prl.records import Entry
from prl.recovery import find_start
from prl.sync import WeightSync
from prl.trainer import checkpoint, simulated
from prl.trainer.simulated import SimulatedTrainer
from tests.test_pipeline import lines, take_steps
from tests.test_pipeline import simulated as config_with
from tests.test_recovery import accounts_of, config_of, stopped_after
from tests.virtual import in_virtual_time

NUM_STEPS = 4


def saved_every_second_step(**run: Any) -> Config:
    """Four steps, a checkpoint after the second and the fourth, and no evaluation."""
    config = config_with(run=RunConfig(num_steps=NUM_STEPS, checkpoint_every=2, **run))
    return msgspec.structs.replace(config, eval=msgspec.structs.replace(config.eval, num_samples=0))


def fill_disk(monkeypatch: pytest.MonkeyPatch, is_full: list[bool]) -> list[int]:
    """A trainer's disk that fills up half through a save while ``is_full`` holds anything; the steps of all tries."""
    tries, commit = list[int](), checkpoint.commit

    def half(target: Path, *, step: int, num_ranks: int) -> None:
        tries.append(step)
        if is_full:
            is_full.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        commit(target, step=step, num_ranks=num_ranks)

    monkeypatch.setattr(simulated.checkpoint, "commit", half)
    return tries


@prl.reward("test-checkpoints-often-fails")
async def often_fails(completion: prl.Completion, prompt: prl.Prompt) -> float:
    """Fail for two prompts of three, so that slots are always to be had."""
    if prompt.id % 3:
        raise prl.RewardError("the judge is not there")
    return 1.0 / len(completion.token_ids)


def test_a_full_disk_under_the_trainer_pauses_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field notes G, disk full: said once, admission held up, nothing half written; with room again the run is done."""
    run, is_full, admitted = tmp_path / "run", [True] * 3, list[str | None]()
    rewards = [RewardConfig(name="test-checkpoints-often-fails", max_failures=1000)]
    tries, admit = fill_disk(monkeypatch, is_full), OpenPrompts.admit

    async def main() -> None:
        async with prl.Pipeline(
            msgspec.structs.replace(saved_every_second_step(), rewards=rewards), run_dir=run
        ) as pipeline:

            def noted(self: OpenPrompts, ticket: Ticket) -> Entry:
                admitted.append(pipeline._record._disk.blocked)
                return admit(self, ticket)

            monkeypatch.setattr(OpenPrompts, "admit", noted)
            await take_steps(pipeline, NUM_STEPS)

    virtual_time.run(main())
    assert tries == [2, 2, 2, 2, 4, 4]
    assert sum(blocked is not None for blocked in admitted) <= 1, "no more than one that had waited for a slot already"
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-000002", "step-000004"]
    events = lines(run / "events.jsonl")
    told = [line["why"] for line in events if line["event"].startswith("the disk takes no writes")]
    assert told == [f"the checkpoint of step 2 cannot be written to {run}: No space left on device"]
    assert len([line for line in events if line["event"].startswith("the disk takes writes again")]) == 1
    assert lines(run / "metrics.jsonl")[2]["checkpoint_s"] >= 45, "three pauses of fifteen seconds"
    accounts = accounts_of(run)
    assert (accounts.steps, accounts.trained, accounts.lost, accounts.trained_twice) == (NUM_STEPS, 8, [], [])
    assert accounts.left["reward_error"] > 8


def test_a_disk_that_stays_full_ends_the_run_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After run.disk_timeout_s the run ends with the cause; the checkpoint before is whole, and no prompt is lost."""
    run, config, is_full = tmp_path / "run", saved_every_second_step(disk_timeout_s=60), list[bool]()
    fill_disk(monkeypatch, is_full)

    async def first() -> None:
        async with prl.Pipeline(config, run_dir=run) as pipeline:
            await take_steps(pipeline, 3)
            is_full.extend([True] * 1000)
            await take_steps(pipeline, 1)

    with pytest.raises(DiskError, match=r"the checkpoint of step 4 cannot .* run.disk_timeout_s = 60 s. Make room"):
        virtual_time.run(first())
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000002"]
    is_full.clear()

    async def resumed() -> None:
        async with prl.Pipeline(config, run_dir=run, resume=True) as pipeline:
            assert pipeline.step_number == NUM_STEPS

    virtual_time.run(resumed())
    accounts = accounts_of(run)
    assert (accounts.steps, accounts.trained, accounts.lost, accounts.trained_twice) == (NUM_STEPS, 8, [], [])


@in_virtual_time
async def test_the_export_waits_for_room_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written at the end of a run is worth as much as what is written on the way."""
    tries, export = list[int](), SimulatedTrainer.export

    async def full_at_first(self: SimulatedTrainer, folder: Path) -> None:
        tries.append(self.step)
        if len(tries) < 3:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        await export(self, folder)

    monkeypatch.setattr(SimulatedTrainer, "export", full_at_first)
    async with prl.Pipeline(saved_every_second_step(), run_dir=tmp_path / "run") as pipeline:
        await take_steps(pipeline, NUM_STEPS)
    assert tries == [NUM_STEPS] * 3
    assert (tmp_path / "run" / "export" / "simulated-weights.txt").exists()


@in_virtual_time
async def test_generation_goes_on_while_training_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams get tokens while a checkpoint is written, and for how long training stood still is stated."""
    sampled, saving = list[float](), list[float]()
    save, generate = SimulatedTrainer.save, SimulatedEngine.generate
    clock = asyncio.get_running_loop().time

    async def slow(self: SimulatedTrainer, folder: Path, state: dict[str, object]) -> None:
        saving.append(clock())
        await asyncio.sleep(1.5)
        await save(self, folder, state)

    async def noted(self: SimulatedEngine, *arguments: Any, **options: Any) -> Any:
        async for chunk in generate(self, *arguments, **options):
            sampled.append(clock())
            yield chunk

    monkeypatch.setattr(SimulatedTrainer, "save", slow)
    monkeypatch.setattr(SimulatedEngine, "generate", noted)
    run = tmp_path / "run"
    async with prl.Pipeline(saved_every_second_step(), run_dir=run) as pipeline:
        reports = await take_steps(pipeline, NUM_STEPS)
    told = [
        line["training_stood_still_s"] for line in lines(run / "events.jsonl") if line["event"] == "checkpoint"
    ]  # files take real time, which counts
    assert all(seconds >= 1.5 for seconds in told)
    assert [report.checkpoint_s for report in reports] == [0, 0, pytest.approx(told[0], abs=2e-3), 0]
    assert reports[2].time_s > reports[2].checkpoint_s
    assert any(saving[0] + 0.1 < at < saving[0] + 1.4 for at in sampled)
    assert pipeline.summary is not None
    assert (pipeline.summary.checkpoints, len(told)) == (3, 3)
    assert pipeline.summary.checkpoint_s == pytest.approx(sum(told), abs=0.01)


# ---- weights that were not proven ------------------------------------------------------------------------------------


def test_what_weights_without_proof_sampled_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A push that moved nothing ends the run; what was sampled since is counted, given up, and sampled anew."""
    run, config, load = tmp_path / "run", config_of(max_lag=2), SimulatedEngine.load
    prove = WeightSync._prove

    async def moves_nothing(self: SimulatedEngine, update: prl.types.WeightUpdate) -> None:
        before = self._weights
        await load(self, update)
        if update.version == 4:
            self._weights = before

    async def late(self: WeightSync) -> None:
        if self.version == 4:
            await asyncio.sleep(2)
        await prove(self)

    async def first() -> None:
        async with prl.Pipeline(config, run_dir=run) as pipeline:
            await take_steps(pipeline, 8)

    with monkeypatch.context() as broken:
        broken.setattr(SimulatedEngine, "load", moves_nothing)
        broken.setattr(WeightSync, "_prove", late)
        with pytest.raises(prl.PrlError, match="does not serve the trainer's weights of version 4"):
            virtual_time.run(first())
    accounts = accounts_of(run)
    num_unproven = accounts.unproven
    assert accounts.steps in {4, 5}, "the next step may train on what was sampled before"
    assert (accounts.lost, num_unproven > 0, accounts.issued_again) == ([], True, {})
    open_before = journal.read(run / "journal").ledger.open.values()
    assert any(entry.scored and entry.newest_version() == 4 for entry in open_before), "else nothing could be misused"
    assert main(["audit", str(run)]) == 0
    assert f"    of weights not proven {num_unproven:>12}\n" in capsys.readouterr().out

    start = find_start(run, config)
    assert start.issued_again == {"weights_not_proven": num_unproven}
    assert max(entry.newest_version() or 0 for entry in start.ledger.open.values()) < 4

    async def resumed() -> None:
        async with prl.Pipeline(config, run_dir=run, resume=True) as pipeline:
            await take_steps(pipeline, 8 - pipeline.step_number)

    virtual_time.run(resumed())
    accounts = accounts_of(run)
    assert (accounts.trained, accounts.lost, accounts.trained_twice, accounts.unproven) == (16, [], [], 0)
    assert accounts.issued_again == {"weights_not_proven": num_unproven}
    told = [line for line in lines(run / "events.jsonl") if line["event"] == "prompts are issued again"]
    assert [(line["reason"], line["num_prompts"]) for line in told] == [("weights_not_proven", num_unproven)]


def test_an_audit_tells_damage_from_a_torn_tail(
    crashed: tuple[Path, Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A torn tail is what a crash leaves: 0. Damage in the newest part: 1, file and place; in an older one: a note."""
    run = tmp_path / "run"
    shutil.copytree(crashed[0], run)
    older, newest = (path for _, path in journal.segments(run / "journal"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-7])
    assert (main(["audit", str(run)]), "damaged" in capsys.readouterr().out) == (0, False)
    changed = bytearray(whole)
    changed[-40] ^= 1
    newest.write_bytes(changed)
    assert main(["audit", str(run)]) == 1
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("damaged: ")]
    assert re.fullmatch(rf"damaged: {newest} is damaged after \d+ of {len(whole)} bytes: .*", line)
    assert main(["audit", str(run), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["damage"]) == 1
    newest.write_bytes(whole)
    changed = bytearray(older.read_bytes())
    changed[-40] ^= 1
    older.write_bytes(changed)
    assert main(["audit", str(run)]) == 0
    assert f"note: {older} is damaged" in capsys.readouterr().out


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Config]:
    """A run that crashed after seven steps, with checkpoints of the third and the sixth."""
    run, config = tmp_path_factory.mktemp("crashed") / "run", config_of()
    stopped_after(run, config, 7)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-000003", "step-000006"]
    return run, config


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_changed_byte_sends_the_run_to_the_checkpoint_before(
    crashed: tuple[Path, Config], data: st.DataObject
) -> None:
    """Field notes G, damaged: any byte of any file of the newest checkpoint, the marker's included, in its place."""
    run, config = crashed
    newest = run / "checkpoints" / "step-000006"
    path = data.draw(st.sampled_from(sorted(newest.iterdir())), label="file")
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1), label="at")
    try:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :])
        start = find_start(run, config)
    finally:
        path.write_bytes(whole)
    assert (start.checkpoint, list(start.skipped)) == (run / "checkpoints" / "step-000003", [newest])
    assert (start.ledger.step, len(start.batches)) == (7, 4)
    [warning] = start.warnings
    assert warning.startswith(str(newest))
    assert warning.endswith(": the run goes on from step-000003")
    assert path.name in warning


def test_a_run_over_a_damaged_checkpoint_is_the_undisturbed_one(crashed: tuple[Path, Config], tmp_path: Path) -> None:
    """It says file and reason, does the steps again, and what it keeps then does not count the damaged one."""
    run, config = tmp_path / "run", crashed[1]
    shutil.copytree(crashed[0], run)
    state = run / "checkpoints" / "step-000006" / checkpoint.STATE
    state.write_bytes(state.read_bytes()[:-1] + b"\xc1")

    async def resumed() -> None:
        async with prl.Pipeline(config, run_dir=run, resume=True) as pipeline:
            assert pipeline.step_number == 7
            await pipeline.save()
            kept = {path.name for path in (run / "checkpoints").iterdir()}
            assert kept == {"step-000003", "step-000006", "step-000007"}
            await take_steps(pipeline, 1)

    virtual_time.run(resumed())
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"step-000007", "step-000008"}
    said = [line["event"] for line in lines(run / "events.jsonl") if line["level"] == "warning"]
    assert any(
        f"{state.parent} is damaged: the contents of state.msgpack are not what was written" in each for each in said
    )
    accounts = accounts_of(run)
    assert (accounts.trained, accounts.lost, accounts.trained_twice) == (16, [], [])


def test_a_checkpoint_of_an_earlier_version_is_used(crashed: tuple[Path, Config], tmp_path: Path) -> None:
    """A marker without checksums, as they were written: its files' sizes and its state are all that is looked at."""
    run, config = tmp_path / "run", crashed[1]
    shutil.copytree(crashed[0], run)
    newest = run / "checkpoints" / "step-000006"
    marker = msgspec.json.decode((newest / checkpoint.MARKER).read_bytes())
    old = {key: marker[key] for key in ("step", "num_ranks", "files")}
    (newest / checkpoint.MARKER).write_bytes(msgspec.json.encode(old))
    assert find_start(run, config).checkpoint == newest
    state = newest / checkpoint.STATE
    state.write_bytes(b"\xc1" * state.stat().st_size)
    assert find_start(run, config).checkpoint == run / "checkpoints" / "step-000003"


def test_where_no_checkpoint_is_left_a_run_does_not_begin_anew(crashed: tuple[Path, Config], tmp_path: Path) -> None:
    """All damaged: an error with every reason, and nothing of the run is touched; a journal of all steps stands in."""
    run, config = tmp_path / "run", crashed[1]
    shutil.copytree(crashed[0], run)
    for folder in (run / "checkpoints").iterdir():
        (folder / checkpoint.STATE).write_bytes(b"")
    before = (run / "metrics.jsonl").read_bytes()

    async def resumed() -> int:
        async with prl.Pipeline(config, run_dir=run, resume=True) as pipeline:
            return pipeline.step_number

    assert journal.segments(run / "journal")[0][0] == 3
    with pytest.raises(CheckpointError, match=r"(?s)no checkpoint of this run can be used.*step-000006.*step-000003"):
        virtual_time.run(resumed())
    assert (run / "metrics.jsonl").read_bytes() == before

    young, config = tmp_path / "young", config_of(checkpoint_every=0)
    stopped_after(young, config, 2)
    (young / "checkpoints" / "step-000002").mkdir(parents=True)
    start = find_start(young, config)
    assert (start.checkpoint, start.ledger.step, len(start.batches)) == (None, 2, 2)
    assert "step-000002 is no complete checkpoint" in str(start.warnings)


def test_what_a_killed_write_left_goes_with_the_next_checkpoint(tmp_path: Path) -> None:
    """Half-written folders are ignored when a run looks for its checkpoints, and do not pile up."""
    for name in ("step-000009.partial", "step-000003.replaced"):
        (tmp_path / name).mkdir()
    target = checkpoint.step_folder(tmp_path, 10)
    (checkpoint.begin(target) / checkpoint.STATE).write_bytes(b"\x80")
    checkpoint.commit(target, step=10, num_ranks=1)
    assert checkpoint.latest(tmp_path, verified=True) == (target, {})
    assert checkpoint.keep_newest(tmp_path, 2) == 10
    assert [path.name for path in tmp_path.iterdir()] == ["step-000010"]
