"""``control.json``: for its owner alone, there while a run listens, and told from what a killed run left."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from prl.control import address as control_file
from prl.control.address import CONTROL_FILE, ControlAddress
from prl.errors import ConfigError

HERE = control_file.of_this_process("http://127.0.0.1:1", "secret")


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    """Mode 0600 whatever the umask and whatever stood there before, and it says what was written."""
    (tmp_path / CONTROL_FILE).write_text("an earlier run's")
    (tmp_path / CONTROL_FILE).chmod(0o644)
    before = os.umask(0)
    try:
        control_file.write(tmp_path, HERE)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / CONTROL_FILE).stat().st_mode) == 0o600
    assert control_file.read(tmp_path) == HERE
    assert [path.name for path in tmp_path.iterdir()] == [CONTROL_FILE]


def test_a_run_takes_away_only_its_own(tmp_path: Path) -> None:
    """Where another run took the folder over, its file stays."""
    control_file.write(tmp_path, HERE)
    control_file.remove(tmp_path, msgspec.structs.replace(HERE, token="another"))
    assert control_file.read(tmp_path) == HERE
    control_file.remove(tmp_path, HERE)
    control_file.remove(tmp_path, HERE)
    assert not list(tmp_path.iterdir())


def refusal(folder: Path) -> str:
    """Why there is nobody to ask in ``folder``."""
    with pytest.raises(ConfigError) as refused:
        control_file.read(folder)
    return str(refused.value)


def test_what_is_no_run_that_goes_on_is_told_in_one_line(tmp_path: Path) -> None:
    """No folder, no run, a run that has ended, one that was killed, a damaged file: each says what to do."""
    assert "no such folder" in refusal(tmp_path / "missing")
    assert "this is no folder of a run" in refusal(tmp_path)
    (tmp_path / "config.toml").touch()
    assert "no run goes on there" in refusal(tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    stale = ControlAddress(url=HERE.url, token="t", pid=dead.pid, host=socket.gethostname())
    control_file.write(tmp_path, stale)
    said = refusal(tmp_path)
    assert f"its process {dead.pid} has ended" in said
    assert "--resume" in said
    (tmp_path / CONTROL_FILE).write_text("{")
    assert "is damaged" in refusal(tmp_path)
