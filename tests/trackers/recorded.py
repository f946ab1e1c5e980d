"""A run folder as a run leaves it, written by hand, with steps and evaluations as they are asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prl.config import Config
from prl.config_trackers import TrackerConfig
from prl.run_folder import EVALUATIONS, RunFolder
from prl.settings import to_toml_without_secrets
from tests.test_pipeline import simulated


def config_with(*trackers: TrackerConfig, **changes: Any) -> Config:
    """A small run that these trackers follow."""
    return simulated(trackers=list(trackers), **changes)


def begin(folder: Path, config: Config, first_step: int = 0) -> None:
    """What a run does before its first step, or when it is resumed after ``first_step``."""
    RunFolder(folder).open(to_toml_without_secrets(config), first_step)


def add_steps(folder: Path, steps: Iterable[int], *, loss: float = 0.5) -> None:
    """Lines of ``metrics.jsonl`` and, for even steps, of ``evaluations.jsonl``."""
    with (folder / "metrics.jsonl").open("a") as metrics, (folder / EVALUATIONS).open("a") as evaluations:
        for step in steps:
            line = {
                "step": step,
                "version": step,
                "loss": loss + step,
                "ess": None,
                "reward_mean": step / 10,
                "lag_max": 1,
            }
            metrics.write(json.dumps({**line, "dropped_timeout": 2, "gen_tok_s": 100.0}) + "\n")
            if step % 2 == 0:
                at = {"4": {"mean": 0.75, "low": 0.5, "high": 1.0}}
                found = {"step": step, "complete": True, "version": step, "reward_mean": step / 100, "pass_at": at}
                evaluations.write(json.dumps({**found, "interval": [0.0, 1.0]}) + "\n")


def end(folder: Path, status: str = "done", **more: Any) -> None:
    """``summary.json``."""
    (folder / "summary.json").write_text(json.dumps({"status": status, "goodput": 0.75, "error": None, **more}))
