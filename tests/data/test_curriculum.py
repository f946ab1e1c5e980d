"""The curriculum: what the model solves too often or too seldom rests, by one rule, also over kills and resumes."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import prl
from prl import journal, virtual_time
from prl.config import Config, PipelineConfig, RewardConfig, RunConfig
from prl.config_data import CurriculumConfig, DataConfig
from prl.data.curriculum import Curriculum, Rates
from prl.data.mix import Place
from prl.journal_segment import Segment
from prl.ledger import Ledger
from prl.models import resolve_model
from prl.prompts import open_source
from prl.records import Admitted, Left, Measured
from prl.recovery import find_start
from prl.tokenizer import Tokenizer
from prl.types import Prompt
from tests.factories import make_group
from tests.test_pipeline import simulated
from tests.test_recovery import accounts_of, killed_after
from tests.tiny_tokenizers import save_tokenizer

EASY, HARD, NUM_ROWS = {0, 1, 2}, {3, 4}, 10


@prl.reward("test-by-row")
async def by_row(completion: prl.Completion, prompt: prl.Prompt) -> float:
    """Always right on the easy rows, never on the hard ones, half of the time on the others."""
    row = int(prompt.fields["answer"])
    return float(row in EASY or (row not in HARD and completion.token_ids[0] % 2 == 0))


def config_of(folder: Path, *, num_steps: int = 15, checkpoint_every: int = 5, **curriculum: Any) -> Config:
    """A simulated run over ten rows."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"q{row}", "answer": str(row)}) + "\n" for row in range(NUM_ROWS)))
    config = simulated(
        run=RunConfig(num_steps=num_steps, checkpoint_every=checkpoint_every, keep_checkpoints=2),
        pipeline=PipelineConfig(max_lag=1, groups_per_step=2, group_size=4),
        data=DataConfig(
            source="jsonl", path=str(path), curriculum=CurriculumConfig(**{"band": (0.01, 0.99), **curriculum})
        ),
        rewards=[RewardConfig(name="test-by-row")],
    )
    return msgspec.structs.replace(config, eval=msgspec.structs.replace(config.eval, num_samples=0))


@pytest.mark.parametrize(
    ("rate", "epochs"),
    [(1.0, {1: "too_easy", 2: "too_easy"}), (0.0, {1: "too_hard", 2: "too_hard"}), (0.2, {}), (0.8, {})],
)
def test_the_rule(rate: float, epochs: dict[int, str]) -> None:
    """Outside the band a row rests in as many epochs as configured, at its bounds it does not, and then it is back."""
    rates: Rates = {7: (0, rate)}
    curriculum = Curriculum(CurriculumConfig(band=(0.2, 0.8), rest_epochs=2), rates)
    assert {epoch: why for epoch in range(5) if (why := curriculum.rests(7, epoch))} == epochs
    assert curriculum.rests(8, 1) is None, "what was never measured is asked"


def test_a_group_is_measured_by_the_reward_that_passes() -> None:
    """The share of completions at or above ``pass_reward``; nothing without a band."""
    group = make_group(5, [0.4, 0.5, 1.0, 0.0])
    place = Place(source=0, row=2, epoch=3)
    measured = Curriculum(CurriculumConfig(band=(0, 1), pass_reward=0.5), {}).measure(group, 2, place)
    assert measured == Measured(prompt_id=5, row=2, epoch=3, solve_rate=0.5)
    assert Curriculum(CurriculumConfig(), {}).measure(group, 2, place) is None


def test_the_source_asks_again_when_everything_rests(tmp_path: Path) -> None:
    """A run whose rows are all too easy goes through its resting epochs and asks them again; every id is accounted."""
    config = config_of(tmp_path, rest_epochs=3)
    source = open_source(config, Tokenizer.load(save_tokenizer(tmp_path / "model")))
    rates: Rates = {}
    source.follow(rates)
    first = [source.next() for _ in range(NUM_ROWS)]
    for prompt in first:
        rates[int(prompt.fields["answer"])] = 0, 1.0
    prompt = source.next()
    assert prompt.id == 4 * NUM_ROWS
    assert source.passed_over() == [(number, "too_easy") for number in range(NUM_ROWS, 4 * NUM_ROWS)]
    assert source.passed_over() == []


def test_measurements_come_back_from_the_journal_and_the_snapshot() -> None:
    """Read back record by record or from a snapshot, the ledger knows the same; a repeated leave counts once."""
    ledger, again = Ledger(), Ledger()
    ledger.data = {"order": "x"}
    prompt = Prompt(id=1, token_ids=[1], text="", messages=[], fields={})
    for record in (
        Left(prompt_id=0, reason="too_easy"),
        Left(prompt_id=0, reason="too_easy"),
        Admitted(prompt=prompt),
        Measured(prompt_id=1, row=4, epoch=0, solve_rate=0.25),
        Measured(prompt_id=1, row=4, epoch=1, solve_rate=0.5),
    ):
        ledger.append(record)
    for record in ledger.snapshot():
        again.append(msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=type(record)))
    assert again.solve_rates == ledger.solve_rates == {4: (1, 0.5)}
    assert again.data == ledger.data
    assert again.accounts() == ledger.accounts()
    assert ledger.accounts().left == {"too_easy": 1}
    assert ledger.accounts().lost == []


def replayed(config: Config, run: Path) -> None:
    """Every decision in the journal follows from the measurements before it: read record by record, in order."""
    source = open_source(config, Tokenizer.load(resolve_model(config.model)))
    decided = Counter[str]()
    for _, path in journal.segments(run / "journal"):
        ledger = Ledger()
        for record in Segment(path).records():
            if isinstance(record, Left) and record.reason in {"too_easy", "too_hard"}:
                source.follow(ledger.solve_rates)
                assert source._at(record.prompt_id) == record.reason
                decided[record.reason] += 1
            if isinstance(record, Admitted):
                source.follow(ledger.solve_rates)
                assert isinstance(source._at(record.prompt.id), Prompt)
            ledger.append(record)
    assert decided.total() > 0


@pytest.mark.parametrize("seed", range(2))
def test_a_run_that_is_killed_decides_as_its_measurements_say(tmp_path: Path, seed: int) -> None:
    """Killed again and again at any time: no id is lost, each decision follows from the records before it."""
    random, config, run = Random(seed), config_of(tmp_path), tmp_path / "run"
    done, resume = False, False
    for _ in range(60):
        run, done = virtual_time.run(killed_after(config, run, seconds=random.uniform(1.0, 8.0), resume=resume))
        if done:
            break
        resume = (run / "config.toml").exists()
        if resume and (run / "journal").exists():
            assert accounts_of(run).lost == []
    if not done:
        virtual_time.run(killed_after(config, run, seconds=1e6, resume=resume))
    accounts = accounts_of(run)
    assert accounts.lost == []
    assert accounts.trained_twice == []
    assert set(accounts.left) <= {"too_easy", "too_hard"}
    replayed(config, run)


def test_the_rows_in_the_band_are_asked_more_often(tmp_path: Path) -> None:
    """What is always or never solved comes up half as often as the others where it rests one epoch in two."""
    config, run = config_of(tmp_path, num_steps=30, checkpoint_every=0), tmp_path / "run"
    virtual_time.run(killed_after(config, run, seconds=1e6, resume=False))
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_bytes().splitlines()]
    asked = Counter(int(sample["prompt"].partition("q")[2].partition("<")[0]) for sample in samples)
    outside = [asked[row] for row in EASY | HARD]
    inside = [asked[row] for row in range(NUM_ROWS) if row not in EASY | HARD]
    assert max(outside) < min(inside)


def test_measurements_survive_a_lost_journal(tmp_path: Path) -> None:
    """A checkpoint alone knows what was measured, and which data it was."""
    config, run = config_of(tmp_path, num_steps=10), tmp_path / "run"
    virtual_time.run(killed_after(config, run, seconds=1e6, resume=False))
    expected = find_start(run, config).ledger
    shutil.rmtree(run / "journal")
    found = find_start(run, config).ledger
    assert found.solve_rates == expected.solve_rates
    assert found.data == expected.data
    assert set(found.data) == {"order", "data"}
