"""Whether ranks on other hosts write to the folder that the controller reads: checkpoints are shards of all ranks.

The controller leaves a file with a word that nobody else knows; each rank looks for it before it loads anything. A
folder of the same name on a disk of its own does not pass.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from prl.errors import TrainerError

LOOK_S = 10.0
"""A network file system may show a new file to other hosts a moment later."""
_PAUSE_S = 0.25


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    """A file that every rank must find."""

    path: str
    word: str


@contextlib.contextmanager
def witness(folder: Path) -> Iterator[Witness]:
    """Leave one in ``folder`` for as long as the ranks look. Blocking, briefly."""
    word = secrets.token_hex(16)
    path = folder.absolute() / f".seen-by-all-ranks-{word[:8]}"
    path.write_text(word)
    try:
        yield Witness(path=str(path), word=word)
    finally:
        path.unlink(missing_ok=True)


def check(seen: Witness, who: str, *, look_s: float = LOOK_S) -> None:
    """Find it. Blocking.

    Raises:
        TrainerError: ``who`` has another folder under that path, or none, or may not write there.
    """
    path = Path(seen.path)
    folder = path.parent
    deadline = time.monotonic() + look_s
    while not (found := _holds(path, seen.word)) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    what = None
    if not found:
        what = "is another folder there than the controller's" if folder.is_dir() else "is not there"
    elif not os.access(folder, os.W_OK):
        what = "cannot be written there"
    if what is not None:
        raise TrainerError(
            f"{who} cannot use the run folder: {folder} {what}; all ranks write one checkpoint together, so --run-dir"
            " must name a folder on a file system that the controller's and the trainer's hosts share"
        )


def _holds(path: Path, word: str) -> bool:
    try:
        return path.read_text() == word
    except OSError:
        return False
