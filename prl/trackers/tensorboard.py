"""TensorBoard: event files in a folder.

A part of a run that begins after step N writes a file that opens with a session start at N + 1: TensorBoard then
forgets what earlier files say of that step and later ones (its event accumulator's purge).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from prl.trackers.base import Opened, TrackedRun
from prl.trackers.names import curves_of_summary

if TYPE_CHECKING:
    from prl.trackers.event_file import EventFile

DIR = "tensorboard"


class TensorBoard:
    """``name = "tensorboard"``.

    Options:
        dir: a folder for several runs, where this one has a folder of its own, by the name of its run folder; absent,
            ``tensorboard/`` in the run folder.
    """

    def __init__(self, *, dir: str | None = None) -> None:  # noqa: A002 -- the name of the option
        self._given = dir
        self._last_step = 0
        self._file: EventFile

    def open(self, run: TrackedRun) -> Opened:
        """Begin a file; the configuration is in it as text and as a row of the HParams tab."""
        from prl.trackers.event_file import EventFile  # noqa: PLC0415 -- only where it is chosen

        folder = Path(self._given) / run.run_dir.absolute().name if self._given else run.run_dir / DIR
        self._file = EventFile(folder)
        if run.id:
            self._file.forget_from(run.first_step + 1)
        self._last_step = run.first_step
        self._file.session_starts(run.hyperparameters, run.name)
        config = msgspec.json.format(msgspec.json.encode(run.config), indent=2).decode()
        self._file.text("config/text_summary", f"```\n{config}\n```")
        self._file.flush()
        return Opened(id=str(folder), last_step=run.first_step, url=str(folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One event for all curves of the step."""
        self._file.scalars(step, values)
        self._last_step = max(self._last_step, step)

    def flush(self) -> None:
        """To the disk."""
        self._file.flush()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The summary's numbers at the last step, and how the session ended."""
        self.log(self._last_step, curves_of_summary(summary))
        self._file.session_ends(failed=summary.get("status") == "failed")
        self._file.close()
