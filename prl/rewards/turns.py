"""Whose turn it is, where few workers judge the answers of many groups.

Invariants:

- Those who wait are served in the order in which they came, but a group's answers behind those of groups that have
  exhausted fewer limits. So answers made to hang a judge delay other groups by what is under way at the moment, each
  by its own limit, and never by what waits behind it.
- No place is free while somebody waits: what is put off is judged as soon as nothing else is to be.
- Waiting is no lateness of the call that waits (``deadlines.uncounted``). It ends: every place is held within limits.
- Whoever gets a place begins a wait of its own (``waits.py``): however many are behind, a queue that moves is no stall.
- A group of which nothing waits and nothing is under way is forgotten.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

from prl.deadlines import uncounted
from prl.waits import Lasting, waiting


class Standing:
    """What is known of a group while something of it is open."""

    def __init__(self) -> None:
        self.num_exhausted = 0
        """Limits that its answers have exhausted; whoever holds a place counts them."""
        self.num_open = 0


class Turns:
    """``num_places`` places, of one event loop."""

    def __init__(self, num_places: int, *, states_waits: bool = True) -> None:
        """Without ``states_waits`` whoever asks says by itself what it waits for."""
        self._num_free, self._states_waits = num_places, states_waits
        self._waiting: dict[asyncio.Future[None], Standing] = {}
        self._standings: dict[int, Standing] = {}
        self._moved_at = -math.inf

    @asynccontextmanager
    async def turn(self, group: int) -> AsyncIterator[Standing]:
        """Hold a place while the body lasts."""
        standing = self._standings.setdefault(group, Standing())
        standing.num_open += 1
        try:
            await self._take(standing)
            judging = Lasting("a worker", "judges it") if self._states_waits else None
            try:
                yield standing
            finally:
                if judging is not None:
                    judging.end()
                self._hand_on()
        finally:
            standing.num_open -= 1
            if not standing.num_open:
                del self._standings[group]

    async def _take(self, standing: Standing) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting[place] = standing
        try:
            with uncounted(), self._stated():
                await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._waiting.pop(place, None)
            else:  # it was handed over as the wait was given up
                self._hand_on()
            raise

    def _stated(self) -> AbstractContextManager[object]:
        """The wait for a place, alive while places change hands."""
        if not self._states_waits:
            return nullcontext()
        return waiting("a worker", "all judge other answers", alive_at=lambda: self._moved_at)

    def _hand_on(self) -> None:
        """Whoever has waited longest of those whose group has exhausted the fewest limits is next."""
        chosen: asyncio.Future[None] | None = None
        fewest = math.inf
        for place, standing in self._waiting.items():
            if standing.num_exhausted < fewest and not place.done():
                chosen, fewest = place, standing.num_exhausted
                if not fewest:
                    break  # nobody comes before it, and thousands may be behind
        if chosen is None:
            self._num_free += 1
        else:
            del self._waiting[chosen]
            self._moved_at = asyncio.get_running_loop().time()
            chosen.set_result(None)
