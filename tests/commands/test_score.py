"""``prl score``: verdicts with reasons on stdout, faults of rows and options on stderr."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from prl.cli import main

MODULE = """
import prl

async def length(completion, prompt, *, factor: float = 1.0) -> float | None:
    return factor * len(completion.text) if completion.text else None

async def bug(completion, prompt):
    return completion.text + 1

async def down(completion, prompt):
    raise prl.RewardError("the service is down")

@prl.group_reward("score_test_rank")
def rank(completions, prompt):
    return [float(len(c.text) == max(len(c.text) for c in completions)) for c in completions]
"""


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a module of rewards."""
    monkeypatch.chdir(tmp_path)
    Path("score_rewards.py").write_text(MODULE)


def write(*rows: object) -> str:
    """A file of these rows; a string is a line as it is."""
    Path("rows.jsonl").write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return "rows.jsonl"


def scored(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """The lines on stdout."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_row_has_its_verdict_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    """The output is in the order of the rows, with the reward's reason; blank lines keep their numbers."""
    rows = write(
        {"completion": r"\boxed{0.5}", "answer": "1/2"}, "", {"completion": r"\boxed{1}", "answer": "2"},
        {"completion": "?", "answer": "2"},
    )  # fmt: skip
    assert main(["score", "math", rows, "--options", "num_workers=1"]) == 0
    found = scored(capsys)
    assert [(row["line"], row["reward"], row["reason"]) for row in found] == [
        (1, 1.0, "same_value"),
        (3, 0.0, "other_value"),
        (4, 0.0, "no_answer"),
    ]
    assert found[0]["parts"] == {"math": 1.0}


def test_a_reward_of_ones_own_with_options(capsys: pytest.CaptureFixture[str]) -> None:
    """``module:name`` in the working directory works; None is null, and no failure."""
    rows = write({"completion": "abc"}, {"completion": ""})
    assert main(["score", "score_rewards:length", rows, "--options", "factor=0.5"]) == 0
    captured = capsys.readouterr()
    assert [json.loads(line)["reward"] for line in captured.out.splitlines()] == [1.5, None]
    assert captured.err == "mean 1.5 of 1; 1 abstained, 0 failed; abstained 1\n"


def test_a_reward_of_groups(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows with the same ``group`` are judged together."""
    rows = write(*({"completion": "x" * size, "group": group} for size, group in [(1, "a"), (5, "b"), (2, "a")]))
    assert main(["score", "score_rewards:rank", rows]) == 0
    assert [row["reward"] for row in scored(capsys)] == [0.0, 1.0, 1.0]


def test_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` reads rows from a pipe."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"completion": "ab"}\n')))
    assert main(["score", "score_rewards:length", "-"]) == 0
    assert [row["reward"] for row in scored(capsys)] == [2.0]


def test_a_bug_in_a_reward_is_told_as_it_was() -> None:
    """The error itself with its place, and no group of errors around it."""
    with pytest.raises(TypeError, match="can only concatenate str"):
        main(["score", "score_rewards:bug", write({"completion": "a"}, {"completion": "b"})])


def test_a_failing_reward_is_exit_1_with_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    """A failure is no 0: the line says so, and so does the exit code."""
    assert main(["score", "score_rewards:down", write({"completion": "a"}), "--timeout", "0.1"]) == 1
    (row,) = scored(capsys)
    assert (row["reward"], row["failed"]) == (None, True)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("{", "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        ({"answer": "1"}, "missing required field `completion`"),
        ({"completion": 3, "answer": "1"}, "Expected `str`, got `int`"),
        ({"completion": "x"}, "field 'answer' is missing, and the reward needs it"),
        ({"completion": "x", "answer": None}, "field 'answer' is missing, and the reward needs it"),
        ({"completion": "x", "answer": r"\frac{1"}, "is not even right against itself: a brace is never closed"),
        ({"completion": "x", "answer": "1", "finish": "abort"}, "Invalid enum value 'abort'"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(capsys: pytest.CaptureFixture[str], row: object, fault: str) -> None:
    """Nothing is judged where a row is bad, and every bad one is listed."""
    assert main(["score", "math", write({"completion": "x", "answer": "1"}, row)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("prl: rows.jsonl:2: ")
    assert fault in captured.err


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["mth", "rows.jsonl"], "there is no reward 'mth' (did you mean 'math'?)"),
        (["math", "rows.jsonl", "--options", "unit=required"], "has no option 'unit' (did you mean 'units'?)"),
        (["math", "rows.jsonl", "--options", "units=metric"], "option 'units': Invalid enum value 'metric'"),
        (["math", "rows.jsonl", "--options", "units"], "'units' does not read as key=value"),
        (["math", "none.jsonl"], "none.jsonl: cannot be read: No such file"),
        (["math", "empty.jsonl"], "empty.jsonl: there is no row in this file"),
        (["math", "rows.jsonl", "--timeout", "0"], "--timeout = 0: it must be above 0"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], fault: str) -> None:
    """What is wrong with the call is said before anything starts."""
    write({"completion": "x", "answer": "1"})
    Path("empty.jsonl").touch()
    assert main(["score", *arguments]) == 2
    error = capsys.readouterr().err
    assert fault in error
    assert error.count("\n") == 1
