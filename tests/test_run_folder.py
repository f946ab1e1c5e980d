"""The run folder: where a run goes, what it leaves, and how a resumed one finds its place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.metrics import StepReport
from prl.run_folder import RunFolder, Summary, Totals
from tests.factories import make_completion, make_group


def report(step: int = 1, **changes: Any) -> StepReport:
    """The numbers of a step."""
    numbers = {
        field.name: 0 if field.type is int else 0.0
        for field in msgspec.structs.fields(StepReport)
        if field.name not in {"dropped", "rewards"}
    }
    return StepReport(**{**numbers, "step": step, "version": step, "dropped": {}, "rewards": {}, **changes})


def lines(path: Path) -> list[Any]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def steps(path: Path) -> list[int]:
    """The step of each line."""
    return [line["step"] for line in lines(path)]


def breaks(*_: object) -> None:
    """Stand in for a system call at which the run broke off."""
    raise OSError("broken off")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run folder, opened."""
    made = RunFolder(tmp_path / "runs" / "run")
    made.open("", 0)
    return made


# ---- what a run leaves -----------------------------------------------------------------------------------------------


def test_the_configuration_is_kept_as_it_is(tmp_path: Path) -> None:
    """The resolved configuration is written in UTF-8, whatever the system's encoding; folders are made on the way."""
    path = tmp_path / "a" / "b"
    RunFolder(path).open('[run]\nname = "Übung"\n', 0)
    assert (path / "config.toml").read_bytes() == '[run]\nname = "Übung"\n'.encode()


def test_each_step_is_a_line(folder: RunFolder) -> None:
    """Steps are appended in order, flat, with their drops; a number that is not finite is null."""
    folder.write_metrics(report(1, reward_mean=0.5, dropped={"timeout": 2}))
    folder.write_metrics(report(2, loss=math.nan))
    first, second = lines(folder.path / "metrics.jsonl")
    assert (first["step"], first["reward_mean"], first["dropped_timeout"]) == (1, 0.5, 2)
    assert (second["step"], second["loss"]) == (2, None)


def test_each_completion_is_a_line(folder: RunFolder) -> None:
    """A completion's line has its text for people and everything that a check of its tokens needs."""
    completion = make_completion([7, 8], logprobs=[-0.12345678, -1.0], versions=[3, 4], finish="length")
    folder.write_samples(5, [make_group(2, [0.5], [completion]), make_group(9, [1.0, 0.0])])
    first, *others = lines(folder.path / "samples.jsonl")
    assert first == {
        "step": 5,
        "group": 2,
        "member": 0,
        "prompt_id": 2,
        "prompt": "prompt 2",
        "completion": "7 8",
        "finish": "length",
        "reward": 0.5,
        "parts": {},
        "part_messages": {},
        "prompt_token_ids": [102, 1],
        "token_ids": [7, 8],
        "versions": [3, 4],
        "logprobs": [-0.123457, -1.0],
        "trained_logprobs": None,
        "advantages": None,
    }
    assert [(line["prompt_id"], line["reward"]) for line in others] == [(9, 1.0), (9, 0.0)]


def test_the_summary_is_whole_or_the_one_before(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field notes G, half-written: a summary whose writing breaks off leaves the former one."""
    folder.write_summary(Summary(status="stopped", steps=3))
    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", breaks)
        with pytest.raises(OSError, match="broken off"):
            folder.write_summary(Summary(status="done", steps=9))
    assert json.loads((folder.path / "summary.json").read_text())["steps"] == 3
    folder.write_summary(Summary(status="done", steps=9, reward_last=math.nan))
    summary = json.loads((folder.path / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["reward_last"]) == ("done", 9, None)
    assert sorted(path.name for path in folder.path.iterdir()) == ["config.toml", "summary.json"]


def test_the_keys_of_a_summary() -> None:
    """The documented keys and no other."""
    assert list(Summary.__struct_fields__) == [
        *("status", "steps", "samples", "tokens_generated", "tokens_trained", "goodput", "reward_first"),
        *(
            "reward_last",
            "eval_before",
            "eval_after",
            "eval_is_accuracy",
            "evals_incomplete",
            "engine_restarts",
            "trainer_restarts",
            "checkpoints",
            "checkpoint_s",
            "lag_max",
            "lag_mean",
            "ess_mean",
            "num_engines",
        ),
        *("num_versions_max_in_sample", "wall_s", "error"),
    ]


# ---- totals ----------------------------------------------------------------------------------------------------------


def test_totals_by_hand() -> None:
    """Sums, means over steps, maxima, and the first and last reward."""
    totals = Totals(eval_before=0.25, eval_is_accuracy=True)
    numbers = {"samples": 8, "tokens_generated": 100, "tokens_trained": 80, "time_s": 2.0}
    totals.add(
        report(1, **numbers, reward_mean=0.5, lag_max=1, lag_mean=0.5, ess=1.0, versions_max=2, engine_restarts=3)
    )
    second = {"reward_mean": 0.75, "evals_incomplete": 1, "lag_max": 3, "lag_mean": 1.5, "ess": 0.5}
    totals.add(report(2, **numbers, **second, versions_max=4))
    third = {"engine_restarts": 2, "trainer_restarts": 1, "checkpoint_s": 1.25}
    third |= {"reward_mean": 0.6, "evals_incomplete": 2, "lag_max": 2, "lag_mean": 1.0, "ess": 0.6}
    totals.add(report(3, **numbers, **third, versions_max=1))
    assert msgspec.structs.asdict(totals.summary("done", num_engines=2, eval_after=0.9, error=None)) == {
        "status": "done",
        "steps": 3,
        "samples": 24,
        "tokens_generated": 300,
        "tokens_trained": 240,
        "goodput": 0.8,
        "reward_first": 0.5,
        "reward_last": 0.6,
        "eval_before": 0.25,
        "eval_after": 0.9,
        "eval_is_accuracy": True,
        "evals_incomplete": 3,
        "engine_restarts": 5,
        "trainer_restarts": 1,
        "checkpoints": 0,
        "checkpoint_s": 1.25,
        "lag_max": 3,
        "lag_mean": 1.0,
        "ess_mean": pytest.approx(0.7),
        "num_engines": 2,
        "num_versions_max_in_sample": 4,
        "wall_s": 6.0,
        "error": None,
    }


def test_a_run_without_a_step_has_a_summary() -> None:
    """A run that failed before its first step divides by nothing; what was never measured is absent."""
    summary = Totals().summary("failed", num_engines=1, eval_after=None, error="EngineError: no")
    assert (summary.goodput, summary.lag_mean, summary.ess_mean, summary.reward_first) == (0.0, 0.0, None, None)


def test_totals_go_on_after_a_resume() -> None:
    """Totals that travelled through a checkpoint's JSON go on as if there had been no break, skipped steps or not."""
    reports = [report(step, reward_mean=step / 8, ess=math.nan if step == 2 else 0.5) for step in range(1, 7)]
    whole, first = Totals(), Totals()
    for step in reports:
        whole.add(step)
    for step in reports[:3]:
        first.add(step)
    resumed = msgspec.json.decode(msgspec.json.encode(first), type=Totals)
    for step in reports[3:]:
        resumed.add(step)
    assert resumed == whole
    assert resumed.summary("done", num_engines=1, eval_after=None, error=None).ess_mean == 0.5


# ---- resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last_step", [0, 1, 3, 5, 9])
def test_repeated_steps_are_cut(folder: RunFolder, last_step: int) -> None:
    """Field notes G, metrics dropped after resume: lines after the checkpoint go, so no step stands there twice."""
    for step in range(1, 6):
        folder.write_metrics(report(step))
        folder.write_samples(step, [make_group(0, [1.0, 0.0])])
    RunFolder(folder.path).open("", last_step)
    kept = [step for step in range(1, 6) if step <= last_step]
    assert steps(folder.path / "metrics.jsonl") == kept
    assert steps(folder.path / "samples.jsonl") == [step for step in kept for _ in range(2)]
    assert not list(folder.path.glob("*.part"))


@settings(deadline=None)
@given(st.integers(0, 400))
def test_a_line_that_was_cut_short_is_dropped(tmp_path_factory: pytest.TempPathFactory, num_bytes: int) -> None:
    """Field notes G, half-written: wherever a crash broke the file off, whole lines stay and the next starts anew."""
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.open("", 0)
    for step in (1, 2, 3):
        folder.write_samples(step, [make_group(0, [1.0], [make_completion([7])])])
    path = folder.path / "samples.jsonl"
    data = path.read_bytes()[:num_bytes]
    path.write_bytes(data)
    folder.open("", 9)
    assert steps(path) == list(range(1, 1 + data.count(b"\n")))
    folder.write_samples(9, [make_group(0, [1.0])])
    assert steps(path)[-1] == 9


@pytest.mark.parametrize("garbage", [b"\0" * 100 + b"\n", b"[1]\n", b'{"no": "step"}\n', b"\xff\xfe\n", b"\n"])
def test_a_line_that_is_none_is_dropped(folder: RunFolder, garbage: bytes) -> None:
    """A block of zeros, as a power cut leaves it, or any other line that is no step's, costs only itself."""
    path = folder.path / "metrics.jsonl"
    path.write_bytes(b'{"step":1}\n' + garbage + b'{"step":2}\n')
    folder.open("", 9)
    assert steps(path) == [1, 2]


def test_a_crash_while_cutting_loses_nothing(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file stands until the cut one is whole on disk."""
    for step in (1, 2):
        folder.write_metrics(report(step))
    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", breaks)
        with pytest.raises(OSError, match="broken off"):
            folder.open("", 1)
    assert steps(folder.path / "metrics.jsonl") == [1, 2]
    folder.open("", 1)
    assert steps(folder.path / "metrics.jsonl") == [1]
