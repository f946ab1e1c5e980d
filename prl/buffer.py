"""Slots: how many prompts are under way, in which order their groups are trained, and hence how far the lag can go.

A prompt is *admitted* to a slot, its group *finishes* there (or is *dropped*, which frees the slot at once), a batch
*takes* finished groups, and only when the weights trained on them serve in the engines are their slots *released*.

**The lag bound.** Let g be the groups of a step, S = (k + 1) g the slots, and let groups be taken in the order of
admission. Claim: every token trained in step b was sampled by version b - k or later.

Proof. Leave dropped prompts out and number the others 0, 1, 2 ... in the order of admission: in that order they are
taken, so number j is trained in step b = floor(j / g), hence j >= b g. When j was admitted a slot was free, so of the
numbers 0 .. j, all admitted by then, at most S were unreleased: at least j + 1 - S were released, and
j + 1 - S >= b g + 1 - (k + 1) g > (b - k - 1) g. Slots are released g at a time, step by step, each time after that
step's weights serve; more than b - k - 1 releases means at least b - k of them, so version b - k or a later one served
when j was admitted, and whatever was sampled for j was sampled after that, in all turns of its episodes. Three more
remarks: to *serve* is to serve in every engine, so where engines take turns at a version it serves when the last has
had its turn, and who had it earlier samples with newer weights than the argument needs; a prompt that is dropped later
only lowers the numbers of those behind it, hence their step and their lag; and nothing in the argument looks at
lengths, so short sequences are not favoured. With k = 0 the next prompt is admitted after the weights of all earlier
ones serve: synchronous. QED

With ``order="completion"`` groups are taken as they finish (the paper's mode). A slot is then a *stream*, since there
the engines are to be full at all times: a group's slots are free as its streams end, not all of them when the longest
has. No prompt is admitted while ``max_ahead`` groups or more run ahead of training, finished or in a step. The lag has
no bound; it follows from how much is under way and is measured.

Where the number of slots changes (``resize``), S is the most that there ever are, and the proof reads as it stands;
while there are fewer, those admitted meanwhile are bounded by them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import msgspec

from prl.types import Group

Ticket = int
"""The number of an admission, increasing."""


class BufferStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the slots; counters grow from the start of the run."""

    num_slots: int
    streams: int
    """Sequences that are being sampled."""
    running: int
    """Admitted, not finished."""
    finished: int
    """Finished, not taken."""
    taken: int
    """Taken, their weights not yet serving."""
    admitted: int
    dropped: int
    trained: int
    """Groups released after their weights served."""


class Buffer:
    """The slots. One admitting and one taking task at a time; everything else is immediate.

    Args:
        num_slots: prompts under way at most; with ``order="completion"`` streams.
        order: in which finished groups are taken.
        group_size: streams of a prompt.
        max_ahead: with ``order="completion"``, groups finished or in a step that stop admission.
    """

    def __init__(
        self,
        num_slots: int,
        order: Literal["admission", "completion"] = "admission",
        *,
        group_size: int = 1,
        max_ahead: int | None = None,
    ) -> None:
        self.num_slots, self._order, self._group_size = num_slots, order, group_size
        self._most = num_slots if max_ahead is None else max_ahead
        self._streams: dict[Ticket, int] = {}  # of the groups that run
        self._num_streams = 0
        self._groups: dict[Ticket, Group | None] = {}  # admitted and not taken, in order of admission; None: running
        self._by_completion: dict[Ticket, None] = {}
        self._taken = self._admitted = self._dropped = self._trained = 0
        self._changed = asyncio.Event()

    async def admit(self) -> Ticket:
        """Wait for a free slot and hold it."""
        await self._until(self._has_room)
        ticket = self._admitted
        self._admitted += 1
        self._groups[ticket] = None
        self._streams[ticket] = self._group_size
        self._num_streams += self._group_size
        return ticket

    def stream_ended(self, ticket: Ticket) -> None:
        """One of the prompt's streams gives no more tokens; what follows, its scoring, needs no engine."""
        self._streams[ticket] -= 1
        self._num_streams -= 1
        self._changed.set()

    def finish(self, ticket: Ticket, group: Group) -> None:
        """The prompt's group is complete and may be taken."""
        self._groups[ticket] = group
        self._num_streams -= self._streams.pop(ticket)
        self._by_completion[ticket] = None
        self._changed.set()

    def drop(self, ticket: Ticket) -> None:
        """The prompt ends without a group; its slot is free at once."""
        del self._groups[ticket]
        self._num_streams -= self._streams.pop(ticket)
        self._dropped += 1
        self._changed.set()

    async def take(self, count: int) -> list[tuple[Ticket, Group]]:
        """Wait for the next ``count`` groups in this buffer's order and take them, their slots still held."""
        if count > self._most:
            msg = f"cannot take {count} groups from {self._most} slots"
            raise ValueError(msg)
        await self._until(lambda: len(self._by_completion) >= count and len(self._next(count)) == count)
        batch = self._next(count)
        for ticket, _ in batch:
            del self._groups[ticket]
            del self._by_completion[ticket]
        self._taken += count
        return batch

    def hold(self, count: int) -> None:
        """Count so many free slots as taken: a run goes on in the middle of a round, whose first steps are done."""
        self._taken += count

    def release(self, count: int) -> None:
        """Free the slots of ``count`` taken groups: the weights trained on them serve in the engines."""
        self._taken -= count
        self._trained += count
        self._changed.set()

    def resize(self, num_slots: int) -> None:
        """Have so many slots from now on; where more are held, none is free until enough were released.

        Raises:
            ValueError: with the order of admission, more than it was made with: the lag bound's proof rests on that.
        """
        if self._order == "admission" and num_slots > self._most:
            msg = f"{self._most} slots are the lag bound: there cannot be {num_slots}"
            raise ValueError(msg)
        self.num_slots = num_slots
        self._changed.set()

    def waiting_for(self, count: int) -> list[Ticket]:
        """The admitted prompts that keep ``take(count)`` waiting, oldest first."""
        if self._order == "admission":
            return [ticket for ticket in list(self._groups)[:count] if self._groups[ticket] is None]
        missing = count - len(self._by_completion)
        return [ticket for ticket, group in self._groups.items() if group is None] if missing > 0 else []

    def statistics(self) -> BufferStatistics:
        """How the slots are used now, and counters since the start."""
        return BufferStatistics(
            num_slots=self.num_slots,
            streams=self._num_streams,
            running=len(self._groups) - len(self._by_completion),
            finished=len(self._by_completion),
            taken=self._taken,
            admitted=self._admitted,
            dropped=self._dropped,
            trained=self._trained,
        )

    def _has_room(self) -> bool:
        if self._order == "admission":
            return len(self._groups) + self._taken < self.num_slots
        streams, ahead = self._num_streams, len(self._by_completion) + self._taken
        return ahead < self._most and (streams + self._group_size <= self.num_slots or not streams)

    def _next(self, count: int) -> list[tuple[Ticket, Group]]:
        ready: list[tuple[Ticket, Group]] = []
        for ticket in self._groups if self._order == "admission" else self._by_completion:
            group = self._groups[ticket]
            if group is None or len(ready) == count:
                break
            ready.append((ticket, group))
        return ready

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()
