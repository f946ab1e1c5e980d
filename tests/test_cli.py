"""The command line: what people type, what they are told, and the exit code."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from prl.cli import main

ROOT = Path(__file__).parent.parent
SIMULATED = """
model = "builtin:tiny-math"
[run]
name = "try"
num_steps = 3
[pipeline]
max_lag = 1
groups_per_step = 2
group_size = 2
[engine]
kind = "simulated"
max_num_seqs = 8
max_model_len = 64
[sampling]
max_tokens = 4
[trainer]
kind = "simulated"
[eval]
num_samples = 4
[[rewards]]
name = "tests.cli_rewards:length"
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration that needs neither torch nor vLLM, in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "try.toml"
    path.write_text(SIMULATED)
    return path


def summary(folder: str = "runs/try") -> dict[str, object]:
    """How the run ended."""
    loaded: dict[str, object] = json.loads((Path(folder) / "summary.json").read_text())
    return loaded


def prl(*words: str, timeout: float = 60, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """``prl`` in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "prl", *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
        env=environment,
    )


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["eval", "--help"]])
def test_help_teaches_with_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each command shows what to type; the configuration it names is there."""
    with pytest.raises(SystemExit) as left:
        main(words)
    text = capsys.readouterr().out
    assert left.value.code == 0
    command = "eval" if words[0] == "eval" else "run"
    assert f"prl {command} configs/math.toml" in text
    assert (ROOT / "configs" / "math.toml").is_file()


def test_help_is_quick_and_light() -> None:
    """Under half a second of processor time, best of three, and nothing heavy is imported for it."""
    code = (
        "import sys, time\n"
        "from prl.cli import main\n"
        "try: main(['run', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {name.partition('.')[0] for name in sys.modules} & {'torch', 'vllm', 'transformers', 'rich'}\n"
        "print(heavy, time.process_time(), sep='|')\n"
    )
    lines = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        .stdout.splitlines()[-1]
        .split("|")
        for _ in range(3)
    ]
    assert {heavy for heavy, _ in lines} == {"set()"}
    assert min(float(seconds) for _, seconds in lines) < 0.5


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """``prl --version``."""
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("prl 0.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "COMMAND"),
        (["rnu", "x.toml"], "invalid choice: 'rnu' (choose from"),
        (["run"], "CONFIG"),
        (["run", "x.toml", "--chek"], "unrecognized arguments: --chek"),
        (["run", "x.toml", "engine.count=2"], "unrecognized arguments: engine.count=2"),
        (["run", "x.toml", "--set"], "expected one argument"),
    ],
)
def test_a_command_that_is_none_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, and where to look for help."""
    with pytest.raises(SystemExit) as left:
        main(words)
    captured = capsys.readouterr()
    assert (left.value.code, captured.out) == (2, "")
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert "--help" in captured.err


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("engine.cuont=2", "engine.cuont: unknown key, did you mean engine.count?"),
        ("rewards.0.wieght=2", "rewards.0.wieght: unknown key, did you mean rewards.0.weight?"),
        ("engine.count=two", 'engine.count = "two" must be an integer >= 1'),
        ("trainer.learning_rate=nan", "trainer.learning_rate = nan must be a finite number"),
        ("run.num_steps=-1", "run.num_steps = -1 must be an integer >= 0"),
        ("model=/no/such/model", "/no/such/model does not exist"),
        ("model=builtin:tiny-maths", "did you mean 'builtin:tiny-math'?"),
        ("pipeline.group_size=9", "pipeline.group_size = 9 is larger than what may be in flight"),
        ("sampling.max_tokens=64", "leaves no room for a prompt"),
        ("rewards.0.name=anwser", "did you mean 'answer'"),
        ("rewards.0.name=tests.cli_rewards:lenght", "did you mean 'length'"),
        ("rewards.0.name=no_such_module:f", "no_such_module"),
        ('rewards.0={name = "format", options = {}}', "pattern"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    config: Path, override: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is wrong is found before anything starts, and no run folder is left behind."""
    assert main(["run", str(config), "--set", override]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert "Traceback" not in captured.out + captured.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "does not exist"),
        ("", "rows.jsonl"),
        ('{"prompt": "1", "answer": "2"}\n{"prompt": \n', "rows.jsonl:2"),
        ('{"prompt": "1", "answer": "2"}\n\n{"answer": "2"}\n', "rows.jsonl:3"),
    ],
)
def test_bad_data_is_one_line_and_exit_2(
    config: Path, rows: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """File and line; nothing started, nothing left behind."""
    if rows is not None:
        Path("rows.jsonl").write_text(rows)
    assert main(["run", str(config), "--set", "data.source=jsonl", "data.path=rows.jsonl"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not Path("runs").exists()


def test_a_port_in_use_is_one_line_and_exit_2(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found by binding it, before any process is started."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        words = ["--set", "engine.kind=transformers", "trainer.kind=fsdp", f"trainer.listen={listen}"]
        assert main(["run", str(config), *words]) == 2
    error = capsys.readouterr().err
    assert f"trainer.listen = '{listen}'" in error
    assert len(error.splitlines()) == 1
    assert not Path("runs").exists()


def test_every_fault_has_its_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two faults, two lines; ``--set`` takes several words."""
    assert main(["run", str(config), "--set", "engine.cuont=1", "seed=-1"]) == 2
    assert [line[:4] for line in capsys.readouterr().err.splitlines()] == ["prl:", "prl:"]


def test_check_looks_and_starts_nothing(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each thing that was looked at, exit 0, no run folder."""
    assert main(["run", str(config), "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["engine", "pace", "rewards", "tokenizer", "data", "held"]
    assert lines[-1] == "Nothing was started."
    assert not Path("runs").exists()


def test_check_finds_what_a_run_would(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same line, the same exit code."""
    assert main(["run", str(config), "--check", "--set", "rewards.0.name=anwser"]) == 2
    assert "did you mean 'answer'" in capsys.readouterr().err


def test_a_run_ends_with_its_report(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0, plain lines without a terminal, a summary, and where everything lies."""
    assert main(["run", str(config)]) == 0
    out = capsys.readouterr().out
    assert summary()["status"] == "done"
    assert "step 3/3 | reward " in out
    assert "Done after 3 steps" in out
    assert "Everything is in runs/try" in out
    assert "metrics.jsonl" in out


@pytest.mark.parametrize("number", [2, 15])
def test_the_first_signal_finishes_the_step_and_saves(
    config: Path, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGINT and SIGTERM: exit 0, status ``stopped``, a checkpoint, and the command that goes on to the end."""
    name = "rewards.0.name=tests.cli_rewards:InterruptAt"
    options = f"rewards.0.options={{call = 10, number = {number}}}"
    words = ["run", str(config), "--set", name, "run.num_steps=1000"]
    assert main([*words, options]) == 0
    ended = summary()
    assert ended["status"] == "stopped"
    assert 1 <= int(str(ended["steps"])) < 1000
    assert list(Path("runs/try/checkpoints").iterdir())
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        f"Go on with: prl run {config} --set {name} --set run.num_steps=1000 --set 'rewards.0.options="
    )
    assert last.endswith("--resume --run-dir runs/try")
    steps = int(str(ended["steps"])) + 2
    assert main(["run", str(config), "--set", f"run.num_steps={steps}", "--resume", "--run-dir", "runs/try"]) == 0
    assert (summary()["status"], summary()["steps"]) == ("done", steps)


def test_a_signal_at_start_up_ends_the_run(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 130 and one line."""
    assert main(["run", str(config), "--set", "rewards.0.name=tests.cli_rewards:InterruptAtStart"]) == 130
    assert capsys.readouterr().err == "prl: interrupted at start-up; everything that was started has ended\n"


def test_the_signals_are_given_back(config: Path) -> None:
    """A program that calls ``main`` keeps its handlers."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert main(["run", str(config), "--set", "run.num_steps=1"]) == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_second_signal_kills_everything(config: Path, tmp_path: Path) -> None:
    """Exit 130 at once, and a child in a group of its own is gone."""
    pid_file = tmp_path / "pid"
    run = prl(
        "run",
        str(config),
        "--set",
        "rewards.0.name=tests.cli_rewards:WithChild",
        f'rewards.0.options={{pid_file = "{pid_file}", call = 10, again = true}}',
        "run.num_steps=1000",
        cwd=tmp_path,
    )
    assert run.returncode == 130
    with contextlib.suppress(psutil.NoSuchProcess):
        child = psutil.Process(int(pid_file.read_text()))
        assert child.status() == psutil.STATUS_ZOMBIE or child.wait(timeout=5) is None


def test_a_failed_run_is_one_message(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An error that prl raises on purpose: exit 1, its cause, where the logs are, no traceback."""
    words = ["--set", "rewards.0.name=tests.cli_rewards:down", "rewards.0.on_failure=stop"]
    assert main(["run", str(config), *words]) == 1
    captured = capsys.readouterr()
    assert "the judge at judge.example is down" in captured.err
    assert captured.err.splitlines()[-1] == "prl: events and logs are in runs/try"
    assert "Traceback" not in captured.out + captured.err
    assert summary()["status"] == "failed"


def test_a_bug_shows_its_traceback(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The place in the reward, and then the message."""
    assert main(["run", str(config), "--set", "rewards.0.name=tests.cli_rewards:bug"]) == 1
    error = capsys.readouterr().err
    assert "in bug\n    return completion.text + 1" in error
    assert "prl: the run failed: TypeError: " in error
    assert summary()["status"] == "failed"


def test_output_that_nobody_reads_is_no_bug() -> None:
    """``prl data CONFIG | head -1`` ends without a traceback."""
    command = f"{sys.executable} -m prl data {ROOT / 'configs/math.toml'} --num 500 | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout
    assert done.stderr == ""


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    """A reward's blocked thread is left behind after a moment; the exit code stays."""
    code = (
        "import threading\n"
        "from prl import cli\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "cli._THREADS_TIMEOUT_S = 0.1\n"
        "print('last words')\n"
        "cli._leave_hung_threads(7)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (7, "last words\n")


def test_bad_input_in_a_real_process(tmp_path: Path) -> None:
    """``python -m prl``: the exit code reaches the shell, standard output stays empty."""
    run = prl("run", str(tmp_path / "none.toml"))
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == f"prl: {tmp_path / 'none.toml'}: no such file\n"
