"""Events: one JSON object a line in ``events.jsonl``, and warnings where people see them.

- ``get_logger`` works before, during and after a run and in any thread. It never touches structlog's or ``logging``'s
  global configuration, so a program that embeds prl keeps its own: without a console, warnings go to the standard
  library's logger ``prl``, which is silent until the host gives it a handler.
- A line is always valid JSON: a number that is not finite is null, a value that JSON cannot hold is its ``repr``.
- Logging never stops a run: a disk that is full costs lines, counted, and one warning.
- Lines are buffered, and written at least once a second, at every warning or error, and at the end.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
import structlog

_FLUSH_INTERVAL_S = 1.0
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

logging.getLogger("prl").addHandler(logging.NullHandler())


class Console(Protocol):
    """Where warnings are shown to people: a ``rich.console.Console`` is one."""

    def print(self, *objects: Any, style: str | None = None, markup: bool | None = None) -> None:
        """Show one line, above a live panel if there is one."""
        ...


def encode(event: MutableMapping[str, Any]) -> bytes:
    """One event as a line of JSON, whatever its values are."""
    try:
        return msgspec.json.encode(event, enc_hook=_printable) + b"\n"
    except (TypeError, ValueError, RecursionError):  # keys of mixed types, lone surrogates, a list that holds itself
        plain = {_printable(key): value if _is_number(value) else _printable(value) for key, value in event.items()}
        return msgspec.json.encode(plain) + b"\n"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | None)


def _printable(value: Any) -> str:
    """A value as text that UTF-8 takes (a file name may hold lone surrogates)."""
    text = value if isinstance(value, str) else repr(value)
    return text.encode("utf-8", "backslashreplace").decode()


class EventLog:
    """The sink of one run: ``events.jsonl`` in its folder and, for warnings, a console."""

    def __init__(self, run_dir: Path, console: Console | None) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.path = run_dir / "events.jsonl"
        self.num_lost = 0
        self._console = console
        self._lock = threading.Lock()
        self._buffer: list[bytes] = []
        self._flushed_at = time.monotonic()
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, event: MutableMapping[str, Any]) -> None:
        """Keep one event; show it when it is a warning or worse."""
        urgent = _LEVELS.get(event.get("level", "info"), 0) >= _LEVELS["warning"]
        with self._lock:
            self._buffer.append(encode(event))
            if urgent or time.monotonic() - self._flushed_at >= _FLUSH_INTERVAL_S:
                self._flush()
        if urgent:
            _show(event, self._console)

    def flush(self) -> None:
        """Write what is buffered."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        lines, self._buffer, self._flushed_at = self._buffer, [], time.monotonic()
        if not lines or self._fd < 0:
            return
        try:
            with open(self._fd, "ab", closefd=False) as file:
                file.write(b"".join(lines))
        except OSError as error:
            if self.num_lost == 0:
                _show({"level": "warning", "event": f"events are lost: {self.path}: {error.strerror}"}, self._console)
            self.num_lost += len(lines)

    def close(self) -> None:
        """Write the rest and let go of the file; later events go to the standard library's logger. Idempotent."""
        global _sink  # noqa: PLW0603 - one run logs at a time
        with self._lock:
            self._flush()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
        if _sink is self:
            _sink = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_sink: EventLog | None = None


def configure(run_dir: Path, console: Console | None = None) -> EventLog:
    """Send prl's events to ``run_dir/events.jsonl`` until the returned log is closed."""
    global _sink  # noqa: PLW0603 - one run logs at a time
    _sink = EventLog(run_dir, console)
    return _sink


def get_logger(name: str) -> Any:
    """A structlog logger for the module ``name``: ``log.info("engine ready", engine="engine-0", start_s=3.2)``."""
    logger = structlog.wrap_logger(
        None,
        processors=[_add_facts, structlog.processors.ExceptionRenderer(), _emit],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        context_class=dict,
    )
    return logger.bind(logger=name.removeprefix("prl."))


def _add_facts(_: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Time and level first, so that a line reads from the left."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"time": now, "level": level, "event": event.pop("event", ""), **event}


def _emit(_: Any, __: str, event: MutableMapping[str, Any]) -> Any:
    sink = _sink
    if sink is not None:
        sink.write(event)
    else:
        _show(event, None)
    raise structlog.DropEvent


def describe(event: MutableMapping[str, Any]) -> str:
    """An event for people: its sentence and its facts on one line, a traceback below."""
    facts = [f"{k}={v}" for k, v in event.items() if k not in {"time", "level", "event", "logger", "exception"}]
    line = "  ".join([str(event.get("event", "")), *facts])
    return f"{line}\n{event['exception']}" if "exception" in event else line


def _show(event: MutableMapping[str, Any], console: Console | None) -> None:
    level = event.get("level", "info")
    if console is not None:
        console.print(f"{level}: {describe(event)}", style="red" if level == "error" else "yellow", markup=False)
    else:
        logging.getLogger("prl").log(_LEVELS.get(level, 20), "%s", describe(event))
