"""Waits as people read them: a tree, the chain through it to what has to move, and how long nothing has. All pure.

A chain: ``trainer waits for batch 41 <- group 1307 <- engine-1: no token for 32 s``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec

SHOWN = 8
"""Most waits that are listed side by side."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """One wait at some moment, with what it waits for."""

    who: str
    """What has to move."""
    what: str = ""
    """What it does, or owes."""
    seconds: float
    silent_s: float
    """Seconds since it showed that it lives."""
    quiet_s: float
    """As many of these as came after the end of the deadlines that it is under."""
    endless: bool = False
    """It may take any time."""
    aside: bool = False
    """It only says which of many."""
    on: list[Waiting] = []

    @property
    def text(self) -> str:
        """Without its time."""
        return f"{self.who}: {self.what}" if self.what else self.who


def leaves(waiting: Waiting) -> Iterator[Waiting]:
    """Where the waiting ends: what has to move."""
    if not waiting.on:
        yield waiting
    for below in waiting.on:
        yield from leaves(below)


def quiet_s(waiting: Waiting) -> float:
    """Seconds since anything that it waits for showed a sign of life, or had a deadline of its own left."""
    return min(leaf.quiet_s for leaf in leaves(waiting))


def path(waiting: Waiting) -> list[Waiting]:
    """The way down to what has been silent for the longest time; of equals, to what is known in more detail."""
    ways = [[waiting, *path(below)] for below in waiting.on]
    return max(ways, key=lambda way: (way[-1].silent_s, len(way)), default=[waiting])


def chain(waiting: Waiting) -> str:
    """That way in one line. Of two that are the same thing only the nearer to the end is named."""
    way = [*(link for link, behind in pairwise(path(waiting)) if link.who != behind.who), path(waiting)[-1]]
    links, leaf = [link.text for link in way[:-1] if not link.aside], way[-1]
    which = [link.who for link in way[-2:-1] if link.aside and not leaf.what]
    return " <- ".join([*links, f"{': '.join([leaf.text, *which])} for {duration(leaf.seconds)}"])


def lines(waiting: Waiting, indent: str = "") -> list[str]:
    """The whole tree, a line each, the longest waits first."""
    told = [f"{indent}{waiting.text}, {duration(waiting.seconds)}"]
    below = sorted(waiting.on, key=lambda each: -max(leaf.silent_s for leaf in leaves(each)))
    for each in below[:SHOWN]:
        told += lines(each, indent + "  ")
    if len(below) > SHOWN:
        told.append(f"{indent}  and {len(below) - SHOWN} more")
    return told


def duration(seconds: float) -> str:
    """As people say it."""
    if seconds < 10:  # noqa: PLR2004 -- where a tenth is no longer worth reading
        return f"{seconds:.1f} s"
    if seconds < 600:  # noqa: PLR2004 -- ten minutes
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"  # noqa: PLR2004 -- two hours
