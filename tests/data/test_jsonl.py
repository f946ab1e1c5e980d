"""Rows of a JSONL file: a zoo of malformed ones, each with one error that names file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from prl.data.jsonl import Rows
from prl.data.rows import Needs
from prl.errors import DataError

GOOD = b'{"prompt": "1+1", "answer": "2"}'


def write(folder: Path, *lines: bytes) -> Path:
    """A file of these lines."""
    path = folder / "rows.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def test_good_rows_keep_every_field(tmp_path: Path) -> None:
    """Prompt or messages, and whatever else a row has, come back as they were written."""
    chat = b'{"messages": [{"role": "user", "content": "hi"}], "tags": ["a", {"b": 1.5}], "none": null}'
    rows = Rows(write(tmp_path, GOOD, b"", chat, b"  "))
    assert len(rows) == 2
    assert rows[0] == {"prompt": "1+1", "answer": "2"}
    assert rows[1] == {
        "messages": [{"role": "user", "content": "hi"}],
        "tags": ["a", {"b": 1.5}],
        "none": None,
    }
    assert rows.where(1) == f"{tmp_path}/rows.jsonl:3"


def test_byte_order_mark_and_missing_last_newline(tmp_path: Path) -> None:
    """A file as some editors leave it is read as it was meant."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD + b"\r\n" + GOOD)
    assert len(Rows(path)) == 2


BAD_ROWS = {
    "neither": (b'{"answer": "2"}', "either 'prompt' or 'messages', this one has neither"),
    "both": (b'{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', "this one has both"),
    "null prompt": (b'{"prompt": null}', "field 'prompt': Expected `str`, got `null`"),
    "wrong type": (b'{"prompt": 5}', "field 'prompt': Expected `str`, got `int`"),
    "empty prompt": (b'{"prompt": ""}', "field 'prompt': must not be empty"),
    "blank prompt": (b'{"prompt": " \\n"}', "field 'prompt': must not be empty"),
    "null answer": (b'{"prompt": "a", "answer": null}', "field 'answer': Expected `str`, got `null`"),
    "blank answer": (b'{"prompt": "a", "answer": ""}', "field 'answer': must not be empty"),
    "number answer": (
        b'{"prompt": "a", "answer": 12}',
        "field 'answer': Expected `str`, got `int`; answers are strings",
    ),
    "float answer": (b'{"prompt": "a", "answer": 0.10}', "field 'answer': Expected `str`, got `float`; answers are"),
    "no messages": (b'{"messages": []}', "field 'messages': Expected `array` of length >= 1"),
    "bad role": (
        b'{"messages": [{"role": "boss", "content": "a"}]}',
        "field 'messages[0].role': Invalid enum value 'boss'",
    ),
    "no content": (b'{"messages": [{"role": "user"}]}', "field 'messages[0]': Object missing required field `content`"),
    "extra key": (
        b'{"messages": [{"role": "user", "content": "a", "name": "x"}]}',
        "field 'messages[0]': Object contains unknown field `name`",
    ),
    "assistant last": (b'{"messages": [{"role": "assistant", "content": "a"}]}', "field 'messages': the last message"),
    "nan": (b'{"prompt": "a", "x": NaN}', "NaN is no JSON value; write null, or a string"),
    "infinite": (b'{"prompt": "a", "x": 1e400}', "Number out of range; write it as a string"),
    "huge integer": (
        b'{"prompt": "a", "x": [{"y": 123456789012345678901}]}',
        "field 'x[0].y': an integer beyond 64 bits",
    ),
    "huge answer": (b'{"prompt": "a", "answer": 123456789012345678901}', "field 'answer': Expected `str`, got `int`"),
    "endless integer": (b'{"prompt": "a", "x": ' + b"9" * 5000 + b"}", "Integer value out of range"),
    "broken utf-8": (b'{"prompt": "a\xff"}', "column 14: not UTF-8: byte 0xff; save the file as UTF-8"),
    "latin-1": (
        b'{"prompt": "caf\xe9"}',
        "column 16: not UTF-8: byte 0xe9; save the file as UTF-8 (in Latin-1 it is '\u00e9'",
    ),
    "half a surrogate": (b'{"prompt": "a\\ud800"}', "a \\ud... escape without its other half"),
    "cut off": (b'{"prompt": "a"', "column 15: the line ends before its object does: each row is one JSON object"),
    "in two lines": (b'{"prompt":', "column 11: the line ends before its object does"),
    "single quotes": (
        b"{'prompt': 'a'}",
        "column 2: not valid JSON: Expecting property name enclosed in double quotes",
    ),
    "trailing comma": (
        b'{"prompt": "a",}',
        "column 16: not valid JSON: Expecting property name enclosed in double quotes",
    ),
    "no comma": (
        b'{"prompt": "\xc3\xa9" "answer": "b"}',
        "column 16: not valid JSON: Expecting ',' delimiter at '\"answer\": \"b\"}'",
    ),
    "two objects": (b'{"prompt": "a"} {"prompt": "b"}', "column 17: not valid JSON: Extra data"),
    "no object": (b'["a"]', "Expected `object`, got `array`; each line is one JSON object"),
    "deep": (b'{"prompt": "a", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
    "bad id": (b'{"prompt": "a", "id": 1.5}', "field 'id': Expected `int | str`, got `float`"),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_bad_row_is_one_error_with_file_line_and_field(tmp_path: Path, kind: str) -> None:
    """Every kind of malformed row is one line that says where it is and what is wrong."""
    line, what = BAD_ROWS[kind]
    path = write(tmp_path, GOOD, line, GOOD)
    with pytest.raises(DataError) as caught:
        Rows(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:2: ")
    assert what in message
    assert "\n" not in message


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_bad_rows_are_skipped_on_request(tmp_path: Path, kind: str) -> None:
    """With skip_bad_rows the row is counted, the first one's message kept, and the others served."""
    rows = Rows(write(tmp_path, GOOD, BAD_ROWS[kind][0], GOOD), Needs(skip_bad_rows=True))
    assert (len(rows), rows.judge.num_bad) == (2, 1)
    assert ":2: " in rows.judge.first_bad
    assert rows.where(1).endswith(":3")


def test_duplicate_id_names_both_lines(tmp_path: Path) -> None:
    """Two rows of one id are an error that names the earlier one."""
    row = b'{"prompt": "a", "id": "x1"}'
    with pytest.raises(DataError, match=r":3: field 'id': 'x1' is the id of .*rows\.jsonl:1 too"):
        Rows(write(tmp_path, row, GOOD, row))


def test_field_that_a_reward_needs(tmp_path: Path) -> None:
    """A row without a field that a reward needs is refused when the data is read; without the need it is not."""
    path = write(tmp_path, GOOD, b'{"prompt": "a"}')
    assert len(Rows(path)) == 2
    with pytest.raises(DataError, match=r":2: field 'answer' is missing, and a reward needs it"):
        Rows(path, Needs(required_fields=("answer",)))


SPELT = (GOOD, b'{"prompt": "a", "answer": "1", "url": "x"}', b'{"prompt": "b", "anwser": "1"}', GOOD)


def test_fields_that_nothing_reads_are_told_once(tmp_path: Path) -> None:
    """One line for a file: the likely mistakes first, with how many rows have each, where, and what may be meant."""
    path = write(tmp_path, *SPELT, b'{"prompt": "c", "anwser": "2", "level": null}')
    found = f"'anwser' (did you mean 'answer'?) in 2 of 5 rows, first {path}:3; 'url' in 1 of 5 rows, first {path}:2"
    assert Rows(path).warnings() == [f"{path}: no reward or key asks for these fields by name: {found}"]
    assert Rows(path, Needs(reads_all=True)).warnings() == []
    named = Needs(known_fields=("url",), required_fields=("prompt", "anwser"), skip_bad_rows=True)
    assert [line for line in Rows(path, named).warnings() if "by name" in line] == []


def test_a_second_answer_is_no_misspelt_one(tmp_path: Path) -> None:
    """A name is meant only where the row has not got it; of many fields some are named."""
    rows = [b'{"prompt": "a", "answer": "1", "answers": ["1"], ' + b", ".join(b'"f%d": 1' % i for i in range(9)) + b"}"]
    (line,) = Rows(write(tmp_path, *rows)).warnings()
    assert "'answers' in every row; 'f0' in every row; " in line
    assert line.endswith("'f6' in every row; and 2 more")


def test_extra_fields_are_refused_on_request(tmp_path: Path) -> None:
    """With file, line and field, or skipped and counted as any bad row."""
    path = write(tmp_path, *SPELT)
    with pytest.raises(DataError, match=r"rows\.jsonl:2: nothing reads the field 'url': take it away, name it in"):
        Rows(path, Needs(refuse_extra=True))
    rows = Rows(path, Needs(refuse_extra=True, skip_bad_rows=True))
    assert (len(rows), rows.judge.num_bad) == (2, 2)
    (line,) = rows.warnings()
    assert "2 bad rows of" in line


def test_of_rows_that_are_left_out_no_field_is_counted(tmp_path: Path) -> None:
    """Whatever they were left out for: a count is never more than the rows."""
    rows = Rows(write(tmp_path, *[b'{"prompt": "a", "id": 1, "url": "x"}'] * 2), Needs(skip_bad_rows=True))
    assert rows.warnings()[1].endswith("these fields by name: 'url' in every row")


def test_a_missing_field_that_is_misspelt_is_named(tmp_path: Path) -> None:
    """The row has another name for what a reward needs."""
    path = write(tmp_path, *SPELT)
    message = r":3: field 'answer' is missing, and a reward needs it \(did you mean 'anwser'\?\); data\.columns gives"
    with pytest.raises(DataError, match=message):
        Rows(path, Needs(required_fields=("answer",)))


@pytest.mark.parametrize("lines", [[], [b"", b"   "]])
def test_empty_file_is_an_error(tmp_path: Path, lines: list[bytes]) -> None:
    """No rows, no run."""
    with pytest.raises(DataError, match="there is no row in this file"):
        Rows(write(tmp_path, *lines))


def test_only_bad_rows_is_an_error_that_shows_one(tmp_path: Path) -> None:
    """Skipping everything leaves nothing to train on."""
    with pytest.raises(DataError, match=r"all 2 rows are bad, the first: .*rows\.jsonl:1: "):
        Rows(write(tmp_path, b"{", b"{"), Needs(skip_bad_rows=True))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    """A path that cannot be read is named with the reason."""
    with pytest.raises(DataError, match=r"nowhere\.jsonl: cannot be read: No such file"):
        Rows(tmp_path / "nowhere.jsonl")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        Rows(tmp_path)
