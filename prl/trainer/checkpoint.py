"""Folders that are there whole or not at all: how a checkpoint is committed, and how the newest complete one is found.

Invariants:

- Everything is written to a partial folder beside the target, every file is on the disk before the marker, the marker
  is the last file, and only then does the folder get its name. A process that is killed at any point leaves the
  previous checkpoint the newest complete one.
- The marker lists every file with its size. A folder is complete when its marker is readable and every file has its
  size; anything else is skipped, and said to be.
- A checkpoint that is replaced keeps its data until the new one has its name.

The folder ``step-000010`` holds the weights after 10 completed steps. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from prl.errors import CheckpointError

MARKER = "complete.json"
STATE = "state.msgpack"


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """What a complete checkpoint says of itself."""

    step: int
    """Completed optimiser steps."""
    num_ranks: int
    files: dict[str, int]
    """Size in bytes of every other file, by its path in the folder."""


class Found(NamedTuple):
    """The outcome of a search."""

    folder: Path | None
    """The newest complete checkpoint; None if there is none."""
    skipped: list[str]
    """Newer ones that are not complete, each with the reason."""


def step_folder(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint after ``step`` completed steps lies."""
    return checkpoints / f"step-{step:06d}"


def latest(checkpoints: Path) -> Found:
    """The newest complete checkpoint in a folder of checkpoints, which need not exist."""
    skipped: list[str] = []
    if not checkpoints.is_dir():
        return Found(None, skipped)
    numbered = [(int(path.name[5:]), path) for path in checkpoints.glob("step-*") if path.name[5:].isdecimal()]
    for step, folder in sorted(numbered, reverse=True):
        try:
            marker = read_marker(folder)
        except CheckpointError as error:
            skipped.append(str(error))
            continue
        if marker.step == step:
            return Found(folder, skipped)
        skipped.append(f"{folder} holds step {marker.step}, not the step of its name")
    return Found(None, skipped)


def keep_newest(checkpoints: Path, count: int) -> int:
    """Remove all but the ``count`` newest complete checkpoints, and what is older than they; the oldest step left.

    What is newer and not complete stays: it is skipped, and says what happened.
    """
    numbered = sorted((int(path.name[5:]), path) for path in checkpoints.glob("step-*") if path.name[5:].isdecimal())
    kept: list[int] = []
    for step, folder in reversed(numbered):
        if len(kept) == count:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with contextlib.suppress(CheckpointError):
            read_marker(folder)
            kept.append(step)
    return min(kept, default=0)


def read_marker(folder: Path) -> Marker:
    """The marker of a complete checkpoint. Raises CheckpointError where ``folder`` is not one."""
    try:
        marker = msgspec.json.decode((folder / MARKER).read_bytes(), type=Marker)
    except OSError as error:
        raise CheckpointError(
            f"{folder} is no complete checkpoint: {MARKER} cannot be read ({error.strerror})"
        ) from error
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{folder} is no complete checkpoint: {MARKER} is damaged ({error})") from error
    actual = _sizes(folder)
    for name, size in marker.files.items():
        if actual.get(name) != size:
            found = f"has {actual[name]} bytes" if name in actual else "is missing"
            raise CheckpointError(f"{folder} is no complete checkpoint: {name} {found}, {size} were written")
    return marker


def read_state(folder: Path) -> dict[str, Any]:
    """What the controller gave to ``save``."""
    try:
        return msgspec.msgpack.decode((folder / STATE).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{folder / STATE} cannot be read: {error}") from error


def partial_of(target: Path) -> Path:
    """Where ``target`` is written before it is complete."""
    return target.with_name(f"{target.name}.partial")


def begin(target: Path) -> Path:
    """An empty partial folder beside ``target``; what an interrupted write left there is removed."""
    partial = partial_of(target)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def commit(target: Path, *, step: int, num_ranks: int) -> None:
    """Make the partial folder of ``target`` complete and give it its name. Only after every rank has written."""
    partial = partial_of(target)
    for name in _sizes(partial):
        _sync(partial / name)
    marker = Marker(step=step, num_ranks=num_ranks, files=_sizes(partial))
    (partial / MARKER).write_bytes(msgspec.json.encode(marker))
    _sync(partial / MARKER)
    put(target)


def put(target: Path) -> None:
    """Give the partial folder of ``target`` its name, in place of what has it."""
    partial, replaced = partial_of(target), target.with_name(f"{target.name}.replaced")
    _sync(partial)
    shutil.rmtree(replaced, ignore_errors=True)
    if target.exists():
        target.rename(replaced)
    partial.rename(target)
    _sync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _sizes(folder: Path) -> dict[str, int]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths if path.name != MARKER}


def _sync(path: Path) -> None:
    """Wait until a file or the entries of a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
