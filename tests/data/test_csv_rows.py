"""Rows of a CSV file: every value as it was written, every fault with file and line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from prl.data.csv_rows import CsvRows
from prl.data.rows import Needs
from prl.errors import DataError


def write(folder: Path, data: bytes, name: str = "rows.csv") -> Path:
    """A file of these bytes."""
    path = folder / name
    path.write_bytes(data)
    return path


def test_values_stay_what_was_written(tmp_path: Path) -> None:
    """Leading zeros, trailing zeros, the word NA and a line break inside quotes: no type is guessed."""
    data = b'\xef\xbb\xbfprompt,answer\r\n"a\r\nb, ""c""",007\r\n\r\nNA,0.10\r\nlast,1e400'
    rows = CsvRows(write(tmp_path, data), Needs())
    assert [rows[index] for index in range(3)] == [
        {"prompt": 'a\r\nb, "c"', "answer": "007"},
        {"prompt": "NA", "answer": "0.10"},
        {"prompt": "last", "answer": "1e400"},
    ]
    assert [rows.where(index).rpartition(":")[2] for index in range(3)] == ["2", "5", "6"]


def test_columns_get_other_names(tmp_path: Path) -> None:
    """``data.columns`` maps a field to its column, which then has no other name; the rest stays."""
    path = write(tmp_path, b"question,gold,prompt,kind\na,work #### 7,other,k\n")
    needs = Needs(columns={"prompt": "question", "answer": "gold"}, answer_after="####")
    assert CsvRows(path, needs)[0] == {"prompt": "a", "answer": "7", "kind": "k"}


def test_tabs_separate_a_tsv(tmp_path: Path) -> None:
    """The ending decides."""
    assert CsvRows(write(tmp_path, b"prompt\tanswer\na,b\t2\n", "rows.tsv"), Needs())[0] == {
        "prompt": "a,b",
        "answer": "2",
    }


BAD_FILES = {
    "too many values": (
        b"prompt,answer\na,1\nb,c,2\n",
        ":3: 3 values, and there are 2 columns (prompt, answer): a value",
    ),
    "too few values": (b"prompt,answer\na\n", ":2: 1 values, and there are 2 columns"),
    "open quote": (b'prompt,answer\n"a,1\nb,2\n', ":2: no valid CSV: unexpected end of data"),
    "quote inside": (b'prompt,answer\n"a"b,1\n', ":2: no valid CSV: ',' expected after '\"'"),
    "latin-1": (
        b"prompt,answer\na,1\ncaf\xe9,2\n",
        ":3: column 4: not UTF-8: byte 0xe9; save the file as UTF-8 (in Latin",
    ),
    "utf-16": ("prompt,answer\n".encode("utf-16"), "is UTF-16: save it as UTF-8"),
    "twins": (b"prompt,prompt\na,b\n", ":1: two columns are named 'prompt'"),
    "no name": (b"prompt,\na,b\n", ":1: a column has no name"),
    "empty prompt": (b"prompt,answer\n ,1\n", ":2: field 'prompt': must not be empty"),
    "empty answer": (b"prompt,answer\na,\n", ":2: field 'answer': must not be empty"),
    "no prompt": (
        b"question,answer\na,1\n",
        ":2: a row has either 'prompt' or 'messages', this one has neither (its f",
    ),
    "duplicate id": (b"id,prompt\nx,a\ny,b\nx,c\n", ":4: field 'id': 'x' is the id of "),
    "no rows": (b"prompt,answer\n", "there is no row in this file"),
    "nothing": (b"", "there is no row in this file"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_one_error_with_its_place(tmp_path: Path, kind: str) -> None:
    """Every kind of malformed file is one line that says where and what."""
    data, what = BAD_FILES[kind]
    path = write(tmp_path, data)
    with pytest.raises(DataError) as caught:
        CsvRows(path, Needs())
    assert str(caught.value).startswith(str(path))
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_column_names_the_nearest(tmp_path: Path) -> None:
    """A column of the map that is not there is said with the key and the one that was meant."""
    path = write(tmp_path, b"question,answer\na,1\n")
    with pytest.raises(
        DataError, match=r":2: there is no column 'qestion' \(data.columns.prompt\) \(did you mean 'que"
    ):
        CsvRows(path, Needs(columns={"prompt": "qestion"}))


def test_a_field_is_named_with_its_column(tmp_path: Path) -> None:
    """What is wrong with a mapped field is said of the column that stands in the file."""
    path = write(tmp_path, b"question,gold\na,7\n ,8\n")
    with pytest.raises(DataError, match=r":3: field 'prompt' \(column 'question'\): must not be empty"):
        CsvRows(path, Needs(columns={"prompt": "question"}))
    with pytest.raises(
        DataError, match=r":2: field 'answer' \(column 'gold'\) has no '####' in it \(data.answer_after\)"
    ):
        CsvRows(path, Needs(columns={"prompt": "question", "answer": "gold"}, answer_after="####"))


def test_bad_rows_are_skipped_on_request(tmp_path: Path) -> None:
    """They are counted, the first is said, and the limit of the csv module is as it was."""
    limit = csv.field_size_limit()
    long = b"x" * (limit + 1)
    rows = CsvRows(write(tmp_path, b"prompt,answer\na,1\n,2\n" + long + b",3\n"), Needs(skip_bad_rows=True))
    assert (len(rows), rows.judge.num_bad) == (2, 1)
    assert "rows.csv:3: field 'prompt': must not be empty" in rows.warnings()[0]
    assert csv.field_size_limit() == limit


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With the reason."""
    with pytest.raises(DataError, match=r"none\.csv: cannot be read: No such file"):
        CsvRows(tmp_path / "none.csv", Needs())
