"""Where every process of a run is: its Python stacks, given on request, also while it computes or waits in C.

Invariants:

- A process that called ``answer_requests`` prints the stacks of its threads when it gets ``SIGNAL``, without taking
  part in it: the interpreter need not be free. It says so by a file named after its id and its start.
- Only a descendant that said so is ever sent the signal, which would kill any other; ids that were used again do not
  match their start.
- A request is bounded in time: a process that is stopped, or held by the kernel, is listed without stacks.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from prl.process import NAME_VARIABLE

SIGNAL = signal.SIGUSR2
ANSWER_TIMEOUT_S = 2.0
_LOOK_S = 0.02
_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_AWAITED = ("cr_await", "ag_await", "gi_yieldfrom")


# ---- the process that is asked ---------------------------------------------------------------------------------------


def answer_requests(part: str = "") -> None:
    """Print this process's stacks when its controller asks; ``part`` tells it from others of the same name.

    Call it again in a process that was forked. Where there is no place for the answer, there will be none.
    """
    with suppress(OSError):
        folder = _answers()
        _sweep(folder)
        name = " ".join(filter(None, [os.environ.get(NAME_VARIABLE, ""), part])) or "a child process"
        target = folder / _key(os.getpid())
        draft = target.with_suffix(".new")
        file = draft.open("w")  # open for as long as the process lives: the handler writes to it
        file.write(f"{name}\n")
        file.flush()
        faulthandler.register(SIGNAL, file=file, all_threads=True)
        _kept.append(file)
        draft.replace(target)  # from here on this process may be asked


_kept: list[Any] = []


def _answers() -> Path:
    """Where processes of this user answer; nobody else may write there."""
    folder = Path(tempfile.gettempdir()) / f"prl-stacks-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise PermissionError(f"{folder} is not this user's alone")
    return folder


def _key(pid: int) -> str:
    """A process by its id and its start, which together are never used again."""
    import psutil  # noqa: PLC0415 - not in every process from the start

    with suppress(OSError):
        return f"{pid}-{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}.txt"
    return f"{pid}-{psutil.Process(pid).create_time():.2f}.txt"


def _sweep(folder: Path) -> None:
    """Remove what processes left that are gone."""
    for file in folder.iterdir():
        pid = file.name.partition("-")[0]
        if pid.isdecimal():
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                file.unlink(missing_ok=True)
            except PermissionError:
                continue


# ---- the process that asks -------------------------------------------------------------------------------------------


class ProcessStacks(NamedTuple):
    """One process below this one."""

    pid: int
    name: str
    state: str
    """Such as ``sleeping`` or ``stopped``."""
    stacks: str
    """What it answered, or why nothing."""


def processes() -> list[ProcessStacks]:
    """Every process below this one, with its stacks. Blocking, at most ``ANSWER_TIMEOUT_S`` and what looking takes."""
    import psutil  # noqa: PLC0415 - only for this

    found, asked = list[ProcessStacks](), dict[int, tuple[Path, int]]()
    with suppress(OSError):
        folder = _answers()
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error, OSError):
                file = folder / _key(process.pid)
                if file.is_file():
                    asked[process.pid] = file, file.stat().st_size
                    os.kill(process.pid, SIGNAL)
    answers = dict(_answered(asked))
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            name, stacks = answers.get(process.pid, (_called(process), "(it cannot be asked for its stacks)\n"))
            found.append(ProcessStacks(process.pid, name, process.status(), stacks))
    return found


def _called(process: Any) -> str:
    """What a process is that did not say."""
    return " ".join(process.cmdline())[:120] or process.name()


def _answered(asked: dict[int, tuple[Path, int]]) -> Iterator[tuple[int, tuple[str, str]]]:
    """What each process has printed since, once it is complete or the time is over."""
    deadline, sizes = time.monotonic() + ANSWER_TIMEOUT_S, {pid: size for pid, (_, size) in asked.items()}
    is_open = set(asked)
    while is_open and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        for pid in tuple(is_open):
            size = _size(asked[pid][0])
            if size == sizes[pid] > asked[pid][1]:
                is_open.remove(pid)
            sizes[pid] = size
    for pid, (file, before) in asked.items():
        with suppress(OSError):
            name, _, text = file.read_text(errors="replace").partition("\n")
            told = text.encode()[max(0, before - len(name.encode()) - 1) :].decode(errors="replace")
            yield pid, (name, told or f"(no answer within {ANSWER_TIMEOUT_S:g} s)\n")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


# ---- this process ----------------------------------------------------------------------------------------------------


def places(task: asyncio.Task[Any]) -> list[str]:
    """Where a suspended task waits, outermost coroutine first."""
    found = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = next((getattr(awaited, name) for name in _FRAMES if getattr(awaited, name, None)), None)
        if frame is not None:
            code = frame.f_code
            name = getattr(code, "co_qualname", code.co_name)
            found.append(f"{name} ({Path(code.co_filename).name}:{frame.f_lineno})")
        awaited = next((getattr(awaited, name) for name in _AWAITED if getattr(awaited, name, None)), None) or (
            _generator_of(awaited)
        )
    return found


def _generator_of(awaited: Any) -> Any:
    """The asynchronous generator behind the awaitable that ``anext`` makes of it; it has no attribute for that."""
    if type(awaited).__name__ != "async_generator_asend":
        return None
    return next((each for each in gc.get_referents(awaited) if hasattr(each, "ag_frame")), None)


def own_stacks(loop: asyncio.AbstractEventLoop) -> str:
    """Every task of ``loop`` and every thread of this process."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    told = [f"{task.get_name()}\n" + "".join(f"  {place}\n" for place in places(task)) for task in tasks]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the documented way
        told.append(f"thread {names.get(ident, ident)}\n" + "".join(traceback.format_stack(frame)))
    return "\n".join(told)
