"""What is new in a run, as server-sent events.

Invariants:

- An event's id says how far each file was read, so that a browser that comes back (``Last-Event-ID``) misses nothing
  that is still to be had; one without an id hears of what comes from now on.
- Who is far behind hears of the last step and of the newest events, never of a hundred thousand.
- The files are only looked at while somebody listens; with the run ends what there is to hear.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from prl.check_control import CONTROL_TOKEN
from prl.control import address as control_file
from prl.control.client import Client
from prl.errors import PrlError
from prl.view.files import ChangedError, Line, Tail
from prl.view.run_lines import state_of

MAX_EVENTS = 100
"""Of one kind, at one look."""
STATUS_EVERY_S = 2.0
STATUS_TIMEOUT_S = 1.5
_CHUNK_BYTES = 1 << 20
_FILES = {"step": "metrics.jsonl", "event": "events.jsonl", "evaluation": "evaluations.jsonl"}


class Message(NamedTuple):
    """One server-sent event."""

    event: str
    data: Any
    id: str

    def encode(self) -> bytes:
        """As it goes over the wire; JSON has no newlines."""
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (
            self.id.encode(),
            self.event.encode(),
            msgspec.json.encode(self.data),
        )


class Live:
    """What is new in one run since the last look, for one who listens. Blocking."""

    def __init__(self, run_dir: Path, last_id: str | None, status: Callable[[], Any]) -> None:
        """``last_id`` is what the browser heard last; ``status`` says how the run is, or None."""
        self._run_dir, self.has_ended = run_dir, False
        self._status, self._status_at = status, -STATUS_EVERY_S
        self._tails = {kind: Tail(run_dir / name) for kind, name in _FILES.items()}
        places = _places(last_id)
        for kind, tail in self._tails.items():
            size = _size(tail.path)
            tail.go_to(min(places[kind], size) if places else _whole(tail.path, size))

    def news(self) -> list[Message]:
        """What has come; the last of a run that does not go on (``has_ended``) is ``end``."""
        found: list[Message] = []
        for kind in _FILES:
            lines = self._read(kind)
            if kind == "step":
                lines = lines[-1:]
            for line in lines[-MAX_EVENTS:]:
                with suppress(msgspec.MsgspecError):
                    row = msgspec.json.decode(line.text, type=dict[str, Any])
                    data = {"step": row["step"], "at": row.get("at")} if kind == "step" and "step" in row else row
                    found.append(Message(kind, {**data, "id": line.offset} if kind == "event" else data, self._id()))
        if time.monotonic() - self._status_at >= STATUS_EVERY_S:
            self._status_at = time.monotonic()
            if (state := state_of(self._run_dir)) != "live":
                self.has_ended = True
                return [*found, Message("end", {"state": state}, self._id())]
            if (told := self._status()) is not None:
                found.append(Message("status", told, self._id()))
        return found

    def _read(self, kind: str) -> list[Line]:
        """The newest lines of a file; those that are many are passed over."""
        tail, found = self._tails[kind], list[Line]()
        try:
            while lines := tail.read(_CHUNK_BYTES):
                found = [*found, *lines][-MAX_EVENTS:]
        except ChangedError:
            tail.go_to(_whole(tail.path, _size(tail.path)))  # a resumed run: what is before is told by other answers
        return found

    def _id(self) -> str:
        return ".".join(str(tail.position) for tail in self._tails.values())


class Statuses:
    """What runs say of themselves, asked at most once in a while however many listen. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[float, Any]] = {}

    def of(self, run_dir: Path) -> Any:
        """``/status`` of the run's control address; None where nobody answers."""
        with self._lock:
            asked_at, told = self._known.get(run_dir, (-STATUS_EVERY_S, None))
            if time.monotonic() - asked_at < STATUS_EVERY_S / 2:
                return told
            self._known[run_dir] = time.monotonic(), told
        told = _asked(run_dir)
        with self._lock:
            self._known[run_dir] = time.monotonic(), told
        return told


def _asked(run_dir: Path) -> Any:
    """What the run says. A folder may come from anywhere: only a run of this user on this machine is asked."""
    try:
        if (run_dir / control_file.CONTROL_FILE).lstat().st_uid != os.geteuid():
            return None
        where = control_file.read(run_dir)
        token = os.environ.get(CONTROL_TOKEN, "") if where.token is None else where.token
        if where.host != socket.gethostname() or not _is_here(urlsplit(where.url).hostname or ""):
            return None
        return Client(where.url, token, str(run_dir), timeout_s=STATUS_TIMEOUT_S).ask("GET", "/status", dict[str, Any])
    except (PrlError, OSError, ValueError):
        return None


def _is_here(host: str) -> bool:
    """Whether ``host`` is an address of this machine: only to such can a socket be bound."""
    if not host:  # which would be every address
        return False
    with suppress(OSError), socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
        return True
    return False


def _places(last_id: str | None) -> dict[str, int] | None:
    """How far each file was read; None without such an id."""
    parts = (last_id or "").split(".")
    if len(parts) != len(_FILES) or not all(part.isdecimal() and len(part) < 19 for part in parts):  # noqa: PLR2004
        return None
    return dict(zip(_FILES, map(int, parts), strict=True))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _whole(path: Path, size: int) -> int:
    """Where the last whole line ends, if that is near."""
    tail = Tail(path)
    tail.go_to(max(0, size - (1 << 16)))
    with suppress(ChangedError):
        if tail.read(1 << 16):
            return tail.position
    return size
