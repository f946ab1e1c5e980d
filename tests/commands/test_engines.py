"""``prl engines`` on a simulated run that goes on in another process."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prl.cli import main
from tests.test_cli import ROOT, SIMULATED


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run of two engines that goes on."""
    config, folder = tmp_path / "try.toml", tmp_path / "run"
    config.write_text(SIMULATED)
    command = [sys.executable, "-m", "prl", "run", str(config), "--run-dir", str(folder), "--plain"]
    for setting in ("engine.count=2", "engine.min_engines=2", "run.num_steps=100000", "eval.num_samples=0"):
        command += ["--set", setting]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
    try:
        deadline = time.monotonic() + 120
        while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").read_bytes():
            assert process.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < deadline, (tmp_path / "said").read_text()
            time.sleep(0.05)
        yield folder
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0, (tmp_path / "said").read_text()
        assert not (folder / "control.json").exists()
    finally:
        process.kill()
        process.wait()


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``prl engines``."""
    code = main(["engines", *words])
    out, err = capsys.readouterr()
    return code, out, err


def wait_for(capsys: pytest.CaptureFixture[str], run: Path, expected: dict[str, str]) -> None:
    """Until the engines are these, and this far."""
    deadline = time.monotonic() + 60
    while True:
        _, out, _ = said(capsys, "list", str(run), "--json")
        found = {engine["name"]: engine["state"] for engine in json.loads(out)}
        if found == expected:
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_engines_are_listed_added_and_removed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table for people, JSON for programs; what the run refuses is one line and exit 1, and it goes on."""
    code, out, err = said(capsys, "list", str(run))
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == ["engine", "state", "for", "version", "streams", "tokens", "busy", "restarts"]
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["engine-0", "serving"], ["engine-1", "serving"]]

    code, out, err = said(capsys, "remove", str(run), "0")
    assert (code, out) == (1, "")
    assert err == (
        "prl: without engine-0, 1 engines would serve, fewer than engine.min_engines = 2: add one and wait until it"
        " serves, or insist (force)\n"
    )
    code, out, err = said(capsys, "add", str(run), "http://127.0.0.1:8000", "--json")
    assert (code, out) == (1, "")
    assert err == (
        "prl: engine.kind = 'simulated': the server at http://127.0.0.1:8000 has no place in a simulated run\n"
    )
    code, _, err = said(capsys, "add", str(run), "http://me:secret@host:8000")
    assert (code, "engine.api_key_env" in err, "secret" in err) == (1, True, False)
    code, out, _ = said(capsys, "add", str(run), "--count", "2")
    assert (code, out) == (0, f"engine-2, engine-3 start: prl engines list {run} shows when it serves\n")
    wait_for(capsys, run, dict.fromkeys(["engine-0", "engine-1", "engine-2", "engine-3"], "serving"))
    code, out, _ = said(capsys, "remove", str(run), "engine-0", "3", "--json")
    assert (code, out) == (0, '{"leaving":"engine-0"}\n{"leaving":"engine-3"}\n')
    wait_for(capsys, run, {"engine-1": "serving", "engine-2": "serving"})
    assert said(capsys, "remove", str(run), "1", "--force") == (
        0,
        "engine-1 leaves: its sequences go on with the others\n",
        "",
    )
    code, _, err = said(capsys, "remove", str(run), "engine-9")
    assert (code, err.startswith("prl: there is no engine 'engine-9': there are engine-")) == (1, True)


@pytest.mark.parametrize(("device", "kind"), [("cpu", "--enforce-eager"), ("cuda", "--gpu-memory-utilization")])
def test_the_command_that_starts_a_server(device: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is one line for a shell with what the configuration and the device ask for, and no key."""
    config = str(ROOT / "configs" / "math.toml")
    code, out, err = said(
        capsys, "command", config, "--for", device, "--port", "8001", "--set", "engine.max_num_seqs=7"
    )
    words = shlex.split(out)
    assert (code, err, len(out.splitlines())) == (0, "", 1)
    assert words[0] == "VLLM_SERVER_DEV_MODE=1"
    assert [words[words.index(flag) + 1] for flag in ("--port", "--max-num-seqs", "--max-model-len")] == [
        "8001",
        "8",
        "128",
    ]
    assert kind in words
    assert "API_KEY" not in out


def test_where_no_run_goes_on_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad input is exit 2 and says what to name; the help tells the rest."""
    code, _, err = said(capsys, "list", str(tmp_path / "nowhere"))
    advice = "name the folder of a run, such as runs/math, or its address"
    assert (code, err) == (2, f"prl: {tmp_path}/nowhere: no such folder; {advice}\n")
    code, _, err = said(capsys, "add", str(tmp_path), "--count", "0")
    assert (code, len(err.splitlines())) == (2, 1)
    code, _, err = said(capsys, "add", str(tmp_path), "http://127.0.0.1:8000", "--count", "2")
    assert (code, len(err.splitlines())) == (2, 1)
    for words in ([], ["add"], ["remove", "runs/math"], ["grow", "runs/math"]):
        with pytest.raises(SystemExit) as left:
            main(["engines", *words])
        assert left.value.code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    for words in (["--help"], ["add", "--help"], ["remove", "--help"]):
        with pytest.raises(SystemExit) as left:
            main(["engines", *words])
        assert left.value.code == 0
        assert "prl engines add runs/math --count 2" in capsys.readouterr().out
    assert os.environ.get("PRL_CONTROL_TOKEN") is None
