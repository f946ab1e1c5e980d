"""What holds up the event loop: a thread that looks where the loop's thread is while its heartbeat is late.

Invariants:

- A delay that a Python function caused is told with the function, its file and line: the innermost one that is not the
  standard library's. A delay without one is a busy machine, or C code (garbage collection, too) that holds Python.
- While the loop has been blocked for ``FILE_AFTER_S``, a file says in what and since when; it is gone when the loop
  goes on. Whoever asks a run that does not answer finds it there.
- A process that was stopped as a whole has not been blocked: this thread slept, too.
- While the heart beats this costs twenty looks at the clock a second.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Self

import msgspec

from prl.errors import StallError

FILE = "blocked.json"
FILE_AFTER_S = 1.0
_LOOK_S = 0.05
_END_S = 5.0
"""Longest wait for the thread, which may be writing to a disk that hangs."""
_LATE_S = 0.1
"""A heartbeat that is later than this is looked into."""
_SIGNAL = signal.SIGUSR1
_STDLIB = tuple(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib"))
_PACKAGES = tuple(sysconfig.get_paths()[name] + os.sep for name in ("purelib", "platlib"))


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """The event loop of process ``pid`` does not go on."""

    pid: int
    since: float
    """Unix time."""
    seconds: float
    where: str
    """The function that holds it up, or a word that none does."""


class LoopMonitor:
    """Watches the event loop of the thread that enters it.

    Args:
        interval_s: between two heartbeats.
        folder: where the file is.
        stall_s: how long the loop may be blocked before ``on_stall`` is called, in this monitor's thread, and what
            blocks it is interrupted with its error, where the loop runs in the main thread.
        on_stall: is told where and for how long; the error to interrupt with, or None to leave it alone.
    """

    def __init__(
        self, interval_s: float, folder: Path, *, stall_s: float, on_stall: Callable[[str, float], StallError | None]
    ) -> None:
        self._interval_s, self._file = interval_s, folder / FILE
        self._stall_s, self._on_stall = stall_s, on_stall
        self._seen: Counter[str] = Counter()
        self._beat_at = time.monotonic()
        self._is_written = self._is_told = False
        self._left = threading.Event()
        self._verdict: StallError | None = None
        self._thread = threading.Thread(target=self._watch, name="prl-loop-monitor", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._loop_thread, self._base = threading.get_ident(), _runner(sys._getframe(1))  # noqa: SLF001 - documented
        self._beat_at = time.monotonic()
        self._may_interrupt = threading.current_thread() is threading.main_thread() and (
            signal.getsignal(_SIGNAL) is signal.SIG_DFL
        )
        if self._may_interrupt:
            signal.signal(_SIGNAL, self._interrupt)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._left.set()
        self._thread.join(_END_S)
        if self._may_interrupt:
            signal.signal(_SIGNAL, signal.SIG_DFL)
        self._remove()

    def beat(self) -> str | None:
        """The loop runs. Returns what held it up since the last beat, where that was seen."""
        self._beat_at = time.monotonic()
        if not self._seen:
            return None
        seen, self._seen = self._seen, Counter()
        self._is_told = False
        return seen.most_common(1)[0][0]

    @property
    def verdict(self) -> StallError | None:
        """The error that ended a block, once."""
        verdict, self._verdict = self._verdict, None
        return verdict

    def _watch(self) -> None:
        looked_at = time.monotonic()
        while not self._left.wait(_LOOK_S):
            slept_s, looked_at = time.monotonic() - looked_at, time.monotonic()
            if slept_s > FILE_AFTER_S:  # the whole process was stopped
                self._beat_at = looked_at
            late_s = looked_at - self._beat_at - self._interval_s
            if late_s < _LATE_S:
                if self._is_written:
                    self._remove()
                continue
            if (where := self._place()) is not None:
                self._seen[where] += 1
            if late_s > FILE_AFTER_S:
                self._look_at_long(late_s)

    def _look_at_long(self, late_s: float) -> None:
        where = self._seen.most_common(1)[0][0] if self._seen else "no Python function that could be seen"
        self._write(Blocked(pid=os.getpid(), since=time.time() - late_s, seconds=round(late_s, 1), where=where))
        if late_s > self._stall_s and self._seen and not self._is_told:
            self._is_told = True
            beat_at, verdict = self._beat_at, self._on_stall(where, late_s)
            if self._beat_at != beat_at:  # it went on by itself meanwhile
                return
            self._verdict = verdict
            if verdict is not None and self._may_interrupt:
                signal.pthread_kill(self._loop_thread, _SIGNAL)

    def _interrupt(self, _: int, __: FrameType | None) -> None:
        """In the loop's thread: end the call that blocks it, asleep in C or not."""
        if self._verdict is not None:
            raise self._verdict

    def _write(self, blocked: Blocked) -> None:
        with suppress(OSError):
            draft = self._file.with_suffix(".new")
            draft.write_bytes(msgspec.json.encode(blocked))
            draft.replace(self._file)
            self._is_written = True

    def _remove(self) -> None:
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
        self._is_written = False

    def _place(self) -> str | None:
        """What the loop's thread is in above its event loop."""
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the documented way
        frames = []
        while frame is not None and frame is not self._base:
            frames.append(frame)
            frame = frame.f_back
        return place_of(frames)


def place_of(frames: list[FrameType]) -> str | None:
    """The innermost of ``frames`` (innermost first) outside the standard library, and who called it if it is installed.

    None where all of them are the event loop's own.
    """
    own = [frame for frame in frames if not _is_in(frame, _STDLIB) or _is_in(frame, _PACKAGES)]
    if not own:
        return None
    first = own[0]
    caller = next((frame for frame in own if not _is_in(frame, _PACKAGES)), None)
    called = f", called by {_named(caller)}" if caller is not None and caller is not first else ""
    return _named(first) + called


def _named(frame: FrameType) -> str:
    code = frame.f_code
    return f"{getattr(code, 'co_qualname', code.co_name)} ({code.co_filename}:{frame.f_lineno})"


def _is_in(frame: FrameType, folders: tuple[str, ...]) -> bool:
    return frame.f_code.co_filename.startswith(folders) or frame.f_code.co_filename.startswith("<frozen")


def _runner(frame: FrameType | None) -> FrameType | None:
    """The frame that runs the event loop: the first below the task's that is neither its coroutines nor asyncio's."""
    while frame is not None:
        name = frame.f_code.co_filename
        if frame.f_code.co_name in {"run_until_complete", "run_forever"} or name.endswith("asyncio/runners.py"):
            return frame
        if frame.f_back is None or (not frame.f_code.co_flags & _COROUTINE and "asyncio" not in name):
            return frame
        frame = frame.f_back
    return None


_COROUTINE = 0x80 | 0x100 | 0x200
"""Flags of code whose frames belong to a coroutine or an asynchronous generator."""


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Leave what start-up made out of garbage collection: a full pass over what was imported stops the loop.

    Where the program that embeds a run has frozen its heap, nothing is left to do, or to undo.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
