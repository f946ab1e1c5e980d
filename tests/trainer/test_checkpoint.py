from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from prl.errors import CheckpointError
from prl.trainer import checkpoint

WRITE = """
import os, signal, sys
from pathlib import Path
from prl.trainer import checkpoint

fatal, calls = int(sys.argv[2]), 0

def counted(function):
    def wrapper(*args, **kwargs):
        global calls
        calls += 1
        if calls == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return wrapper

os.fsync = counted(os.fsync)
Path.write_bytes = counted(Path.write_bytes)
Path.rename = counted(Path.rename)
Path.mkdir = counted(Path.mkdir)
target = checkpoint.step_folder(Path(sys.argv[1]), int(sys.argv[3]))
partial = checkpoint.begin(target)
(partial / "weights").write_bytes(b"w" * 1000)
(partial / checkpoint.STATE).write_bytes(b"\\x80")
checkpoint.commit(target, step=int(sys.argv[3]), num_ranks=1)
print(calls)
"""


def write_until(folder: Path, step: int, fatal: int) -> subprocess.CompletedProcess[str]:
    """Write a checkpoint in a process that kills itself before its ``fatal``-th change of the disk; 0: never."""
    command = [sys.executable, "-c", WRITE, str(folder), str(fatal), str(step)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def write(folder: Path, step: int) -> None:
    """Write the same checkpoint undisturbed."""
    target = checkpoint.step_folder(folder, step)
    partial = checkpoint.begin(target)
    (partial / "weights").write_bytes(b"w" * 1000)
    (partial / checkpoint.STATE).write_bytes(b"\x80")
    checkpoint.commit(target, step=step, num_ranks=1)


def test_killed_at_any_stage_the_previous_one_is_chosen(tmp_path: Path) -> None:
    """SIGKILL before each mkdir, write, fsync and rename leaves a complete one: the old, or at the very end the new."""
    write(tmp_path / "count", 1)
    num_stages = int(write_until(tmp_path / "count", 2, 0).stdout)
    assert num_stages >= 8
    chosen = []
    for fatal in range(1, num_stages + 1):
        folder = tmp_path / str(fatal)
        write(folder, 1)
        assert write_until(folder, 2, fatal).returncode == -9
        found = checkpoint.latest(folder)
        assert found.folder is not None
        checkpoint.read_marker(found.folder)
        chosen.append(found.folder.name)
        write(folder, 2)  # what the kill left is not in the way of the next write
        assert checkpoint.latest(folder).folder == folder / "step-000002"
    assert chosen == ["step-000001"] * (num_stages - 1) + ["step-000002"]


def test_killed_while_replacing_the_one_before_is_chosen(tmp_path: Path) -> None:
    """Writing a step again, killed at any stage, leaves that step or the one before complete."""
    for step in (1, 2):
        write(tmp_path / "count", step)
    num_stages = int(write_until(tmp_path / "count", 2, 0).stdout)
    for fatal in range(1, num_stages + 1):
        folder = tmp_path / str(fatal)
        for step in (1, 2):
            write(folder, step)
        assert write_until(folder, 2, fatal).returncode == -9
        found = checkpoint.latest(folder)
        assert found.folder is not None
        checkpoint.read_marker(found.folder)


def test_no_folder_and_an_empty_one_have_no_checkpoint(tmp_path: Path) -> None:
    """A fresh run finds nothing and skips nothing."""
    assert checkpoint.latest(tmp_path / "none") == (None, {})
    assert checkpoint.latest(tmp_path) == (None, {})


@pytest.mark.parametrize("damage", ["no marker", "bad marker", "short file", "lost file", "wrong step"])
def test_a_damaged_folder_is_skipped_and_named(tmp_path: Path, damage: str) -> None:
    """The newest folder that is not whole is passed over for the next, and the reason names folder and file."""
    write(tmp_path, 9)
    write(tmp_path, 10)
    newest = tmp_path / "step-000010"
    marker = newest / checkpoint.MARKER
    match damage:
        case "no marker":
            marker.unlink()
        case "bad marker":
            marker.write_bytes(marker.read_bytes()[:-5])
        case "short file":
            (newest / "weights").write_bytes(b"w" * 999)
        case "lost file":
            (newest / "weights").unlink()
        case "wrong step":
            newest.rename(tmp_path / "step-000011")
            newest = tmp_path / "step-000011"
    found = checkpoint.latest(tmp_path)
    assert found.folder == tmp_path / "step-000009"
    assert list(found.skipped) == [newest]
    assert str(newest) in found.skipped[newest]


def test_folders_are_ordered_by_number(tmp_path: Path) -> None:
    """A step of seven digits is newer than one of six, and other names are no checkpoints."""
    for step in (999_999, 1_000_000):
        write(tmp_path, step)
    (tmp_path / "step-2000000.partial").mkdir()
    (tmp_path / "step-x").mkdir()
    assert checkpoint.latest(tmp_path) == (tmp_path / "step-1000000", {})


def test_the_controllers_state_comes_back(tmp_path: Path) -> None:
    """Nested values of the state survive; a damaged one is a CheckpointError that names the file."""
    state = {"cursor": 7, "pending": [1, 2], "loader": {"epoch": 0, "seen": b"\x00"}}
    (tmp_path / checkpoint.STATE).write_bytes(msgspec.msgpack.encode(state))
    assert checkpoint.read_state(tmp_path) == state
    (tmp_path / checkpoint.STATE).write_bytes(b"\xc1")
    with pytest.raises(CheckpointError, match=r"state\.msgpack"):
        checkpoint.read_state(tmp_path)


def test_the_controller_can_use_it_without_torch() -> None:
    """Looking for checkpoints and the remote trainer import neither torch nor transformers."""
    code = (
        "import sys, prl.trainer.checkpoint, prl.trainer.remote;"
        "print(sorted({'torch', 'transformers', 'numpy', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"
