"""Which trackers there are, what is refused before a run starts, and how curves are named."""

from __future__ import annotations

from pathlib import Path

import pytest

import prl
from prl.check import cross_check
from prl.config_trackers import TrackerConfig
from prl.errors import ConfigError, MissingExtraError, PluginError
from prl.settings import load_config, to_toml
from prl.trackers import base
from prl.trackers.base import TrackedRun, check_trackers, labels_of
from prl.trackers.names import curves_of_evaluation, curves_of_step
from tests.trackers.recorded import config_with


@pytest.mark.parametrize(
    ("tracker", "message"),
    [
        (TrackerConfig(name="tensorbord"), "no tracker 'tensorbord' .did you mean 'tensorboard'.*package.module:name"),
        (TrackerConfig(name="wandb", options={"projct": "x"}), "no option 'projct' .did you mean 'project'"),
        (TrackerConfig(name="wandb", options={"mode": "of"}), "option 'mode': Invalid enum value 'of'"),
        (TrackerConfig(name="tests.trackers.fakes:Shapeless"), "must be a class with .*: it lacks open, flush, finish"),
        (TrackerConfig(name="tests.trackers.fakes:notes"), "must be a class"),
        (TrackerConfig(name="tests.trackers.fakes:Notebook"), "needs the option 'path'"),
    ],
)
def test_what_cannot_work_is_an_error_before_anything_starts(
    tracker: TrackerConfig, message: str, tmp_path: Path
) -> None:
    """By the pipeline, which has then made no folder."""
    with pytest.raises(PluginError, match=message):
        prl.Pipeline(config_with(tracker), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option, and the variable."""
    monkeypatch.delenv("MY_PROJECT", raising=False)
    with pytest.raises(ConfigError, match="MY_PROJECT is not set"):
        check_trackers([TrackerConfig(name="wandb", options={"project": "env:MY_PROJECT"})])


def test_a_package_that_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each built-in tracker needs its own."""
    monkeypatch.setattr(base, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"the tracker 'mlflow' needs the package 'mlflow'.*\[trackers\]"):
        check_trackers([TrackerConfig(name="mlflow")])


def test_a_secret_may_not_stand_in_the_configuration() -> None:
    """Where the tracker's process could not read it either; a reference may."""
    options = {"api_token": "sesame", "headers": {"x": "env:X"}, "path": "p"}
    tracker = TrackerConfig(name="tests.trackers.fakes:Notebook", options=options)
    with pytest.raises(ConfigError, match=r"^trackers.0.options.api_token holds a secret: .*'env:NAME'[^\n]*$"):
        cross_check(config_with(tracker))


def test_the_table_loads_as_it_was_written(tmp_path: Path) -> None:
    """``[[trackers]]``, several of one kind too, which have labels of their own."""
    config = config_with(
        TrackerConfig(name="wandb"), TrackerConfig(name="tensorboard"), TrackerConfig(name="wandb", timeout_s=5.0)
    )
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config))
    assert load_config(path) == config
    assert labels_of(config.trackers) == ["wandb", "tensorboard", "wandb-2"]


def test_hyperparameters_are_flat() -> None:
    """Tables by their path, lists of tables by number."""
    config = {"engine": {"count": 2}, "rewards": [{"name": "math", "options": {}}], "betas": [0.9, 0.95]}
    run = TrackedRun(run_dir=Path(), name="r", config=config, id="", first_step=0, sent_step=-1)
    flat = {"engine.count": 2, "rewards.0.name": "math", "rewards.0.options": {}, "betas": [0.9, 0.95]}
    assert run.hyperparameters == flat


def test_curves_are_in_sections() -> None:
    """By what they tell; what is no number has none."""
    line = {"step": 3, "loss": 1.5, "reward_mean": 0.5, "reward_math_latency_s": 2.0, "dropped_timeout": 1}
    assert curves_of_step({**line, "lag_max": 2, "gen_tok_s": 7.0, "ess": None, "lr": float("nan")}) == {
        "train/loss": 1.5,
        "reward/mean": 0.5,
        "reward/math_latency_s": 2.0,
        "dropped/timeout": 1.0,
        "on_policy/lag_max": 2.0,
        "speed/gen_tok_s": 7.0,
    }
    assert curves_of_evaluation({"step": 4, "complete": False, "num_answers": 3}) == {}
    whole = {"step": 4, "complete": True, "is_accuracy": True, "reward_mean": 0.5}
    assert curves_of_evaluation(whole) == {"eval/reward_mean": 0.5}
