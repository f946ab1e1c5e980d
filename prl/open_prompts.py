"""The open prompts of a run: admitted, and neither trained nor left without a group.

Invariants:

- Those that were open when the run was left come first, in their order; then what the source gives.
- A prompt is written down when it is admitted, when its group has its scores, and when it is trained or leaves: what
  the records say is open is what is open here.
- ``state`` is all that a checkpoint needs: every prompt below its cursor is in it, or done with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from prl.buffer import Ticket
from prl.ledger import Records
from prl.records import Admitted, Entry, Left, Measured, Scored, Trained
from prl.rollout import Done
from prl.types import Group, Prompt


class Source(Protocol):
    """Where prompts come from, in an order that depends on the seed only."""

    @property
    def cursor(self) -> int:
        """Id of the prompt that ``next`` gives."""
        ...

    def next(self) -> Prompt:
        """The next prompt in order of admission."""
        ...

    def passed_over(self) -> list[tuple[int, str]]:
        """Ids that ``next`` went past since this was last asked, and why."""
        ...

    def seek(self, cursor: int) -> None:
        """Continue at the prompt with this id."""
        ...


class OpenPrompts:
    """See the module. Each is known by the ticket of its slot; ``measure`` says what a group tells of its row."""

    def __init__(self, source: Source, records: Records, measure: Callable[[Group], Measured | None]) -> None:
        self._source, self._records, self._measure = source, records, measure
        self._restored: deque[Entry] = deque()
        self._by_ticket: dict[Ticket, Prompt] = {}

    def __getitem__(self, ticket: Ticket) -> Prompt:
        return self._by_ticket[ticket]

    async def ready(self) -> None:
        """Wait until another may be admitted: a full disk holds it up."""
        await self._records.ready()

    def admit(self, ticket: Ticket) -> Entry:
        """The next prompt has this slot; with what is known of it, where it was open before."""
        entry = self._restored.popleft() if self._restored else self._new()
        self._by_ticket[ticket] = entry.prompt
        return entry

    def _new(self) -> Entry:
        """A prompt that was never admitted before."""
        prompt = self._source.next()
        for number, reason in self._source.passed_over():
            self._records.append(Left(prompt_id=number, reason=reason))
        self._records.append(Admitted(prompt=prompt))
        return Entry(prompt=prompt)

    def measure(self, group: Group) -> None:
        """Keep what a group says of how hard its row is, whether it is trained on or not."""
        if measured := self._measure(group):
            self._records.append(measured)

    def scored(self, ticket: Ticket, done: Done) -> None:
        """Its group is complete, and stays open until it is trained."""
        prompt_id, scores = self._by_ticket[ticket].id, done.group.scores
        self._records.append(Scored(prompt_id=prompt_id, members=done.members, scores=scores))

    def left(self, ticket: Ticket, reason: str) -> None:
        """It is done with, and came to nothing."""
        self._records.append(Left(prompt_id=self._by_ticket.pop(ticket).id, reason=reason))

    def trained(self, step: int, tickets: Sequence[Ticket]) -> None:
        """They are done with: ``step`` was trained on their groups, in this order."""
        self._records.append(Trained(step=step, prompt_ids=[self._by_ticket.pop(ticket).id for ticket in tickets]))

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs to go on: the cursor, and the prompts below it that are open."""
        restored = [entry.prompt for entry in self._restored]
        return {"cursor": self._source.cursor, "untrained": [*restored, *self._by_ticket.values()]}

    def restore(self, cursor: int, entries: Iterable[Entry]) -> None:
        """Go on from there: these prompts are admitted first, in this order."""
        self._source.seek(cursor)
        self._restored.extend(entries)
