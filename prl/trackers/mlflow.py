"""MLflow, through its client alone (``mlflow-skinny`` suffices): a tracking server, or a folder of files.

MLflow cannot take back what it got: of steps that are done again the values that came first stay.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from prl.trackers.base import Opened, TrackedRun
from prl.trackers.names import curves_of_summary

FOLDER = "mlruns"
_PARAMS_PER_CALL = 100
_NO_NAME = re.compile(r"[^\w\-./ ]")
_ENDS = {"done": "FINISHED", "stopped": "KILLED"}


class MLflow:
    """``name = "mlflow"``; user, password or token come from ``MLFLOW_TRACKING_USERNAME`` and its like.

    Options:
        tracking_uri: the server (``http://...``), a database, or ``file:...``; absent, ``MLFLOW_TRACKING_URI``, and
            where that is not set either, ``mlruns/`` in the run folder (``mlflow ui --backend-store-uri RUN/mlruns``).
        experiment: where the run goes; made where there is none.
        tags: texts by name.
    """

    def __init__(
        self, *, tracking_uri: str | None = None, experiment: str = "prl", tags: dict[str, str] | None = None
    ) -> None:
        self._uri, self._experiment, self._tags = tracking_uri, experiment, tags or {}
        self._last_step = 0

    def open(self, run: TrackedRun) -> Opened:
        """Begin or go on; parameters are written once."""
        # This process serves one tracker alone: what it sets reaches nobody else. A folder was asked for by name.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Metric, Param  # noqa: PLC0415 -- only where it is chosen
        from mlflow.tracking import MlflowClient  # noqa: PLC0415 -- the same

        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or (run.run_dir.absolute() / FOLDER).as_uri()
        self._metric, self._client = Metric, MlflowClient(tracking_uri=uri)
        if run.id:
            self._id = run.id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(self._experiment_id(), run_name=run.name, tags=self._tags).info.run_id
            params = [Param(_name(key), str(value)) for key, value in run.hyperparameters.items()]
            for at in range(0, len(params), _PARAMS_PER_CALL):
                self._client.log_batch(self._id, params=params[at : at + _PARAMS_PER_CALL])
        self._last_step = max(0, run.sent_step)
        return Opened(id=self._id, last_step=run.sent_step, url=uri)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One call for all curves of the step."""
        now_ms = int(1000 * time.time())
        metrics = [self._metric(_name(key), value, now_ms, step) for key, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)
        self._last_step = max(self._last_step, step)

    def flush(self) -> None:
        """Nothing: a call returns when the store has it."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The summary's numbers as metrics, and how it ended."""
        self.log(self._last_step, curves_of_summary(summary))
        if summary.get("error"):
            self._client.set_tag(self._id, "error", summary["error"])
        self._client.set_terminated(self._id, status=_ENDS.get(str(summary.get("status")), "FAILED"))

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        return str(found.experiment_id if found else self._client.create_experiment(self._experiment))


def _name(key: str) -> str:
    """``key`` with the characters alone that MLflow takes."""
    return _NO_NAME.sub("_", key)
