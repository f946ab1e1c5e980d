"""Runs resumed with another configuration: what is refused, what is said, and when there is nothing to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import prl
from prl import virtual_time
from prl.config import Config, DataConfig, PipelineConfig, RewardConfig, RunConfig, TrainerConfig
from prl.config_eval import EvalConfig
from prl.resumed_config import changes, check_changes, nothing_left
from prl.run_folder import RunFolder
from prl.settings import to_toml_without_secrets
from tests.test_pipeline import lines, simulated, take_steps


def begun(path: Path, **differences: Any) -> Path:
    """The folder of a run that had another configuration."""
    RunFolder(path).open(to_toml_without_secrets(simulated(**differences)), 0)
    return path


@pytest.mark.parametrize(
    ("differences", "line"),
    [
        ({"model": "builtin:other"}, "model: 'builtin:other' -> 'builtin:tiny-math' (the run's weights are of"),
        ({"seed": 3}, "seed: 3 -> 0 (it draws the order of the prompts)"),
        ({"data": DataConfig(level=2)}, "data.level: 2 -> 1 (a prompt is known by its place in that data)"),
        ({"data": DataConfig(source="jsonl", path="a.jsonl")}, "data.path: 'a.jsonl' -> unset"),
        ({"trainer": TrainerConfig()}, "trainer.kind: 'fsdp' -> 'simulated'"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, differences: dict[str, Any], line: str) -> None:
    """A key that makes the run what it is: the old and the new value, why, what to do; and it can be meant."""
    run = begun(tmp_path / "run", **differences)
    with pytest.raises(prl.ConfigError) as caught:
        check_changes(run, simulated(), accept=False)
    assert line in str(caught.value)
    assert str(caught.value).endswith("go on all the same with --accept-changes")
    assert line.split(" (", maxsplit=1)[0] in check_changes(run, simulated(), accept=True)[0]


def test_what_may_change_is_said(tmp_path: Path) -> None:
    """Every other key is one part of one warning, tables in lists by their index; the same configuration is silence."""
    run = begun(tmp_path / "run", rewards=[RewardConfig(name="test-length", weight=2.0)], pipeline=PipelineConfig())
    (warning,) = check_changes(run, simulated(), accept=False)
    assert warning.startswith("the run goes on with another configuration: ")
    for change in ("pipeline.max_lag: unset -> 1", "pipeline.group_size: 8 -> 2", "rewards.0.weight: 2.0 -> 1.0"):
        assert change in warning
    assert check_changes(begun(tmp_path / "same"), simulated(), accept=False) == []
    (tmp_path / "same" / "config.toml").write_text("= 1")
    assert (
        "cannot be read, so nobody knows what changed" in check_changes(tmp_path / "same", simulated(), accept=False)[0]
    )


def test_rows_that_are_held_out_are_part_of_the_data(tmp_path: Path) -> None:
    """How many rows of a training file are set aside decides which prompt an id is; generated problems have a split."""
    data = DataConfig(source="jsonl", path="a.jsonl")
    run = begun(tmp_path / "file", data=data, eval=EvalConfig(num_samples=2))
    with pytest.raises(prl.ConfigError, match=r"eval\.num_samples: 2 -> 8"):
        check_changes(run, simulated(data=data), accept=False)
    run = begun(tmp_path / "generated", eval=EvalConfig(num_samples=2))
    assert "eval.num_samples: 2 -> 8" in check_changes(run, simulated(), accept=False)[0]


def test_keys_that_one_side_knows_count() -> None:
    """A key that came or went with a version of prl is a change from, or to, nothing."""
    found = changes({"a": {"old": 1, "same": [1, 2]}}, {"a": {"new": 2, "same": [1, 2]}})
    assert [str(change) for change in found] == ["a.new: unset -> 2", "a.old: 1 -> unset"]


def run_to(path: Path, config: Config, steps: int, *, resume: bool = False) -> None:
    """A simulated run of so many more steps."""

    async def main() -> None:
        async with prl.Pipeline(config, run_dir=path, resume=resume) as pipeline:
            await take_steps(pipeline, steps)

    virtual_time.run(main())


def test_a_run_that_is_done_has_nothing_left(tmp_path: Path) -> None:
    """At its end, or beyond a lowered ``run.num_steps``: said at once. Stopped, cut off or raised: work is left."""
    run = tmp_path / "run"
    run_to(run, simulated(), 3)
    assert nothing_left(run, 4) is None
    assert nothing_left(run, 3) is None  # it was stopped before its end, and not evaluated
    assert nothing_left(run, 2) == f"{run} has done 3 steps, more than run.num_steps = 2: nothing is left to do."
    run_to(run, simulated(), 1, resume=True)
    assert nothing_left(run, 4) == f"{run} is done: all 4 steps (run.num_steps). Raise that to train it further."
    assert nothing_left(run, 5) is None
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "status": "failed"}))
    assert nothing_left(run, 4) is None
    (run / "summary.json").unlink()
    assert nothing_left(run, 4) is None


def test_a_resumed_run_says_what_changed(tmp_path: Path) -> None:
    """The warning is among the run's events; a refusal leaves the run as it was."""
    run, config = tmp_path / "run", simulated()
    run_to(run, config, 2)
    before = (run / "config.toml").read_bytes()
    other = msgspec.structs.replace(config, seed=5, run=RunConfig(num_steps=3))
    with pytest.raises(prl.ConfigError, match="seed: 0 -> 5"):
        run_to(run, other, 1, resume=True)
    assert (run / "config.toml").read_bytes() == before
    run_to(run, msgspec.structs.replace(config, run=RunConfig(num_steps=3)), 1, resume=True)
    assert any("run.num_steps: 4 -> 3" in line["event"] for line in lines(run / "events.jsonl"))
