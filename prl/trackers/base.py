"""What a tracker is: four methods, called in one process that does nothing else, and so free to block.

- ``open`` comes first and ``finish`` last; a process that was killed in between is followed by another that opens the
  same run again.
- Steps come in order within the metrics and within the evaluations, each at most once unless the tracker said in
  ``Opened.last_step`` that it lost them.
- An exception means: not now. The call comes again, after a pause.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import msgspec

from prl.config_trackers import TrackerConfig
from prl.errors import MissingExtraError, PluginError
from prl.hidden import with_secrets
from prl.plugins import Registry, bind_options
from prl.settings import flat

METHODS = ("open", "log", "flush", "finish")
_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}
REGISTRY = Registry(
    "tracker",
    "prl.trackers",
    {
        "tensorboard": "prl.trackers.tensorboard:TensorBoard",
        "wandb": "prl.trackers.wandb:WeightsAndBiases",
        "mlflow": "prl.trackers.mlflow:MLflow",
        "trackio": "prl.trackers.trackio:Trackio",
    },
)


class TrackedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run whose curves are drawn."""

    run_dir: Path
    name: str
    config: dict[str, Any]
    """Every key that the run has, nested as in the TOML, secrets hidden."""
    id: str
    """What ``open`` gave for this run before; empty the first time."""
    first_step: int
    """Steps that were done when this part of the run began: what was sent of later ones is not this run's any more."""
    sent_step: int
    """The last step that was sent, in any part; -1 where none was."""

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """``config`` as one flat table, ``engine.count`` to 2; lists of tables by number (``rewards.0.name``)."""
        return dict(flat(self.config))


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A run at the tracker."""

    id: str
    """By which it is found again."""
    last_step: int
    """The last step that is there, and stays: nothing up to it is sent again. A tracker that can take back what it got
    says ``run.first_step``, one that cannot ``run.sent_step``."""
    url: str = ""
    """Where people see it, if it has a place."""


class Tracker(Protocol):
    """See the module."""

    def open(self, run: TrackedRun) -> Opened:
        """Begin the curves of ``run`` and note its hyperparameters, or go on with those of ``run.id``."""
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Draw these, by name (``train/loss``), at ``step``; all are finite."""
        ...

    def flush(self) -> None:
        """Make sure, as far as can be, that what was logged outlives this process."""
        ...

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run has ended; ``summary`` is its ``summary.json`` (``run_folder.Summary``)."""
        ...


def check_trackers(trackers: list[TrackerConfig]) -> None:
    """Refuse what cannot work, before anything is started.

    Raises:
        PluginError: there is no such tracker, it has another shape, or not these options.
        MissingExtraError: its package is not installed.
        ConfigError: a variable that an option names is not set.
    """
    for tracker in trackers:
        _check(tracker)


def _check(config: TrackerConfig) -> None:
    target = REGISTRY.find(config.name)
    package = _PACKAGES.get(config.name)
    if package is not None and find_spec(package) is None:
        raise MissingExtraError(package, "trackers", f"the tracker {config.name!r}")
    missing = [name for name in METHODS if not callable(getattr(target, name, None))]
    if not inspect.isclass(target) or missing:
        lacks = f"it lacks {', '.join(missing)}" if missing else "it is none"
        raise PluginError(f"the tracker {config.name!r} must be a class with {', '.join(METHODS)}: {lacks}")
    bind_options("tracker", config.name, target, _given(config))


def make_tracker(config: TrackerConfig) -> Tracker:
    """The tracker, not opened. Raises as ``check_trackers`` does."""
    target = REGISTRY.find(config.name)
    made: Tracker = target(**bind_options("tracker", config.name, target, _given(config)))
    return made


def _given(config: TrackerConfig) -> dict[str, Any]:
    options: dict[str, Any] = with_secrets(config.options, f"the tracker {config.name!r}: options")
    return options


def labels_of(trackers: list[TrackerConfig]) -> list[str]:
    """What each is called in files and messages: its name, with a number from the second of a name on.

    So one that is added before a run is resumed takes no other's curves.
    """
    plain = ["".join(c if c.isalnum() else "-" for c in tracker.name) for tracker in trackers]
    before = [plain[:at].count(name) for at, name in enumerate(plain)]
    return [f"{name}-{count + 1}" if count else name for name, count in zip(plain, before, strict=True)]
