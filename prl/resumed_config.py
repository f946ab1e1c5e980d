"""A run that is resumed with another configuration: what changed, and which changes would make it another run.

- The weights, the order of the prompts and what a prompt's id stands for are the run's own: keys that decide these are
  refused, since the checkpoint would not fit, or prompts be trained twice or never. Whoever knows better says so
  (``--accept-changes``).
- Everything else may change between two parts of a run (a learning rate, a deadline, the number of engines), and each
  change is said with its old and new value.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from prl.config import Config
from prl.errors import ConfigError
from prl.run_folder import Summary
from prl.settings import flat, to_toml_without_secrets
from prl.trainer import checkpoint

OWN = {
    "model": "the run's weights are of that model",
    "seed": "it draws the order of the prompts",
    "data": "a prompt is known by its place in that data",
    "lora.rank": "the run's adapters have that rank",
    "lora.alpha": "the run's adapters count that much",
    "lora.target_modules": "the run's adapters are in these layers",
    "trainer.kind": "the run's checkpoints are of that kind",
}
"""Keys that make a run what it is, tables with all their keys, and why."""
SET_ASIDE = {"eval.path", "eval.split", "eval.num_samples"}
"""Keys that decide which rows of a training file are held out."""
PASSED_OVER = ("data.curriculum.", "data.filter.min_tokens", "data.filter.max_tokens")
"""Keys that decide which places in the data are passed over, and not what is found there."""
FREE = {"run.name", "data.system"}
"""Keys that change nothing of it: ``data.system`` is put before prompts, which stay the same."""


class Change(NamedTuple):
    """One key whose value is another one."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.old)} -> {_shown(self.new)}"


def check_changes(run_dir: Path, config: Config, *, accept: bool) -> list[str]:
    """What differs from the configuration that the run in ``run_dir`` had, one warning for people, or none. Blocking.

    Raises:
        ConfigError: it would be another run, and ``accept`` does not say that it is meant.
    """
    try:
        before = tomllib.loads((run_dir / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [f"{run_dir / 'config.toml'} cannot be read, so nobody knows what changed: {error}"]
    found = changes(before, tomllib.loads(to_toml_without_secrets(config)))
    reasons = {change: why for change in found if (why := _why_own(change.key, config))}
    if reasons and not accept:
        said = "\n".join(f"{change} ({why})" for change, why in reasons.items())
        raise ConfigError(
            f"{run_dir} is another run than this configuration describes:\n{said}\n"
            "set the old values, or begin another run with another --run-dir, or go on all the same with"
            " --accept-changes"
        )
    told = [str(change) for change in found if change.key not in FREE]
    return [f"the run goes on with another configuration: {'; '.join(told)}"] if told else []


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """The keys whose values differ; None where there is none. A key that only one side knows counts."""
    old, new = dict(flat(before)), dict(flat(after))
    keys = [*new, *(key for key in old if key not in new)]
    return [Change(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def nothing_left(run_dir: Path, num_steps: int) -> str | None:
    """What to say where a resume would start everything and find nothing to do; None where there is something.

    A run whose last save, export or evaluation is missing is not at its end, whatever its steps. Blocking.
    """
    folder = checkpoint.latest(run_dir / "checkpoints").folder
    try:
        summary = msgspec.json.decode((run_dir / "summary.json").read_bytes(), type=Summary)
    except (OSError, msgspec.DecodeError):
        return None
    if folder is None or checkpoint.read_marker(folder).step != summary.steps or summary.steps < num_steps:
        return None
    if summary.steps == num_steps and summary.status == "done":
        return f"{run_dir} is done: all {num_steps} steps (run.num_steps). Raise that to train it further."
    if summary.steps > num_steps and summary.status in {"done", "stopped"}:
        return (
            f"{run_dir} has done {summary.steps} steps, more than run.num_steps = {num_steps}: nothing is left to do."
        )
    return None


def _why_own(key: str, config: Config) -> str | None:
    if key in SET_ASIDE and (config.data.path is not None or config.data.sources):
        return "it decides which rows of the training file are held out"
    if key in FREE or key.startswith(PASSED_OVER):
        return None
    return next((why for own, why in OWN.items() if key == own or key.startswith(f"{own}.")), None)


def _shown(value: Any) -> str:
    return "unset" if value is None else f"{value!r:.80}"
