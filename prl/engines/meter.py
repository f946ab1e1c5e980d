"""What an engine did so far: tokens, and the time in which it had streams to serve and was not paused."""

from __future__ import annotations

import asyncio


class Meter:
    """Counts for ``EngineStatistics``, and notices an engine that should move and does not."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._busy_s = 0.0
        self._busy_since: float | None = None
        self._num_streams = 0
        self._paused = False
        self._moved_at = self._changed_at = self._stream_s = 0.0

    def update(self, *, num_streams: int | None = None, paused: bool | None = None) -> None:
        """Say what changed."""
        now = _now()
        if self._busy_since is not None:
            self._busy_s += now - self._busy_since
            self._stream_s += (now - self._changed_at) * self._num_streams
        self._changed_at = now
        self._num_streams = self._num_streams if num_streams is None else num_streams
        self._paused = self._paused if paused is None else paused
        was_busy, is_busy = self._busy_since is not None, self._num_streams > 0 and not self._paused
        self._busy_since = now if is_busy else None
        if is_busy and not was_busy:
            self._moved_at = now

    def count(self, num_tokens: int) -> None:
        """Tokens came."""
        self.num_tokens += num_tokens
        self._moved_at = _now()

    def stalled_s(self) -> float:
        """Seconds without a token while there were streams to serve; 0 while there are none or it is paused."""
        return 0.0 if self._busy_since is None else _now() - self._moved_at

    def busy_s(self) -> float:
        """Seconds with at least one open stream and not paused."""
        return self._busy_s + (0.0 if self._busy_since is None else _now() - self._busy_since)

    def stream_s(self) -> float:
        """The streams of every such second, added up."""
        return self._stream_s + (0.0 if self._busy_since is None else (_now() - self._changed_at) * self._num_streams)


def _now() -> float:
    return asyncio.get_running_loop().time()
