"""``control.json`` in the run folder: where the run listens, and what to present there.

Invariants:

- Only its owner can read it: it is made with mode 0600 under a name of its own and then moved into place, so that there
  is no moment in which others could, and no reader sees half of it.
- A token that came from the environment is never written to the disk.
- It is there while the run listens. One that a killed run left behind is told from a live one by its process.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import msgspec

from prl.errors import ConfigError

CONTROL_FILE = "control.json"


class GoneError(ConfigError):
    """The run that left its address here was killed."""


class ControlAddress(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the file."""

    url: str
    """Such as ``http://127.0.0.1:40213``."""
    token: str | None
    """None: the run has it from PRL_CONTROL_TOKEN, and so must whoever asks."""
    pid: int
    """The run's process."""
    host: str
    """The machine's name."""


def of_this_process(url: str, token: str | None) -> ControlAddress:
    """The address of a run in this process."""
    return ControlAddress(url=url, token=token, pid=os.getpid(), host=socket.gethostname())


def write(run_dir: Path, address: ControlAddress) -> None:
    """Put the file there, in place of one that an earlier run has left. Raises OSError."""
    draft = run_dir / f"{CONTROL_FILE}.{address.pid}.part"
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 -- a descriptor
        file.write(msgspec.json.encode(address) + b"\n")
    draft.replace(run_dir / CONTROL_FILE)


def remove(run_dir: Path, address: ControlAddress) -> None:
    """Take the file away if it is still this run's. A folder that is gone, or read-only, is no error."""
    path = run_dir / CONTROL_FILE
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        if msgspec.json.decode(path.read_bytes(), type=ControlAddress) == address:
            path.unlink()


def read(run_dir: Path) -> ControlAddress:
    """Where the run in ``run_dir`` listens.

    Raises:
        ConfigError: there is no such folder, no run goes on in it, or the file cannot be read. A GoneError where the
            run ended without a word.
    """
    path = run_dir / CONTROL_FILE
    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir}: no such folder; name the folder of a run, such as runs/math, or its address")
    try:
        address = msgspec.json.decode(path.read_bytes(), type=ControlAddress)
    except FileNotFoundError:
        how = "no run goes on there" if (run_dir / "config.toml").exists() else "this is no folder of a run"
        raise ConfigError(f"{run_dir} has no {CONTROL_FILE}: {how}, or it runs with control.enabled = false") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; only who started the run may") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is damaged ({error}): delete it, and start the run again with --resume") from error
    if address.host == socket.gethostname() and not is_alive(address.pid):
        raise GoneError(
            f"no run goes on in {run_dir}: its process {address.pid} has ended without a word ({path} is still there);"
            f" go on with prl run CONFIG --resume --run-dir {run_dir}"
        )
    return address


def is_alive(pid: int) -> bool:
    """Whether there is a process of this id on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody's
        return True
    return True
