"""The ways in which a version of the weights gets from the trainer into the engines.

    staged    stage || publish, then swap: the engines stand still for the swap alone
    plain     pause, load || publish, resume: they stand still for the transfer, and need no second copy
    rolling   the swaps, or the whole of plain, one part of the engines after another

Invariants:

- What is staged is sent once, to all, and no engine swaps before all have it. What is not is sent to each part anew,
  while the trainer takes no step.
- A part stands still when the one before has gone on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import msgspec

from prl.engines.base import Standstill
from prl.failure import together
from prl.trainer.base import Trainer
from prl.types import WeightUpdate


class Receivers(Protocol):
    """The engines as one: the pool. A ``part`` of them is one of those that ``turns`` gave; None: all."""

    async def stage(self, update: WeightUpdate) -> bool:
        """Begin to receive the update beside generation; False where that is left to ``load``."""
        ...

    def turns(self, *, is_staged: bool) -> Sequence[int | None]:
        """The parts that take up an update one after another."""
        ...

    async def swap(self, update: WeightUpdate, part: int | None) -> Standstill:
        """Stop between two decode steps, serve what was staged, go on; the longest that an engine took."""
        ...

    async def pause(self, part: int | None) -> None:
        """Stop between two decode steps."""
        ...

    async def load(self, update: WeightUpdate, part: int | None) -> None:
        """Receive the update and serve it."""
        ...

    async def resume(self, part: int | None = None) -> None:
        """Go on."""
        ...

    async def score(self, token_ids: list[int]) -> dict[str, list[float]]:
        """Log-probabilities of the tokens after the first, by engine name."""
        ...


class PushReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one push cost; where engines took turns, of the turn that was longest."""

    version: int
    pause_s: float
    """Seconds from the request to stand still until the last engine went on."""
    drain_s: float
    """Of these, until the last engine had finished the step that it was in."""
    publish_s: float
    """Seconds of the transfer, until the last engine had received it; and loaded it, where it was not staged. Of all
    turns."""


class Sides:
    """Trainer and engines during one update; ``pending`` says what each has not done yet. Raises SideError."""

    def __init__(self, trainer: Trainer, engines: Receivers, pending: dict[str, str]) -> None:
        self._trainer, self._engines, self._pending = trainer, engines, pending

    async def staged(self, update: WeightUpdate) -> PushReport | None:
        """Send beside generation, then swap; None where the engines do not stage."""
        engines, pending, clock = self._engines, self._pending, asyncio.get_running_loop().time
        begun = clock()
        if not (await together(pending, "staging", engines=partial(engines.stage, update)))["engines"]:
            return None
        await together(pending, "transfer", trainer=partial(self._trainer.publish, update))
        publish_s = clock() - begun
        stood: list[Standstill] = []
        for part in engines.turns(is_staged=True):
            swap = partial(engines.swap, update, part)
            stood.append((await together(pending, "swap", engines=swap))["engines"])
        longest = max(stood, key=lambda each: each.drain_s + each.still_s)
        return PushReport(
            version=update.version,
            pause_s=longest.drain_s + longest.still_s,
            drain_s=longest.drain_s,
            publish_s=publish_s,
        )

    async def plain(self, update: WeightUpdate) -> PushReport:
        """Send while the engines stand still, to each part in a weight group of its own."""
        engines, pending, clock = self._engines, self._pending, asyncio.get_running_loop().time
        pause_s = drain_s = publish_s = 0.0
        for part in engines.turns(is_staged=False):
            sent = msgspec.structs.replace(update, part=part or 0)
            publish, load = partial(self._trainer.publish, sent), partial(engines.load, sent, part)
            begun = clock()
            await together(pending, "pause", engines=partial(engines.pause, part))
            still = clock()
            await together(pending, "transfer", patient={"trainer"}, trainer=publish, engines=load)
            loaded = clock()
            await together(pending, "resume", engines=partial(engines.resume, part))
            pause_s, drain_s = max((pause_s, drain_s), (clock() - begun, still - begun))
            publish_s += loaded - still
        return PushReport(version=update.version, pause_s=pause_s, drain_s=drain_s, publish_s=publish_s)
