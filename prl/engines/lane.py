"""An engine on the timeline.

Invariant: it generates where it has streams and nothing holds it, and waits where it has none; what holds it (a start,
a pause, a load, its end) goes before either, and only ``release`` ends it.
"""

from __future__ import annotations

from typing import Literal

from prl.timeline import State, Timeline

Held = Literal["starts", "paused", "loading", "waiting", "gone"]


class Lane:
    """See the module."""

    def __init__(self, timeline: Timeline, name: str) -> None:
        self._timeline, self.name = timeline, name
        self._is_held = self._has_streams = False

    def streams(self, number: int) -> None:
        """So many are open now."""
        if (number > 0) != self._has_streams:
            self._has_streams = number > 0
            if not self._is_held:
                self.release()

    def hold(self, state: Held, why: str | None = None, *, version: int | None = None) -> None:
        """It does this, whatever streams it has."""
        self._is_held = True
        self._timeline.enter(self.name, state, why, version=version)

    def release(self) -> None:
        """Nothing holds it any more."""
        self._is_held = False
        state: State = "generating" if self._has_streams else "waiting"
        self._timeline.enter(self.name, state, None if self._has_streams else "no stream to serve")

    def end(self) -> None:
        """It is not there any more."""
        self._is_held = True
        self._timeline.leave(self.name)
