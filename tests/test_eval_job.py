"""``prl eval``: what people type, what they are told, the answers, and the exit code."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from prl.cli import main
from tests.test_cli import SIMULATED


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration that needs neither torch nor vLLM, in the working directory, where temporary files go too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    path = tmp_path / "try.toml"
    path.write_text(SIMULATED)
    return path


def left_behind() -> list[str]:
    """Logs that were kept; torch's own cache is none."""
    return [path.name for path in Path("tmp").iterdir() if not path.name.startswith("torchinductor")]


def test_an_evaluation_says_what_it_found(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0; mean, pass@k and their intervals; every answer in the file; nothing else is left behind."""
    words = ["--num-answers", "2", "--temperature", "1", "--num-samples", "3", "--out", "answers.jsonl"]
    assert main(["eval", str(config), "--model", "builtin:tiny-math", *words]) == 0
    out = capsys.readouterr().out
    labels = [line.split("  ")[0] for line in out.splitlines()]
    assert [label for label in labels if not label.startswith("[")] == [
        *("mean reward", "pass@1", "pass@2", "asked", "tokens", "time", "Every answer is in answers.jsonl")
    ]
    assert "3 prompts, 6 answers" in out
    assert "95% interval" in out
    answers = [json.loads(line) for line in Path("answers.jsonl").read_bytes().splitlines()]
    assert [answer["prompt_id"] for answer in answers] == [0, 0, 1, 1, 2, 2]
    assert set(answers[0]) == {"prompt_id", "prompt", "answer", "reward", "expected", "num_tokens", "finish"}
    assert sorted(path.name for path in Path().iterdir()) == ["answers.jsonl", "tmp", "try.toml"]
    assert left_behind() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "/no/such/model"], "/no/such/model does not exist"),
        (["--model", "runs/no/export"], "runs/no/export does not exist"),
        (["--model", "run"], "run has no config.json; name a Hugging Face model folder, did you mean its export/?"),
        (["--model", "builtin:tiny-maths"], "did you mean 'builtin:tiny-math'?"),
        (["--num-samples", "0"], "--num-samples = 0: nothing would be evaluated"),
        (["--num-answers", "4"], "eval.temperature = 0, which would give the same greedy answer"),
        (["--num-answers", "none"], 'eval.num_answers = "none" must be an integer >= 1'),
        (["--out", "no/where.jsonl"], "--out no/where.jsonl cannot be written: there is no folder"),
        (["--out", "tmp"], "--out tmp is a folder"),
        (["--set", "rewards.0.name=anwser"], "did you mean 'answer'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    config: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found before anything starts."""
    (config.parent / "run" / "export").mkdir(parents=True)
    (config.parent / "run" / "export" / "config.json").write_text("{}")
    assert main(["eval", str(config), *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert left_behind() == []


def test_prompts_that_were_trained_on_are_not_held_out(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More prompts than training set aside of a file would be its own; of generated problems there are more."""
    rows = "".join(f'{{"prompt": "{number} + 1 = ?", "answer": "{number + 1}"}}\n' for number in range(40))
    (config.parent / "rows.jsonl").write_text(rows)
    words = ["--set", "data.source=jsonl", "data.path=rows.jsonl"]
    assert main(["eval", str(config), "--num-samples", "5", *words]) == 2
    assert "training sets the last eval.num_samples = 4 rows of rows.jsonl aside" in capsys.readouterr().err
    assert main(["eval", str(config), "--num-samples", "6"]) == 0
    assert "6 prompts" in capsys.readouterr().out


def test_a_deadline_or_a_bug_fails_the_evaluation(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1, the cause, where the logs are, and no answers file."""
    words = ["eval", str(config), "--out", "answers.jsonl", "--set"]
    assert main([*words, "eval.timeout_s=0.001"]) == 1
    error = capsys.readouterr().err
    assert "prl: the evaluation failed: 0 of 4 answers were there after eval.timeout_s = 0.001 s: raise it" in error
    assert main([*words, "rewards.0.name=tests.cli_rewards:bug"]) == 1
    error = capsys.readouterr().err
    assert "in bug\n    return completion.text + 1" in error
    assert "prl: the engines' logs are in " in error
    assert len(left_behind()) == 2
    assert not Path("answers.jsonl").exists()


def test_a_signal_ends_it(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 130 and one line; nothing is left behind."""
    name = "rewards.0.name=tests.cli_rewards:InterruptAtStart"
    assert main(["eval", str(config), "--set", name]) == 130
    assert capsys.readouterr().err == "prl: interrupted; everything that was started has ended\n"
    assert left_behind() == []
