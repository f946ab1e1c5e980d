"""One run folder that somebody looks at: its readers, brought up to date when they are asked.

Invariants:

- An answer never waits for a file that takes long to read: what is behind by more than ``PATIENCE_S`` goes on in a
  thread of its own, and whoever asks is told how far it is (``IndexingError``).
- A reader is touched by one thread at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from prl.errors import PrlError, RefusedError
from prl.view.columns import Columns
from prl.view.evaluations import Evaluations
from prl.view.events import Events
from prl.view.files import Follower, Sink
from prl.view.samples import Samples
from prl.view.timeline import Timeline
from prl.view.tokens import Tokens

PATIENCE_S = 0.1
_SLICE_S = 0.2
T = TypeVar("T")


class IndexingError(PrlError):
    """The files are still being read; ``share`` of them is, from 0 to 1."""

    def __init__(self, share: float) -> None:
        super().__init__(f"{share:.0%} of the file is read")
        self.share = share


class Advancing(Protocol):
    """What can be brought up to date slice by slice."""

    def advance(self, seconds: float) -> bool:
        """Read on for about so long; whether the end was reached."""
        ...

    @property
    def share(self) -> float:
        """How much is read, from 0 to 1."""
        ...

    @property
    def skipped(self) -> int:
        """Lines that were passed over."""
        ...


class Reader:
    """Keeps one of them up to date for threads that ask."""

    def __init__(self, file: Advancing) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._is_behind = self._is_closed = False

    @contextmanager
    def current(self, patience_s: float = PATIENCE_S) -> Iterator[None]:
        """Nobody else reads on while the body looks at what there is.

        Raises:
            IndexingError: there is more to read than fits into ``patience_s``.
        """
        if self._is_behind:
            raise IndexingError(self.file.share)
        with self._lock:
            if not self.file.advance(patience_s):
                self._is_behind = True
                threading.Thread(target=self._catch_up, name="prl-view-reader", daemon=True).start()
                raise IndexingError(self.file.share)
            yield

    def close(self) -> None:
        """Read no further."""
        self._is_closed = True

    def _catch_up(self) -> None:
        try:
            done = False
            while not done and not self._is_closed:
                with self._lock, suppress(RefusedError):  # which the next who asks is told
                    done = True
                    done = self.file.advance(_SLICE_S)
        finally:
            self._is_behind = False


class OpenRun:
    """See the module."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.metrics, self.gauges, self.evaluations = Columns("step"), Columns("at"), Evaluations()
        self.timeline, self.events, self.samples = Timeline(), Events(path / "events.jsonl"), Samples(path)
        self.tokens = Tokens(path)
        self._readers = {
            "metrics.jsonl": self._following("metrics.jsonl", self.metrics),
            "gauges.jsonl": self._following("gauges.jsonl", self.gauges),
            "evaluations.jsonl": self._following("evaluations.jsonl", self.evaluations),
            "timeline.jsonl": self._following("timeline.jsonl", self.timeline),
            "events.jsonl": self._following("events.jsonl", self.events),
            "samples.jsonl": Reader(self.samples),
        }

    @contextmanager
    def current(self, *names: str, patience_s: float = PATIENCE_S) -> Iterator[None]:
        """These files are read to their ends, and nobody reads on meanwhile. Raises IndexingError."""
        if not names:
            yield
            return
        with self._readers[names[0]].current(patience_s), self.current(*names[1:], patience_s=patience_s):
            yield

    def skipped(self) -> dict[str, int]:
        """Lines that were passed over, too long or not what the file holds, by file; only where there are some."""
        return {name: reader.file.skipped for name, reader in self._readers.items() if reader.file.skipped}

    def close(self) -> None:
        """Let go of everything."""
        for reader in self._readers.values():
            reader.close()
        self.samples.close()

    def _following(self, name: str, sink: Sink) -> Reader:
        return Reader(Follower(self.path / name, sink))
