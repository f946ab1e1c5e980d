"""``prl doctor`` as people type it: a table, a sentence, a file, an exit code, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from prl.cli import main

ROOT = Path(__file__).parents[2]
SIMULATED = """
model = "builtin:tiny-math"
[pipeline]
groups_per_step = 2
group_size = 2
[engine]
kind = "simulated"
count = 2
max_num_seqs = 8
max_model_len = 64
[sampling]
max_tokens = 8
[trainer]
kind = "simulated"
[[rewards]]
name = "answer"
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration that starts no process, in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "try.toml"
    path.write_text(SIMULATED)
    return path


def test_clean_sides_are_exit_0_with_a_table_and_a_file(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One engine, every cause in the table, the sentence last, and the same as JSON."""
    assert main(["doctor", str(config), "--samples", "6", "--json", "doctor.json"]) == 0
    out = capsys.readouterr().out
    assert "starting 1 simulated engine (as configured) and 1 trainer rank" in out
    assert "sampling 6 completions at temperature 1" in out
    told = json.loads(Path("doctor.json").read_text())
    assert told["verdict"] == "clean"
    causes = [finding["cause"] for finding in told["findings"]]
    assert [line.split("  ")[0] for line in out.splitlines() if line.split("  ")[0] in causes] == causes
    assert out.replace("\n", " ").strip().endswith(told["diagnosis"])
    assert told["evidence"]["stops"]["num_sampled"] == 6
    assert 'kind = "simulated"' in told["config"]
    assert sorted(path.name for path in Path().iterdir()) == ["doctor.json", "try.toml"], "and no run folder"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--samples", "0"], "'0' is not a number of completions"),
        (["--samples", "few"], "'few' is not a number of completions"),
        (["--json", "no/such/doctor.json"], "is no folder; make it first"),
        (["--set", "engine.cuont=1"], "did you mean engine.count?"),
        (["--set", "sampling.max_tokens=64"], "leaves no room for a prompt"),
        (["--set", "model=/no/such/model"], "/no/such/model does not exist"),
    ],
)
def test_bad_input_is_exit_2_and_one_line(
    config: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started."""
    try:
        code = main(["doctor", str(config), *words])
    except SystemExit as left:  # argparse's own
        code = int(str(left.code))
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1


def test_a_side_that_fails_is_exit_1_and_named(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An engine that does not start is no finding: there is nothing to compare."""
    words = ["--set", "engine.kind=transformers", "trainer.kind=fsdp", "engine.start_timeout_s=0.01"]
    assert main(["doctor", str(config), *words]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("prl: the examination failed: ")
    assert "engine.start_timeout_s" in captured.err
    assert "Traceback" not in captured.err


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """Examples, what is looked at, what to expect, and the exit codes."""
    with pytest.raises(SystemExit) as left:
        main(["doctor", "--help"])
    text = capsys.readouterr().out
    assert left.value.code == 0
    for said in ("prl doctor configs/math.toml", "stale weights", "what to expect", "0 clean   1 a fault"):
        assert said in text


def test_ctrl_c_ends_what_was_started(config: Path) -> None:
    """During the start-up of a real engine: exit 130 within seconds, no process and no temporary folder left."""
    temporary = config.parent / "tmp"
    temporary.mkdir()
    words = ["doctor", str(config), "--set", "engine.kind=transformers", "trainer.kind=fsdp"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    command = [sys.executable, "-u", "-m", "prl", *words]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as doctor:
        try:
            assert doctor.stdout is not None
            for line in doctor.stdout:
                if "starting 1 transformers engine" in line:
                    break
            doctor.send_signal(signal.SIGINT)
            _, errors = doctor.communicate(timeout=30)
        finally:
            doctor.kill()
    assert (doctor.returncode, errors) == (130, "prl: interrupted; everything that was started has ended\n")
    assert [process.pid for process in psutil.process_iter() if _works_in(process, temporary)] == []
    assert not list(temporary.glob("prl-doctor-*"))


def _works_in(process: psutil.Process, temporary: Path) -> bool:
    """Whether a process was given this folder for its temporary files, and runs."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get("TMPDIR") == str(temporary)
    except psutil.Error:
        return False
