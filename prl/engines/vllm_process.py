"""How the engine core of vLLM is started: tied to its controller, apart from the terminal, heard in a log.

vLLM starts its core with ``multiprocessing``'s spawn and offers no say in it, so a small program stands in for the
interpreter while that happens: it redirects, ties, and becomes the interpreter that was asked for.

Invariants:

- Everything the core and its workers print, from the first byte on, goes to one log file.
- The core leads a session of its own: Ctrl-C in the terminal reaches the controller only, and one signal to the
  core's group reaches every worker.
- The core asks the kernel for SIGKILL at its parent's death before it does anything else. The kernel means the
  *thread* that started it, so that thread must live as long as the engine (``vllm_core.py`` keeps one).
- Settings that differ between engines (threads, cores) are in the child's environment only, never in the
  controller's, where they would leak into whatever else it starts meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.spawn
import os
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Self

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.01
_lock = threading.Lock()
"""The interpreter that ``multiprocessing`` starts, and what vLLM's configuration writes to ``os.environ``, are global
to the process: one engine at a time. Held until the core's process exists, not until it is ready."""


@contextlib.contextmanager
def captured_environment() -> Iterator[dict[str, str]]:
    """Undo what the body writes to ``os.environ``, and yield a mapping that then holds it."""
    changed: dict[str, str] = {}
    with _lock:
        before = dict(os.environ)
        try:
            yield changed
        finally:
            changed |= {name: value for name, value in os.environ.items() if before.get(name) != value}
            for name in changed:
                if name in before:
                    os.environ[name] = before[name]
                else:
                    del os.environ[name]


class Launch:
    """While entered, the next process that ``multiprocessing`` spawns starts through ``main`` below."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        self.pid: int | None = None
        """The core's process id, which is also its group's, once it exists."""
        self._log, self._environment = log, environment
        self._leaving = threading.Event()

    def __enter__(self) -> Self:
        _lock.acquire()
        _start_tracker()
        handle, self._script = tempfile.mkstemp(prefix="prl-engine-", suffix=".sh")
        with os.fdopen(handle, "w") as file:
            file.write(self._program())
        Path(self._script).chmod(0o700)
        self._interpreter = multiprocessing.spawn.get_executable()
        self._before = {child.pid for child in multiprocessing.active_children()}
        multiprocessing.spawn.set_executable(self._script)
        self._watch = threading.Thread(target=self._restore, name="prl-launch", daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._watch.join()
        Path(self._script).unlink(missing_ok=True)

    def _program(self) -> str:
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self._environment.items())
        become = [sys.executable, "-m", __name__, str(self._log), str(os.getpid())]
        return f'#!/bin/sh\n{exports}exec {shlex.join(become)} "$@"\n'

    def _restore(self) -> None:
        """Give the interpreter back as soon as the core has started, long before it is ready."""
        while self.pid is None and not self._leaving.wait(_POLL_S):
            for child in multiprocessing.active_children():
                if child.pid not in self._before:
                    self.pid = child.pid
        multiprocessing.spawn.set_executable(self._interpreter)
        _lock.release()


def _start_tracker() -> None:
    """Start the process that cleans up shared memory, else it would be the first to start through the stand-in.

    It warns on the terminal about what a killed core left behind, while it removes it; that is its work, not news.
    """
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore"
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


def main(argv: list[str]) -> None:
    """``python -m prl.engines.vllm_process LOG CONTROLLER ARGUMENT...``: become the interpreter with ARGUMENTs."""
    log, controller, arguments = Path(argv[0]), int(argv[1]), argv[2:]
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != controller:
        sys.exit(1)
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 -- that is its purpose


if __name__ == "__main__":
    main(sys.argv[1:])
