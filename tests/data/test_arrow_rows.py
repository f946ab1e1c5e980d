"""Rows of Parquet files and Hugging Face datasets, through the real library, offline."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Any

import pytest

from prl.data.arrow_rows import read_dataset, read_parquet
from prl.data.rows import Needs
from prl.errors import DataError, MissingExtraError
from tests.data.datasets_cache import isolate


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The library with a cache of its own."""
    return isolate(monkeypatch, tmp_path)


def parquet(datasets: Any, folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A Parquet file of these rows."""
    path = folder / "rows.parquet"
    datasets.Dataset.from_list(rows).to_parquet(str(path))
    return path


def test_a_parquet_file_is_read_through_the_column_map(datasets: Any, tmp_path: Path) -> None:
    """Fields by their columns, integers as their digits, null as absent; the place is file and row."""
    rows = [{"question": "a", "gold": 7, "tags": ["x"]}, {"question": "b", "gold": -8, "tags": None}]
    read = read_parquet(parquet(datasets, tmp_path, rows), Needs(columns={"prompt": "question", "answer": "gold"}))
    assert len(read) == 2
    assert read[0] == {"prompt": "a", "answer": "7", "tags": ["x"]}
    assert read[1] == {"prompt": "b", "answer": "-8", "tags": None}
    assert read.where(1) == f"{tmp_path}/rows.parquet, row 2"


def test_messages_may_have_keys_that_are_null(datasets: Any, tmp_path: Path) -> None:
    """Arrow gives every message every key; null there is absent, and so is a null prompt beside messages."""
    rows = [
        {"messages": [{"role": "user", "content": "hi", "name": None}], "prompt": None},
        {"messages": None, "prompt": "plain"},
    ]
    read = read_parquet(parquet(datasets, tmp_path, rows), Needs())
    assert read[0] == {"messages": [{"role": "user", "content": "hi"}]}
    assert read[1] == {"prompt": "plain"}


def test_columns_that_json_has_not_are_left_out_unless_needed(datasets: Any, tmp_path: Path) -> None:
    """Dates and bytes would not survive a resume: said once; refused where a reward wants one."""
    path = parquet(datasets, tmp_path, [{"prompt": "a", "when": dt.datetime(2026, 1, 2), "raw": b"\xff"}])  # noqa: DTZ001
    read = read_parquet(path, Needs())
    assert read[0] == {"prompt": "a"}
    assert "raw (binary), when (timestamp[us])" in read.warnings()[0]
    with pytest.raises(DataError, match=r"the column 'when' is of the type timestamp\[us\], which JSON has not"):
        read_parquet(path, Needs(required_fields=("when",)))


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([{"prompt": "a"}, {"prompt": "  "}], "row 2: field 'prompt': must not be empty"),
        ([{"prompt": 3}], "row 1: field 'prompt': Expected `str`, got `int`"),
        ([{"prompt": "a", "answer": 0.1}], "row 1: field 'answer': Expected `str`, got `float`; answers are strings"),
        ([{"prompt": "a", "answer": None}], "row 1: field 'answer': Expected `str`, got `null`"),
        ([{"prompt": "a", "x": float("nan")}], "row 1: field 'x': nan is no finite number"),
        ([{"prompt": "a", "id": 1}, {"prompt": "b", "id": 1}], "row 2: field 'id': 1 is the id of "),
        ([{"text": "a"}], "row 1: a row has either 'prompt' or 'messages', this one has neither (its fields: 'text'"),
    ],
)
def test_a_bad_row_is_named(datasets: Any, tmp_path: Path, rows: list[dict[str, Any]], what: str) -> None:
    """File, row and field."""
    path = parquet(datasets, tmp_path, rows)
    with pytest.raises(DataError) as caught:
        read_parquet(path, Needs())
    assert str(caught.value).startswith(f"{path}, ")
    assert what in str(caught.value)


def test_what_is_no_parquet_file_is_one_line(datasets: Any, tmp_path: Path) -> None:
    """The library's wrapped errors come down to their cause."""
    (tmp_path / "rows.parquet").write_bytes(b'{"prompt": "a"}')
    with pytest.raises(DataError, match=r"rows\.parquet: not a Parquet file that can be read: Arrow") as caught:
        read_parquet(tmp_path / "rows.parquet", Needs())
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="cannot be read: no such file"):
        read_parquet(tmp_path / "none.parquet", Needs())


def test_a_folder_that_the_library_saved(datasets: Any, tmp_path: Path) -> None:
    """``save_to_disk`` of one dataset or of several splits; a wrong split names those there are."""
    one = datasets.Dataset.from_list([{"prompt": "a"}])
    one.save_to_disk(str(tmp_path / "one"))
    assert read_dataset(str(tmp_path / "one"), Needs())[0] == {"prompt": "a"}
    both = datasets.DatasetDict({"train": one, "test": datasets.Dataset.from_list([{"prompt": "t"}])})
    both.save_to_disk(str(tmp_path / "both"))
    test = read_dataset(str(tmp_path / "both"), Needs(), split="test")
    assert (test[0], test.where(0)) == ({"prompt": "t"}, f"{tmp_path}/both [test], row 1")
    with pytest.raises(DataError, match=r"data.split = 'dev': .*both has the splits train, test"):
        read_dataset(str(tmp_path / "both"), Needs(), split="dev")


def test_a_folder_of_data_files(datasets: Any, tmp_path: Path) -> None:
    """What the hub would serve: files named by their split."""
    (tmp_path / "hub").mkdir()
    for split in ("train", "test"):
        datasets.Dataset.from_list([{"prompt": split}]).to_parquet(str(tmp_path / "hub" / f"{split}.parquet"))
    assert read_dataset(str(tmp_path / "hub"), Needs(), split="test")[0] == {"prompt": "test"}


def test_a_name_that_cannot_be_found_says_where_it_was_looked_for(datasets: Any, tmp_path: Path) -> None:
    """Neither a folder nor on the hub."""
    with pytest.raises(DataError, match=r"data.path = 'nobody/nothing', split 'train': .*looked for on the hub"):
        read_dataset("nobody/nothing", Needs())


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``pip install 'prl-train[data]'``."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"data.source = 'parquet' needs .*prl-train\[data\]"):
        read_parquet(tmp_path / "rows.parquet", Needs())


def test_the_fingerprint_is_of_the_rows(datasets: Any, tmp_path: Path) -> None:
    """Another value is another fingerprint; the same rows again are the same."""
    path = parquet(datasets, tmp_path, [{"prompt": "a"}, {"prompt": "b"}])
    before = read_parquet(path, Needs()).fingerprint()
    assert read_parquet(path, Needs()).fingerprint() == before
    parquet(datasets, tmp_path, [{"prompt": "a"}, {"prompt": "c"}])
    assert read_parquet(path, Needs()).fingerprint() != before
