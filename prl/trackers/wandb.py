"""Weights & Biases.

- The x axis of every curve is the logged ``step``, not the counter of calls that W&B keeps: metrics and evaluations may
  then come in any order, and a resumed run goes on where it was.
- The service of W&B, a process of its own, writes a moment later: a run that is killed lacks the last seconds there.
- W&B cannot take back what it got: of steps that are done again the values that came first stay.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any, Literal

from prl.trackers.base import Opened, TrackedRun

STEP = "step"
FLUSH_S = 2.0
"""Between two writes of W&B's own file: what a killed run may lack there."""


class WeightsAndBiases:
    """``name = "wandb"``; the key comes from ``WANDB_API_KEY`` or what ``wandb login`` has left.

    Options:
        project: where the run goes.
        entity: user or team; absent, your default.
        group: runs that belong together.
        tags: words to find it by.
        mode: ``offline`` writes files below the run folder, which ``wandb sync`` sends later.
    """

    def __init__(
        self,
        *,
        project: str = "prl",
        entity: str | None = None,
        group: str | None = None,
        tags: list[str] | None = None,
        mode: Literal["online", "offline"] | None = None,
    ) -> None:
        self._options: dict[str, Any] = {"project": project, "entity": entity, "group": group, "tags": tags}
        self._options["mode"] = mode

    def open(self, run: TrackedRun) -> Opened:
        """Begin or go on; nothing of the machine, the console or the code is sent."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb  # noqa: PLC0415 -- only where it is chosen

        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            silent=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        if hasattr(settings, "x_transaction_log_flush_interval"):  # not in every version
            settings.x_transaction_log_flush_interval = FLUSH_S
        self._run = wandb.init(
            **self._options,
            id=run.id or secrets.token_hex(4),
            name=run.name,
            dir=str(run.run_dir),
            resume="allow",
            config=run.config,
            settings=settings,
        )
        self._run.define_metric("*", step_metric=STEP)
        url = "" if self._run.offline else self._run.url or ""
        return Opened(id=str(self._run.id), last_step=run.sent_step, url=url)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One row of the history."""
        self._run.log({STEP: step, **values})

    def flush(self) -> None:
        """Nothing: the service of W&B has it, and writes it within ``FLUSH_S``."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The summary beside the last values, and how it ended; waits until all is sent."""
        self._run.summary.update({"summary": {key: value for key, value in summary.items() if value is not None}})
        self._run.finish(exit_code=1 if summary.get("status") == "failed" else 0)
