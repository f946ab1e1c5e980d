"""Looking on in a terminal until somebody leaves: nothing that is pressed here reaches the run.

- The run and its files are looked at in a thread, so that a run that does not answer delays no key.
- The terminal is given back as it was, however this ends; a hang-up of ssh ends it and nothing else.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, RenderableType
from rich.live import Live

from prl.panel import show
from prl.watch.screen import LEAVE, render
from prl.watch.seen import Seen, Watched

LOOK_EVERY_S = 1.0
DRAW_EVERY_S = 0.25
PLAIN_HEIGHT = 60
_LEAVING = frozenset(b"qQ\x03\x04")
"""q, ctrl-C and ctrl-D."""
_MOST_KEYS = 64


def watch(watched: Watched, console: Console) -> None:
    """Until a key that leaves; where there is no terminal, once."""
    if not console.is_terminal or console.is_dumb_terminal:
        show(console, render(watched.look(), console.width, PLAIN_HEIGHT))
        return
    looking = _Looking(watched)
    drawn: object = None
    with suppress(KeyboardInterrupt), _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while not keys(DRAW_EVERY_S):
            if looking.error is not None:
                raise looking.error
            seen, size = looking.seen, console.size
            if drawn != (id(seen), size):
                live.update(_view(seen, console), refresh=True)
                drawn = (id(seen), size)


def _view(seen: Seen | None, console: Console) -> RenderableType:
    if seen is None:
        return "looking ..."
    return render(seen, console.width, console.height, footer=LEAVE if seen.status is not None else "q leaves")


class _Looking:
    """Looks again and again, in a thread that ends with the process."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self.seen: Seen | None = None
        self.error: Exception | None = None
        threading.Thread(target=self._run, name="prl-watch", daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                self.seen = self._watched.look()
                time.sleep(LOOK_EVERY_S)
        except Exception as error:  # noqa: BLE001 -- raised where the terminal is given back
            self.error = error


@contextmanager
def _keys() -> Iterator[_Keys]:
    """Single keys of the standard input, if that is a terminal; signals of the keyboard are keys too."""
    if not sys.stdin.isatty():
        yield _Keys(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield _Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class _Keys:
    """Waits for a key."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def __call__(self, timeout_s: float) -> bool:
        """Whether one that leaves was pressed within ``timeout_s``."""
        if self._descriptor is None:
            time.sleep(timeout_s)
            return False
        ready, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if not ready:
            return False
        pressed = os.read(self._descriptor, _MOST_KEYS)
        return not pressed or not _LEAVING.isdisjoint(pressed)
