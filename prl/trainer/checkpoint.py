"""Folders that are there whole or not at all: how a checkpoint is committed, and how the newest complete one is found.

Invariants:

- Everything is written to a partial folder beside the target, every file is on the disk before the marker, the marker
  is the last file, and only then does the folder get its name. A process that is killed at any point leaves the
  previous checkpoint the newest complete one.
- The marker lists every file with its size and its checksum, and has one of its own. A folder is complete when its
  marker is readable and every file has its size; anything else is skipped, and said to be. Whoever is about to go on
  from one has the contents verified too (``latest``), which reads all of it once; those of a marker without checksums,
  as earlier versions wrote it, cannot be.
- A checkpoint that is replaced keeps its data until the new one has its name.
- A write that failed leaves nothing (``discard``); what a kill left is removed after the next complete one.

The folder ``step-000010`` holds the weights after 10 completed steps. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from prl.errors import CheckpointError
from prl.trainer.checksums import checksums

MARKER = "complete.json"
STATE = "state.msgpack"
SUMS = "checksums-*.json"
"""Where ranks leave the checksums of what they wrote until the marker has them."""


class Marker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a complete checkpoint says of itself."""

    step: int
    """Completed optimiser steps."""
    num_ranks: int
    files: dict[str, int]
    """Size in bytes of every other file, by its path in the folder."""
    checksums: dict[str, str] = {}
    """Their checksums (``checksums.py``), by the same; empty in what an earlier version wrote."""
    own_checksum: int | None = None
    """CRC-32 of this marker without it, as JSON."""

    def seal(self) -> int:
        """What ``own_checksum`` must be."""
        return zlib.crc32(msgspec.json.encode(msgspec.structs.replace(self, own_checksum=None)))


class Found(NamedTuple):
    """The outcome of a search."""

    folder: Path | None
    """The newest complete checkpoint; None if there is none."""
    skipped: dict[Path, str]
    """Newer ones that are not complete, or not what was written, each with the reason."""


def step_folder(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint after ``step`` completed steps lies."""
    return checkpoints / f"step-{step:06d}"


def latest(checkpoints: Path, *, verified: bool = False) -> Found:
    """The newest complete checkpoint in a folder of checkpoints, which need not exist.

    Args:
        checkpoints: the folder of all.
        verified: read its contents, and pass it over where they are not what was written. Blocking for as long as that
            takes.
    """
    skipped: dict[Path, str] = {}
    for step, folder in reversed(numbered(checkpoints)):
        try:
            marker = read_marker(folder, step)
            if verified:
                verify(folder, marker)
        except CheckpointError as error:
            skipped[folder] = str(error)
        else:
            return Found(folder, skipped)
    return Found(None, skipped)


def keep_newest(checkpoints: Path, count: int, *, damaged: Collection[Path] = ()) -> int:
    """Remove all but the ``count`` newest complete checkpoints, and what is older than they; the oldest step left.

    What is newer and not complete, or among those known to be ``damaged``, stays and does not count: it is skipped,
    and says what happened. What writes that were killed left behind is removed. Only while nobody writes.
    """
    for left in (path for end in ("partial", "replaced") for path in checkpoints.glob(f"step-*.{end}")):
        shutil.rmtree(left, ignore_errors=True)
    kept: list[int] = []
    for step, folder in reversed(numbered(checkpoints)):
        if len(kept) == count:
            shutil.rmtree(folder, ignore_errors=True)
        elif folder not in damaged:
            with contextlib.suppress(CheckpointError):
                read_marker(folder)
                kept.append(step)
    return min(kept, default=0)


def numbered(checkpoints: Path) -> list[tuple[int, Path]]:
    """The folders that are named as checkpoints, whole or not, with their steps, oldest first."""
    return sorted((int(path.name[5:]), path) for path in checkpoints.glob("step-*") if path.name[5:].isdecimal())


def read_marker(folder: Path, step: int | None = None) -> Marker:
    """The marker of a complete checkpoint, of ``step`` if that is given. Raises CheckpointError: it is not one."""
    try:
        marker = msgspec.json.decode((folder / MARKER).read_bytes(), type=Marker)
    except OSError as error:
        raise CheckpointError(
            f"{folder} is no complete checkpoint: {MARKER} cannot be read ({error.strerror})"
        ) from error
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{folder} is no complete checkpoint: {MARKER} is damaged ({error})") from error
    if marker.own_checksum not in {None, marker.seal()} or (marker.own_checksum is None and marker.checksums):
        raise CheckpointError(f"{folder} is no complete checkpoint: {MARKER} is damaged (it is not what was written)")
    if step is not None and marker.step != step:
        raise CheckpointError(f"{folder} holds step {marker.step}, not the step of its name")
    actual = _sizes(folder)
    for name, size in marker.files.items():
        if actual.get(name) != size:
            found = f"has {actual[name]} bytes" if name in actual else "is missing"
            raise CheckpointError(f"{folder} is no complete checkpoint: {name} {found}, {size} were written")
    return marker


def verify(folder: Path, marker: Marker) -> None:
    """Read everything that a complete checkpoint holds. Raises CheckpointError where that is not what was written."""
    try:
        found = checksums(folder, marker.checksums)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error}") from error
    for name, expected in marker.checksums.items():
        if found[name] != expected:
            raise CheckpointError(
                f"{folder} is damaged: the contents of {name} are not what was written (its checksum is {found[name]},"
                f" {expected} was written)"
            )
    if STATE not in marker.checksums:
        read_state(folder)


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


def discard(target: Path) -> None:
    """Leave nothing of a write that failed; what has the name stays."""
    shutil.rmtree(partial_of(target), ignore_errors=True)


def leave_checksums(target: Path, rank: int, names: Collection[str]) -> None:
    """What ``rank`` wrote into the partial folder of ``target`` has these checksums; ``commit`` puts them down."""
    partial = partial_of(target)
    path = partial / SUMS.replace("*", f"{rank:05d}")
    path.write_bytes(msgspec.json.encode(checksums(partial, names)))


def commit(target: Path, *, step: int, num_ranks: int) -> None:
    """Make the partial folder of ``target`` complete and give it its name. Only after every rank has written."""
    partial = partial_of(target)
    known: dict[str, str] = {}
    for path in sorted(partial.glob(SUMS)):
        known |= msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        path.unlink()
    files = _sizes(partial)
    for name in files:
        _sync(partial / name)
    known |= checksums(partial, files.keys() - known.keys())
    marker = Marker(step=step, num_ranks=num_ranks, files=files, checksums={name: known[name] for name in files})
    marker = msgspec.structs.replace(marker, own_checksum=marker.seal())
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
