"""Events: one JSON object a line in ``events.jsonl``, and warnings where people see them.

- ``get_logger`` works before, during and after a run and in any thread. It never touches structlog's or ``logging``'s
  global configuration, so a program that embeds prl keeps its own: without a console, warnings go to the standard
  library's logger ``prl``, which is silent until the host gives it a handler.
- A line is always valid JSON: a number that is not finite is null, a value that JSON cannot hold is its ``repr``.
- Logging never stops a run: a disk that is full costs lines, counted, and one warning.
- People see a warning of one kind at most every few seconds, with the number of those kept back; the file has them all.
- Lines are buffered, and written at least once a second, at every warning or error, and at the end.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
import structlog

_FLUSH_INTERVAL_S = 1.0
_REPEAT_INTERVAL_S = 10.0
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
"""How grave an event of each level is."""

logging.getLogger("prl").addHandler(logging.NullHandler())


class Console(Protocol):
    """Where warnings are shown to people: a ``rich.console.Console`` is one."""

    def print(self, *objects: Any, style: str | None = None, markup: bool | None = None) -> None:
        """Show one line, above a live panel if there is one."""
        ...


def encode(event: MutableMapping[str, Any], clear: Callable[[str], str] = str) -> bytes:
    """One event as a line of JSON, whatever its values are, without what ``clear`` takes out of a text."""
    try:
        return msgspec.json.encode(_cleared(msgspec.to_builtins(event, enc_hook=_printable), clear)) + b"\n"
    except (TypeError, ValueError, RecursionError):  # keys of mixed types, lone surrogates, a list that holds itself
        plain = {
            _printable(key): value if _is_number(value) else clear(_printable(value)) for key, value in event.items()
        }
        return msgspec.json.encode(plain) + b"\n"


def _cleared(value: Any, clear: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clear(value)
    if isinstance(value, dict):
        return {key: _cleared(each, clear) for key, each in value.items()}
    return [_cleared(each, clear) for each in value] if isinstance(value, list | tuple) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | None)


def _printable(value: Any) -> str:
    """A value as text that UTF-8 takes (a file name may hold lone surrogates)."""
    text = value if isinstance(value, str) else repr(value)
    return text.encode("utf-8", "backslashreplace").decode()


class EventLog:
    """The sink of one run: ``events.jsonl`` in its folder and, for warnings, a console."""

    def __init__(self, run_dir: Path, console: Console | None, clear: Callable[[str], str] = str) -> None:
        """``clear`` takes secrets out of a text."""
        self._clear = clear
        run_dir.mkdir(parents=True, exist_ok=True)
        self.path = run_dir / "events.jsonl"
        self.num_lost = 0
        self._console = console
        self._lock = threading.Lock()
        self._buffer: list[bytes] = []
        self._flushed_at = time.monotonic()
        self._shown: dict[str, tuple[float, int]] = {}
        """Per kind of warning: when it was shown, and how many came since."""
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, event: MutableMapping[str, Any], *, show: bool = True) -> None:
        """Keep one event; show it (unless ``show`` says no) when it is a warning or worse."""
        urgent = LEVELS.get(event.get("level", "info"), 0) >= LEVELS["warning"]
        with self._lock:
            self._buffer.append(encode(event, self._clear))
            if urgent or time.monotonic() - self._flushed_at >= _FLUSH_INTERVAL_S:
                self._flush()
        if show and urgent and (repeats := self._due(str(event.get("event")))) is not None:
            _show({**event, "not_shown": repeats} if repeats else event, self._console, self._clear)

    def _due(self, kind: str) -> int | None:
        """None when this kind of warning was shown a moment ago, else how many were kept back since."""
        with self._lock:
            now = time.monotonic()
            shown_at, repeats = self._shown.get(kind, (-_REPEAT_INTERVAL_S, 0))
            if now - shown_at < _REPEAT_INTERVAL_S:
                self._shown[kind] = shown_at, repeats + 1
                return None
            self._shown[kind] = now, 0
            return repeats

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


def configure(run_dir: Path, console: Console | None = None, clear: Callable[[str], str] = str) -> EventLog:
    """Send prl's events, without what ``clear`` takes out, to ``run_dir/events.jsonl`` until the log is closed."""
    global _sink  # noqa: PLW0603 - one run logs at a time
    _sink = EventLog(run_dir, console, clear)
    return _sink


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _add_facts(_: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Time and level first, so that a line reads from the left."""
    return {"time": _now(), "level": level, "event": event.pop("event", ""), **event}


def _emit(_: Any, __: str, event: MutableMapping[str, Any]) -> Any:
    sink = _sink
    if sink is not None:
        sink.write(event)
    else:
        _show(event, None)
    raise structlog.DropEvent


_PROCESSORS: list[Any] = [_add_facts, structlog.processors.ExceptionRenderer(), _emit]
_LOGGER_CLASS = structlog.make_filtering_bound_logger(0)


def get_logger(name: str) -> Any:
    """A structlog logger for the module ``name``: ``log.info("engine ready", engine="engine-0", start_s=3.2)``."""
    logger = structlog.wrap_logger(None, processors=_PROCESSORS, wrapper_class=_LOGGER_CLASS, context_class=dict)
    return logger.bind(logger=name.removeprefix("prl."))


class _FromLogging(logging.Handler):
    """Records of other libraries, into the events of the run."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it; people see errors only, as the warnings of libraries are not for them."""
        event = {"level": record.levelname.lower(), "logger": record.name, "event": record.getMessage()}
        event = {"time": _now(), **event}
        sink = _sink
        if sink is None:
            sys.stderr.write(f"{event['level']}: {record.name}: {event['event']}\n")
        else:
            sink.write(event, show=record.levelno >= logging.ERROR)


@contextmanager
def captured() -> Iterator[None]:
    """For the program ``prl`` alone: other libraries' warnings and whatever uses structlog go to the events too."""
    handler = _FromLogging(logging.WARNING)
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(capture=True)
    structlog.configure(processors=_PROCESSORS, wrapper_class=_LOGGER_CLASS, cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.reset_defaults()
        logging.captureWarnings(capture=False)
        logging.getLogger().removeHandler(handler)


def describe(event: MutableMapping[str, Any]) -> str:
    """An event for people: its sentence and its facts on one line, a traceback below."""
    facts = [f"{k}={v}" for k, v in event.items() if k not in {"time", "level", "event", "logger", "exception"}]
    line = "  ".join([str(event.get("event", "")), *facts])
    return f"{line}\n{event['exception']}" if "exception" in event else line


def _show(event: MutableMapping[str, Any], console: Console | None, clear: Callable[[str], str] = str) -> None:
    level, text = event.get("level", "info"), clear(describe(event))
    if console is not None:
        console.print(f"{level}: {text}", style="red" if level == "error" else "yellow", markup=False)
    else:
        logging.getLogger("prl").log(LEVELS.get(level, 20), "%s", text)
