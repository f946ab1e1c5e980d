"""``prl view``, typed."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from prl.check_control import CONTROL_TOKEN
from prl.cli import main
from tests.test_cli import ROOT
from tests.view import recorded


def test_a_folder_is_shown_until_ctrl_c(tmp_path: Path) -> None:
    """It says where, answers there, and leaves with 0."""
    recorded.make(tmp_path / "run", num_steps=2, num_samples=8)
    command = [sys.executable, "-m", "prl", "view", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{tmp_path.resolve()}\n"
            name, url = process.stdout.readline().split()
            assert name == "page"
            with urllib.request.urlopen(f"{url}api/runs", timeout=30) as answer:
                assert b'"run":"run"' in answer.read()
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()


def test_what_cannot_be_served_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder, an address that others reach without a token, a token that can be guessed, a port that is taken."""

    def said(*words: str) -> str:
        assert main(["view", *words]) == 2
        return capsys.readouterr().err

    assert "no such folder" in said(str(tmp_path / "missing"))
    assert "--address = '0.0.0.0' can be reached from other machines" in said(str(tmp_path), "--address", "0.0.0.0")
    assert "--port 70000 must be from 0 to 65535" in said(str(tmp_path), "--port", "70000")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "in use; name another port, or 0" in said(str(tmp_path), "--port", port)
    monkeypatch.setenv(CONTROL_TOKEN, "short")
    assert f"{CONTROL_TOKEN} must have at least 16 characters" in said(str(tmp_path))
