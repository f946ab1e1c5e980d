"""What goes on, on one line that is redrawn in a terminal, and on a line now and then elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.status import Status

from prl.panel import say
from prl.progress import duration

PLAIN_INTERVAL_S = 5.0
"""Without a terminal, one line at most this often while answers come."""


class ProgressLine:
    """Stages, and answers as they come; see the module."""

    def __init__(self, console: Console) -> None:
        self._console, self._began_at = console, time.monotonic()
        self._status: Status | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._status = console.status("")
            self._status.start()
        self._num_answers = self._num_wanted = 0
        self._said_at = 0.0

    def stage(self, text: str) -> None:
        """Another phase begins."""
        self._said_at = time.monotonic()
        if self._status is not None:
            self._status.update(text)
        else:
            say(self._console, f"[{duration(self._said_at - self._began_at)}] {text}")

    def answering(self, num_wanted: int) -> None:
        """Answers are awaited."""
        self._num_wanted = num_wanted
        self.stage(self.said())

    def count(self) -> None:
        """One more answer is there."""
        self._num_answers += 1
        if self._status is not None:
            self._status.update(self.said())
        elif time.monotonic() - self._said_at >= PLAIN_INTERVAL_S:
            self.stage(self.said())

    def said(self) -> str:
        """How many answers are there."""
        return f"{self._num_answers} of {self._num_wanted} answers"

    def close(self) -> None:
        """Give the terminal back."""
        if self._status is not None:
            self._status.stop()
