"""Whose turn it is, where few workers judge the answers of many groups.

Invariants:

- Those who wait are served in the order in which they came, but a group's answers behind those of groups that have
  exhausted fewer limits. So answers made to hang a judge delay other groups by what is under way at the moment, each
  by its own limit, and never by what waits behind it.
- No place is free while somebody waits: what is put off is judged as soon as nothing else is to be.
- Waiting is no lateness of the call that waits (``deadlines.uncounted``). It ends: every place is held within limits.
- A group of which nothing waits and nothing is under way is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prl.deadlines import uncounted
from prl.waits import waiting


class Standing:
    """What is known of a group while something of it is open."""

    def __init__(self) -> None:
        self.num_exhausted = 0
        """Limits that its answers have exhausted; whoever holds a place counts them."""
        self.num_open = 0


class Turns:
    """``num_places`` places, of one event loop."""

    def __init__(self, num_places: int) -> None:
        self._num_free = num_places
        self._waiting: dict[asyncio.Future[None], Standing] = {}
        self._standings: dict[int, Standing] = {}

    @asynccontextmanager
    async def turn(self, group: int) -> AsyncIterator[Standing]:
        """Hold a place while the body lasts."""
        standing = self._standings.setdefault(group, Standing())
        standing.num_open += 1
        try:
            await self._take(standing)
            try:
                yield standing
            finally:
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
            with uncounted(), waiting("a free worker", "all judge other answers"):
                await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._waiting.pop(place, None)
            else:  # it was handed over as the wait was given up
                self._hand_on()
            raise

    def _hand_on(self) -> None:
        places = [place for place in self._waiting if not place.done()]
        if not places:
            self._num_free += 1
            return
        place = min(places, key=lambda each: self._waiting[each].num_exhausted)  # the first of equals
        del self._waiting[place]
        place.set_result(None)
