"""Where the index of a run's samples lies, and how it is opened.

Invariants:

- It lies in ``index/`` of the run folder, for each machine its own, since SQLite's write-ahead log is no good across
  machines; where nothing can be written there, in the user's cache folder.
- What lies there already is opened only if it is a plain file with this schema; else it is made anew.
- It trusts nothing that a folder from somebody else may hold: no symbolic link is followed, no schema's code is run.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sqlite3
from contextlib import suppress
from pathlib import Path

FOLDER = "index"
BUSY_TIMEOUT_S = 5.0
"""Longest wait for another process that writes the same index."""


def connect(run_dir: Path, schema: str, *, anew: bool = False) -> sqlite3.Connection:
    """The index of the samples in ``run_dir``, empty where there was none; in memory where nothing can be written.

    Args:
        run_dir: the run folder.
        schema: the statements that make the tables.
        anew: throw away what is there.
    """
    for path in _places(run_dir):
        with suppress(OSError, sqlite3.Error):
            return _opened(path, schema, anew=anew)
    return _with_schema(sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None), schema)


def _places(run_dir: Path) -> list[Path]:
    machine = re.sub(r"[^\w.-]", "_", socket.gethostname())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "prl" / FOLDER
    name = hashlib.sha256(os.fsencode(run_dir.resolve())).hexdigest()[:32]
    return [run_dir / FOLDER / f"samples-{machine}.sqlite", cache / f"{name}-{machine}.sqlite"]


def _opened(path: Path, schema: str, *, anew: bool) -> sqlite3.Connection:
    if not path.parent.parent.is_dir() and path.parent.name == FOLDER and path.parent.parent.name != "prl":
        raise FileNotFoundError(path)  # the run folder is gone, and is not made again for its index
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.parent.is_symlink() or path.is_symlink():
        raise PermissionError(path)
    if anew:
        _remove(path)
    for _ in range(2):
        base = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, check_same_thread=False, isolation_level=None)
        try:
            base.execute("PRAGMA trusted_schema = OFF")
            base.execute("PRAGMA journal_mode = WAL")
            base.execute("PRAGMA synchronous = OFF")  # after a crash of the machine it is made anew
            return _with_schema(base, schema)
        except sqlite3.DatabaseError as error:
            base.close()
            if isinstance(error, sqlite3.OperationalError) and "lock" in str(error):
                raise
            _remove(path)
    raise OSError(f"{path} cannot be used")


def _with_schema(base: sqlite3.Connection, schema: str) -> sqlite3.Connection:
    """Make the tables, unless they are there exactly so."""
    wanted = hashlib.sha256(schema.encode()).digest()
    number = int.from_bytes(wanted[:4], "big") >> 1
    base.execute("BEGIN IMMEDIATE")
    try:
        found = base.execute("PRAGMA user_version").fetchone()[0]
        if not found:
            for statement in filter(None, map(str.strip, schema.split(";"))):
                base.execute(statement)
            base.execute(f"PRAGMA user_version = {number}")
        elif found != number:
            raise sqlite3.DatabaseError("the tables are those of another version")  # noqa: TRY301 -- undone below
        base.execute("COMMIT")
    except BaseException:
        base.execute("ROLLBACK")
        raise
    return base


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
