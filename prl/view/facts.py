"""What a run was told to do and with what: configuration beside its defaults, versions, how it ended or is now."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from prl.config import Config, RewardConfig
from prl.hidden import without_secrets
from prl.settings import flat
from prl.view.files import read_small

_REWARD = re.compile(r"rewards\.\d+\.(.+)")


class Setting(msgspec.Struct, frozen=True):
    """One key of the resolved configuration."""

    key: str
    value: Any
    default: Any
    """None: it has none."""
    differs: bool


def settings(run_dir: Path) -> list[Setting]:
    """Every key of the run's ``config.toml``, in its order; none where it cannot be read.

    Secrets, which a run never writes down, are hidden all the same: the file may be another's.
    """
    try:
        tree = tomllib.loads(read_small(run_dir / "config.toml").decode())
    except ValueError:
        return []
    defaults, of_reward = _defaults()
    found = []
    for key, value in flat(without_secrets(tree)):
        within = _REWARD.fullmatch(key)
        known = of_reward if within else defaults
        default = known.get(within[1] if within else key)
        found.append(Setting(key, value, default, value != default))
    return found


def versions(run_dir: Path) -> dict[str, Any]:
    """``versions.json``: of prl and what it runs with; empty for runs that wrote none."""
    return _object(run_dir / "versions.json")


def summary(run_dir: Path) -> dict[str, Any] | None:
    """``summary.json``: how the run ended; None while it goes on, or where it has not said."""
    return _object(run_dir / "summary.json") or None


def num_steps(run_dir: Path) -> int | None:
    """Steps that the run was to make."""
    try:
        told = tomllib.loads(read_small(run_dir / "config.toml").decode())["run"]["num_steps"]
    except (ValueError, KeyError, TypeError):
        return None
    return told if isinstance(told, int) else None


def _object(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(read_small(path), type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _defaults() -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the whole, whose model has none, and of one reward, whose name has none."""
    whole, reward = (
        dict(flat(msgspec.json.decode(msgspec.json.encode(table))))  # with lists where TOML has them
        for table in (Config(model=""), RewardConfig(name=""))
    )
    del whole["model"], reward["name"]
    return whole, reward
