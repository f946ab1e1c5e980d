"""``prl data`` and ``prl run`` over files and tasks of every kind: what people type and what they see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prl.cli import main
from tests.data.datasets_cache import isolate
from tests.test_cli import SIMULATED, summary

SIZES = SIMULATED.replace("max_model_len = 64", "max_model_len = 200")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration that needs neither torch nor vLLM, in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "try.toml"
    path.write_text(SIZES)
    return path


@pytest.fixture
def parquet(config: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ten rows of a Parquet file, and the words that read it."""
    datasets = isolate(monkeypatch, config.parent)
    rows = [{"question": f"{i} + 1 = ?", "gold": i + 1} for i in range(10)]
    datasets.Dataset.from_list(rows).to_parquet("rows.parquet")
    keys = ["data.source=parquet", "data.path=rows.parquet", "data.columns.prompt=question", "data.columns.answer=gold"]
    return [str(config), "--set", *keys, "data.shuffle=false", "rewards.0.name=answer"]


def test_it_shows_rows_lengths_and_prompts(parquet: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Sources, a plot of the lengths, what is left out, prompts with place, ids, tokens and answer."""
    assert main(["data", *parquet, "--num", "1"]) == 0
    said = capsys.readouterr().out
    assert "rows.parquet" in said
    assert "prompts of 14 to 14 tokens, median 14; the context leaves 196" in said
    assert "14 to 14  ######################################## 8" in said
    assert "left out of one epoch: none" in said
    assert "prompt 0  rows.parquet, row 1  14 tokens" in said
    assert "<|im_start|>user\n0 + 1 = ?<|im_end|>\n<|im_start|>assistant" in said
    assert "ids: 1 '<|im_start|>'" in said
    assert "answer: 1\n" in said
    assert not Path("runs").exists()


def test_json_is_for_scripts(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object: filtered rows by reason, repeated and leaked prompts, the fingerprint."""
    rows: list[dict[str, Any]] = [{"prompt": prompt, "answer": "1"} for prompt in ("1", "1", "2" * 30, "3" * 300)]
    rows += [{"prompt": "1", "answer": "1"}, {"prompt": 5}, *({"prompt": f"{i} * 1", "answer": "1"} for i in range(15))]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = ["data.source=jsonl", "data.path=rows.jsonl", "data.skip_bad_rows=true", "data.filter.max_tokens=30"]
    assert main(["data", str(config), "--json", "--num", "2", "--set", *keys]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["left_out"] == {"above_max_tokens": 1, "bad_row": 1, "too_long": 1}
    assert (report["repeated"], report["leaked"], report["is_complete"]) == (2, 0, True)
    assert report["sources"][0]["num_rows"] == 16
    assert report["sources"][0]["num_held_out"] == 4
    assert [len(prompt["tokens"]) == len(prompt["token_ids"]) for prompt in report["prompts"]] == [True, True]
    assert sum(each["count"] for each in report["lengths"]["bins"]) == report["lengths"]["num_prompts"] == 14
    assert set(report["fingerprint"]) == {"order", "data"}


def test_fields_that_nothing_reads_are_told(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line in ``prl data`` and in ``--check``, once for all rows; as an error where the data is to be strict."""
    rows = [{"prompt": f"{i} * 1", "anwser": "1", "level": 2} for i in range(15)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = ["--set", "data.source=jsonl", "data.path=rows.jsonl"]
    said = "'anwser' (did you mean 'answer'?) in every row, first rows.jsonl:1; 'level' in every row"
    for words in (["data", str(config)], ["run", str(config), "--check"]):
        assert main([*words, *keys]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert printed.count(said) == 1
    assert main(["data", str(config), *keys, "data.extra_fields=refuse"]) == 2
    assert "rows.jsonl:1: nothing reads the field 'anwser' (did you mean 'answer'?)" in capsys.readouterr().err
    assert main(["data", str(config), "--set", "data.extra_fields=refuse"]) == 2
    assert "no source reads any: remove it" in capsys.readouterr().err


def test_a_bad_row_is_one_line_with_its_place(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, file, line, column and what to do; a wrong key likewise; a file that is not there."""
    Path("rows.jsonl").write_text('{"prompt": "1"}\n{"prompt": "2",}\n')
    words = ["data", str(config), "--set", "data.source=jsonl", "data.path=rows.jsonl"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("prl: rows.jsonl:2: column 16: not valid JSON: ")
    assert said.count("\n") == 1
    assert main([*words, "data.task=chain_sum"]) == 2
    assert "data.task = 'chain_sum' is not read by data.source = 'jsonl'" in capsys.readouterr().err
    assert main(["data", str(config), "--set", "data.source=csv", "data.path=rows.csv"]) == 2
    assert "rows.csv does not exist; name a file" in capsys.readouterr().err


def test_help_teaches_the_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    """A line to type for each, and what each reason means."""
    with pytest.raises(SystemExit) as left:
        main(["data", "--help"])
    said = capsys.readouterr().out
    assert left.value.code == 0
    for word in ("parquet", "dataset", "reasoning_gym", "[[data.sources]]", "too_long", "--json"):
        assert word in said


def test_a_run_trains_on_a_parquet_file(parquet: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Two steps of a simulated run; the data is known to the checkpoint, and a changed file is refused on resume."""
    words = ["run", *parquet, "run.num_steps=2", "eval.num_samples=2", "--run-dir", "run", "--plain"]
    assert main(words) == 0
    samples = [json.loads(line) for line in Path("run/samples.jsonl").read_bytes().splitlines()]
    assert {sample["prompt_id"] for sample in samples} == {0, 1, 2, 3}
    assert "1 + 1 = ?" in samples[-1]["prompt"] + samples[0]["prompt"] + samples[2]["prompt"]
    import datasets

    datasets.Dataset.from_list([{"question": "9", "gold": 9}] * 10).to_parquet("rows.parquet")
    capsys.readouterr()
    further = [word.replace("num_steps=2", "num_steps=3") for word in words]
    assert main([*further, "--resume"]) == 2
    assert "the data is not what the run began with: data is 'rows.parquet: 10 rows" in capsys.readouterr().err


def test_a_run_trains_on_a_reasoning_gym_task(config: Path) -> None:
    """Two steps of a simulated run, judged by the task's own verifier in its worker."""
    keys = ["data.source=reasoning_gym", "data.task=chain_sum", "data.num_prompts=20", "rewards.0.name=reasoning_gym"]
    words = ["run", str(config), "--run-dir", "run", "--plain", "--set", *keys, "run.num_steps=2"]
    assert main(words) == 0
    assert summary("run")["status"] == "done"
    assert summary("run")["samples"] == 8
