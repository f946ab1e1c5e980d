"""Whose a run folder is: which one a run gets, and that no two processes write into one.

Invariants:

- While a run lives it holds a lock on the file ``lock`` of its folder, which has its process id. The kernel lets go of
  it when the process ends, however that happens: no lock is ever stale, and nobody has to take one away.
- A fresh run takes a name under that lock, so two that start at once get two folders. One that never began anything
  takes its folder away again.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import suppress
from pathlib import Path

from prl.errors import ConfigError

LOCK, RUNS = "lock", Path("runs")
MAX_TRIES = 5
"""Times that a folder is made anew which another run took away in the moment it was made."""


class Claim:
    """A folder that is this run's until ``release``, or until nobody holds the claim any more."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self._let_go = None
        if descriptor is not None:  # absolute: the process may change its folder meanwhile
            self._let_go = weakref.finalize(self, _let_go, path.absolute(), descriptor, is_named=path.parent == RUNS)

    def release(self) -> None:
        """Let others have it. Idempotent."""
        if self._let_go is not None:
            self._let_go()


class _TakenError(Exception):
    """Another process holds the lock."""


def choose(name: str, run_dir: Path | None, *, resume: bool) -> Path:
    """Where a run goes: ``run_dir``, or the next free of ``runs/NAME``, ``runs/NAME-2`` ...; to resume, the newest.

    Raises:
        ConfigError: ``run_dir`` is no folder, or holds a run already and this one does not resume it, or there is
            nothing to resume.
    """
    if run_dir is not None:
        if run_dir.exists() and not run_dir.is_dir():
            raise ConfigError(f"{run_dir} is a file: name a folder for --run-dir")
        if not resume and (run_dir / "config.toml").exists():
            raise ConfigError(f"{run_dir} holds a run already: continue it with --resume, or name another --run-dir")
        if resume and not (run_dir / "config.toml").exists():
            raise ConfigError(f"{run_dir} holds no run to resume (it has no config.toml)")
        return run_dir
    number, free = 1, _named(name, 1)
    while (free / "config.toml").exists():
        number, newest = number + 1, free
        free = _named(name, number)
    if not resume:
        return free
    if number == 1:
        raise ConfigError(f"there is no run to resume: {free} does not exist; name it with --run-dir")
    return newest


def claim(name: str, run_dir: Path | None, *, resume: bool) -> Claim:
    """Lock the folder that ``choose`` says, or for a fresh run the next one that nobody has.

    Raises:
        ConfigError: as ``choose`` does; or another process has that folder, or nothing can be written there.
    """
    if run_dir is not None or resume:
        path = choose(name, run_dir, resume=resume)
        try:
            return _locked(path)
        except _TakenError:
            raise ConfigError(
                f"{path} is in use: process {_owner(path)} runs there; wait for its end, or name another --run-dir"
            ) from None
    number = 1
    while True:
        path = _named(name, number)
        number += 1
        if (path / "config.toml").exists():
            continue
        try:
            mine = _locked(path)
        except _TakenError:
            continue
        if not (path / "config.toml").exists():
            return mine
        mine.release()  # another run came and went meanwhile


def _named(name: str, number: int) -> Path:
    return RUNS / (name if number == 1 else f"{name}-{number}")


def _locked(path: Path) -> Claim:
    while True:
        descriptor = _opened(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise _TakenError from None
        except OSError:  # a file system without locks: two runs in one folder are the user's to avoid there
            os.close(descriptor)
            return Claim(path, None)
        mine = Claim(path, descriptor)
        if not _is_there(path, descriptor):
            mine.release()  # its owner took it away in this moment
            continue
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except OSError as error:
            mine.release()
            raise ConfigError(f"nothing can be written to {path}: {error.strerror}; name another --run-dir") from error
        return mine


def _opened(path: Path) -> int:
    tries = 0
    while True:
        tries += 1
        try:
            path.mkdir(parents=True, exist_ok=True)
            return os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and tries < MAX_TRIES:
                continue
            raise ConfigError(f"nothing can be written to {path}: {error.strerror}; name another --run-dir") from error


def _let_go(path: Path, descriptor: int, *, is_named: bool) -> None:
    """Close the lock; a folder in which there is nothing else goes with it, and an empty ``runs`` above it."""
    with suppress(OSError):
        if _is_there(path, descriptor) and [entry.name for entry in path.iterdir()] == [LOCK]:
            (path / LOCK).unlink()
            path.rmdir()
            if is_named:
                path.parent.rmdir()
    os.close(descriptor)


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether the lock that is held is the one in the folder."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), (path / LOCK).stat())
    return False


def _owner(path: Path) -> str:
    with suppress(OSError):  # it may have ended in this moment
        return (path / LOCK).read_text(errors="replace").strip() or "unknown"
    return "unknown"
