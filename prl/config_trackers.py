"""The table of a tracker, ``[[trackers]]``."""

from __future__ import annotations

from typing import Any

from msgspec import field

from prl.config_fields import PositiveFloat, Table


class TrackerConfig(Table, frozen=True, kw_only=True):
    """``[[trackers]]``: where the curves of a run are shown besides its own folder. Extra: ``trackers``.

    Each has a process of its own that reads ``metrics.jsonl`` and ``evaluations.jsonl``: one that fails, is slow or
    hangs never holds up the run, and goes on from where it was. Which run it is there (its id), and how far it is,
    stands in ``trackers/NAME.json`` in the run folder, so that a resumed run continues the same curves.

    Keys and passwords come from the environment, by the variables that each tracker knows (``WANDB_API_KEY``,
    ``MLFLOW_TRACKING_TOKEN``, ``HF_TOKEN``); never from here.
    """

    name: str
    """``tensorboard``, ``wandb``, ``mlflow``, ``trackio``, an entry point in group ``prl.trackers``, or
    ``package.module:name`` (a class with the methods of ``prl/trackers/base.py``)."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the tracker, documented at its class. ``"env:NAME"`` is what that variable holds."""
    timeout_s: PositiveFloat = 120.0
    """A tracker that takes longer for one call, its start among them, hangs: its process is killed and started again.
    The trackers' own limits are below this."""
    close_timeout_s: PositiveFloat = 30.0
    """How long the end of the run waits for what is still to be sent. What is left then is counted, and said."""
