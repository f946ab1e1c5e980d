"""One place in the pool, who sits there, and how far it is.

Invariants:

- What a seat has generated, and how long it was busy, never falls: a lost engine's counts pass to the seat in the same
  breath as the engine leaves it.
- A seat keeps its index, and its engine's name with it, for good; no other seat of the run gets either. Its ``place``,
  the share of the machine that it computes on or the server that it stands for, is free for another once it is gone.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

from prl.engines.base import Engine, EngineStatistics
from prl.engines.lane import Lane
from prl.timeline import Timeline

Place = int | str
"""Where an engine computes: a share of this machine, or the address of a server."""
State = Literal["starting", "ready", "joined", "serving", "lost", "left"]
THERE = frozenset({"ready", "joined", "serving"})
"""The states of an engine that is open."""


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One engine as people see it."""

    name: str
    address: str = ""
    """Of the server that it is; empty for an engine that was started here."""
    state: Literal["starting", "ready", "joined", "serving", "lost", "failed", "leaving"]
    """``starting``: it was added, and is not open yet; ``ready``, then ``joined``: it waits for the weights;
    ``serving``; ``lost``: it died, and is started again; ``failed``: it is not started again; ``leaving``: it was
    removed, and ends as soon as no weight update is under way."""
    state_s: float
    """For how long."""
    version: int
    """Of the weights that it holds."""
    streams: int
    """Open now."""
    tokens_generated: int
    busy_s: float
    """Seconds with at least one open stream and not paused."""
    restarts: int
    why: str
    """Why it was lost last, or did not start; empty where neither happened."""


class Seat:
    """See the module.

    Args:
        index: never another seat's.
        engine: who sits here first, not opened.
        place: where it computes.
        is_new: it was added to engines that serve, and does not count before it serves too.
        timeline: shows what whoever sits here does.
    """

    def __init__(
        self, index: int, engine: Engine, *, place: Place, is_new: bool = False, timeline: Timeline | None = None
    ) -> None:
        self.lane = Lane(timeline or Timeline(), engine.name)
        self.index, self.engine, self.place = index, engine, place
        self.state: State = "starting" if is_new else "serving"
        self.state_since = 0.0
        self.counts = not is_new
        """Whether it is one of the engines that means and minima speak of."""
        self.is_leaving = False
        """It was removed: no stream is placed here any more."""
        self.is_held = False
        """It stands still for new weights, while others may go on."""
        self.given_up = asyncio.Event()
        self.why = ""
        """Why the engine that was lost last was."""
        self.num_attempts = 0
        """Engines that were started here since one last served for ``STEADY_S``."""
        self.num_restarts = 0
        self.stays_empty = False
        """Whether nobody is started here any more."""
        self._num_tokens_before, self._busy_s_before, self._stream_s_before = 0, 0.0, 0.0

    @property
    def is_there(self) -> bool:
        """Whether an engine is open here, as far as is known."""
        return self.state in THERE

    @property
    def serves(self) -> bool:
        """Whether streams may be placed here."""
        return self.state == "serving" and not self.is_leaving and not self.engine.statistics().dead

    def enter(self, state: State) -> None:
        """It is this far."""
        self.state, self.state_since = state, asyncio.get_running_loop().time()
        match state:
            case "starting":
                self.lane.hold("starts")
            case "ready" | "joined":
                self.lane.hold("waiting", "the weights of the others")
            case "serving":
                self.lane.release()
            case "lost":
                self.lane.hold("gone", self.why)
            case "left":
                self.lane.end()

    def statistics(self) -> EngineStatistics:
        """Those of the engine that sits here; tokens and busy seconds of all that ever did."""
        now = self.engine.statistics()
        return msgspec.structs.replace(
            now,
            tokens_generated=self._num_tokens_before + now.tokens_generated,
            busy_s=self._busy_s_before + now.busy_s,
            stream_s=self._stream_s_before + now.stream_s,
        )

    def status(self, num_streams: int) -> EngineStatus:
        """How it is, with so many streams placed here."""
        now = self.statistics()
        return EngineStatus(
            name=self.engine.name,
            address=self.place if isinstance(self.place, str) else "",
            state=self._shown(),
            state_s=asyncio.get_running_loop().time() - self.state_since,
            version=now.version,
            streams=num_streams,
            tokens_generated=now.tokens_generated,
            busy_s=now.busy_s,
            restarts=self.num_restarts,
            why=self.why,
        )

    def _shown(self) -> Literal["starting", "ready", "joined", "serving", "lost", "failed", "leaving"]:
        if self.is_leaving or self.state == "left":
            return "leaving"
        return "failed" if self.stays_empty else self.state

    def replace(self, engine: Engine) -> None:
        """Another engine sits here from now on."""
        total = self.statistics()
        self._num_tokens_before, self._busy_s_before = total.tokens_generated, total.busy_s
        self._stream_s_before = total.stream_s
        self.engine = engine
        self.given_up.clear()
