"""How a run is at this moment, in one object: what ``/status`` answers, and ``Pipeline.status``.

Every time is a number of seconds until now, so that nobody needs the clock of the machine that the run is on. What
there is not yet, while the run starts, is absent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from prl.buffer import BufferStatistics
from prl.engines.seat import EngineStatus


class TrainerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer."""

    state: str
    """``starts``, ``waits for a batch``, or ``works``."""
    restarts: int
    """Times that it died and was started again."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A run."""

    run_dir: str
    pid: int
    """The process of the controller."""
    stage: str
    """What it does: ``training``, or while it starts, evaluates or ends, what is waited for."""
    stage_s: float
    """For how long."""
    step: int | None
    """Completed optimiser steps."""
    num_steps: int
    version: int | None
    """Of the weights that the engines serve; absent before the first are there."""
    engines: list[EngineStatus]
    trainer: TrainerStatus | None
    slots: BufferStatistics | None
    """How many prompts are under way, finished, taken."""
    why: str
    """Who waits for whom, as a chain."""


class Stage:
    """What a run does now, told on to who wants to hear it."""

    def __init__(self, on_stage: Callable[[str], None]) -> None:
        self._on_stage = on_stage
        self.text, self._since = "not started", 0.0

    def __call__(self, text: str) -> None:
        """From now on it is this."""
        self.quietly(text)
        self._on_stage(text)

    def quietly(self, text: str) -> None:
        """The same, which is for nobody to hear."""
        self.text, self._since = text, asyncio.get_running_loop().time()

    @property
    def seconds(self) -> float:
        """For how long."""
        return asyncio.get_running_loop().time() - self._since
