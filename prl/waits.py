"""Who waits for whom, and since when: every long wait of a run states itself here while it lasts.

    with waiting("trainer", "step 41", limit_s=600):
        ...

Invariants:

- A wait is under the one that was begun around it, in the same task or in the one that started this task; ``on`` adds
  the waits of other tasks that it depends on. So whoever goes down from the run's own wait arrives at what has to move.
- A wait with a ``limit_s`` ends by itself: whoever began it enforces that deadline. The others are the watchdog's.
- Nothing here costs per token: a stream moves ``since`` on, and the tree is made when somebody asks.
- What is stated may be read from another thread: while the event loop is blocked there is no other way to ask.
- Outside a run (a part used by itself) nothing is stated and nothing is different.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from prl.chain import Waiting


class Wait:
    """A wait under way; see ``waiting`` for what the arguments mean."""

    def __init__(
        self,
        waits: Waits,
        who: str,
        what: str | Callable[[], str] = "",
        *,
        limit_s: float | None = None,
        on: Callable[[], Iterable[Wait | None]] = lambda: (),
        alive_at: Callable[[], float] = lambda: -math.inf,
        aside: bool = False,
    ) -> None:
        self.waits, self.who, self.what = waits, who, what
        self.limit_s, self.aside = limit_s, aside
        self._on, self._alive_at = on, alive_at
        self.since = asyncio.get_running_loop().time()
        self.below: dict[Wait, None] = {}

    def at(self, now: float, *, free_until: float = -math.inf, above: tuple[Wait, ...] = ()) -> Waiting:
        """This wait at the time ``now``, with those it depends on; ``above`` are left out, or it would never end."""
        if self.limit_s is not None:
            free_until = max(free_until, self.since + self.limit_s)
        above, alive_at = (*above, self), max(self.since, self._alive_at())
        others = (wait for wait in self._on() if wait is not None)
        below = [wait for wait in dict.fromkeys((*self.below, *others)) if wait not in above]
        return Waiting(
            who=self.who,
            what=self.what if isinstance(self.what, str) else self.what(),
            seconds=max(0.0, now - self.since),
            silent_s=max(0.0, now - alive_at),
            quiet_s=max(0.0, now - max(alive_at, free_until)),
            endless=free_until == math.inf,
            aside=self.aside,
            on=[wait.at(now, free_until=free_until, above=above) for wait in below],
        )


_current: ContextVar[Wait | None] = ContextVar("prl_wait", default=None)
_NOWHERE: nullcontext[None] = nullcontext()
"""Outside a run."""


class Waits:
    """All waits of one run."""

    def __init__(self) -> None:
        self._doing: list[Wait] = []
        self._loops: dict[Wait, None] = {}
        self._idle_since: float | None = None

    @contextmanager
    def doing(self, who: str, *, aside: bool = False) -> Iterator[None]:
        """The run itself does this, at the wish of its caller; and another thing within it, for so long."""
        wait = Wait(self, who, aside=aside)
        self._doing.append(wait)
        token = _current.set(wait)
        try:
            yield
        finally:
            _current.reset(token)
            self._doing.remove(wait)
            self._idle_since = asyncio.get_running_loop().time()

    def says(self, what: str) -> None:
        """What the run does now, in the words that people are told."""
        if self._doing:
            self._doing[-1].who, self._doing[-1].since = what, asyncio.get_running_loop().time()

    @property
    def is_idle(self) -> bool:
        """Whether the caller asks nothing of the run."""
        return not self._doing

    def run_at(self, now: float) -> Waiting:
        """What the run waits for at the time ``now``."""
        if doing := self._doing[-1:]:
            return doing[0].at(now)
        idle_s = 0.0 if self._idle_since is None else max(0.0, now - self._idle_since)
        return Waiting(who="the caller", what="has asked for no step", seconds=idle_s, silent_s=idle_s, quiet_s=0.0)

    def loops_at(self, now: float) -> list[Waiting]:
        """What every loop beside it waits for at the time ``now``, oldest first."""
        return [wait.at(now) for wait in tuple(self._loops)]

    def enter_loop(self, wait: Wait) -> None:
        """A loop begins."""
        self._loops[wait] = None

    def leave_loop(self, wait: Wait) -> None:
        """A loop has ended."""
        del self._loops[wait]


def current() -> Wait | None:
    """The wait that the running task is in."""
    return _current.get()


def waiting(
    who: str,
    what: str | Callable[[], str] = "",
    *,
    limit_s: float | None = None,
    on: Callable[[], Iterable[Wait | None]] = lambda: (),
    alive_at: Callable[[], float] = lambda: -math.inf,
    aside: bool = False,
) -> AbstractContextManager[Wait | None]:
    """State a wait while the body lasts. Not around a ``yield`` of a generator, which ``Lasting`` is for.

    Args:
        who: what has to move: an engine, a rank, a reward, a group.
        what: what it does, or owes.
        limit_s: after which it ends by itself; infinite: it may take any time, and is only warned of.
        on: waits of other tasks that it depends on.
        alive_at: when it last showed that it lives.
        aside: it only says which of many; a chain names what is behind it.
    """
    above = _current.get()
    if above is None:
        return _NOWHERE
    return _under(above, Wait(above.waits, who, what, limit_s=limit_s, on=on, alive_at=alive_at, aside=aside))


@contextmanager
def _under(above: Wait, wait: Wait) -> Iterator[Wait]:
    above.below[wait] = None
    token = _current.set(wait)
    try:
        yield wait
    finally:
        _current.reset(token)
        del above.below[wait]


def loop(who: str, what: str = "") -> AbstractContextManager[Wait | None]:
    """State a task that lives by itself, such as a loop or one rollout, while the body lasts."""
    above = _current.get()
    if above is None:
        return _NOWHERE
    return _alone(Wait(above.waits, who, what))


@contextmanager
def _alone(wait: Wait) -> Iterator[Wait]:
    wait.waits.enter_loop(wait)
    token = _current.set(wait)
    try:
        yield wait
    finally:
        _current.reset(token)
        wait.waits.leave_loop(wait)


class Lasting:
    """A wait of the running task that is begun and ended by hand and goes through many calls, such as a stream's."""

    def __init__(self, who: str, what: str | Callable[[], str]) -> None:
        self._above = _current.get()
        self._wait = None if self._above is None else Wait(self._above.waits, who, what)
        if self._above is not None and self._wait is not None:
            self._above.below[self._wait] = None

    def moved(self, now: float) -> None:
        """It begins anew."""
        if self._wait is not None:
            self._wait.since = now

    def end(self) -> None:
        """It is over. Idempotent."""
        if self._above is not None and self._wait is not None:
            self._above.below.pop(self._wait, None)
