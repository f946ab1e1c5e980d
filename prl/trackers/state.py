"""How far a tracker is: ``trackers/NAME.json`` in the run folder, written by its process and read by anybody.

It is replaced as a whole, so that no reader sees half of it, and it outlives both the process and the run: a run that
is resumed finds there which curves are its own.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

FOLDER = "trackers"


class State(msgspec.Struct, kw_only=True):
    """What stands there."""

    id: str = ""
    """The run's name at the tracker."""
    url: str = ""
    part: str = ""
    """The part of the run, a process of the controller, that it was opened for last."""
    sent: dict[str, int] = {}
    """The last step that was sent of each file."""
    num_dropped: int = 0
    """Points that the tracker refused again and again."""
    doing: str = ""
    """The call under way: ``open``, ``log`` or ``finish``; empty while none is."""
    since: float = 0.0
    """Since when, on the machine's monotonic clock, which its processes have in common."""
    error: str = ""
    """What the last call ended with; empty where it went well."""
    num_errors: int = 0
    is_finished: bool = False
    """The end of this part was told, and taken."""

    @property
    def sent_step(self) -> int:
        """The last step of all files; -1 where nothing was sent."""
        return max(self.sent.values(), default=-1)


def path_of(run_dir: Path, label: str) -> Path:
    """Where the state of the tracker ``label`` stands."""
    return run_dir / FOLDER / f"{label}.json"


def read(run_dir: Path, label: str) -> State:
    """What stands there; a fresh one where there is none, or none that can be read."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path_of(run_dir, label).read_bytes(), type=State)
    return State()


def write(run_dir: Path, label: str, state: State) -> None:
    """Replace it. Raises OSError."""
    path = path_of(run_dir, label)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".part")
    draft.write_bytes(msgspec.json.encode(state) + b"\n")
    draft.replace(path)
