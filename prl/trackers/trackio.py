"""trackio: a database in a local folder, or a Space or server that it is sent to.

trackio cannot take back single steps: of those that are done again the values that came first stay.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from prl.trackers.base import Opened, TrackedRun
from prl.trackers.names import curves_of_summary


class Trackio:
    """``name = "trackio"``; look with ``trackio show``. A Space needs ``HF_TOKEN``, a server ``TRACKIO_WRITE_TOKEN``.

    Options:
        project: where the run goes.
        space_id: a Hugging Face Space, ``user/name``; absent, trackio's local folder (``TRACKIO_DIR``).
        server_url: a server of your own.
    """

    def __init__(self, *, project: str = "prl", space_id: str | None = None, server_url: str | None = None) -> None:
        self._options: dict[str, Any] = {"project": project, "space_id": space_id, "server_url": server_url}
        self._last_step = 0

    def open(self, run: TrackedRun) -> Opened:
        """Begin or go on; nothing of the machine is sent."""
        import trackio  # noqa: PLC0415 -- only where it is chosen

        name = run.id or f"{run.name}-{secrets.token_hex(3)}"  # by its name a run is found again
        self._run = trackio.init(
            **self._options,
            name=name,
            config=run.config,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self._last_step = max(0, run.sent_step)
        return Opened(id=name, last_step=run.sent_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One row."""
        self._run.log(dict(values), step=step)
        self._last_step = max(self._last_step, step)

    def flush(self) -> None:
        """Nothing: a thread of trackio's writes twice a second."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The summary's numbers at the last step; waits until all is written."""
        self.log(self._last_step, curves_of_summary(summary))
        self._run.finish()
