"""The rows of a JSONL file of prompts, every one checked before anything starts (``rows.py`` says for what).

- A line that is no JSON is a DataError with file, line and column, what stands there, and what to do.
- NaN, broken UTF-8 and half surrogate pairs are refused, since nothing later could write them down again.
- A file that is another format throughout (UTF-16, gzip, Parquet, one JSON array) is refused as such.
- Blank lines are no rows. A byte-order mark at the start is passed over.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from prl.data.rows import Fields, Judge, Needs
from prl.errors import DataError

BOM = b"\xef\xbb\xbf"
_OTHER_FORMATS = (
    (b"\xff\xfe", "is UTF-16: save it as UTF-8, such as with iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "is UTF-16: save it as UTF-8, such as with iconv -f UTF-16 -t UTF-8"),
    (b"\x1f\x8b", "is compressed: unpack it with gunzip"),
    (b"PAR1", "is a Parquet file: set data.source = 'parquet'"),
)
_SHOWN = 24
_decoder = msgspec.json.Decoder(dict[str, Any])


class Rows:
    """The good rows of one file, kept as the bytes they were."""

    def __init__(self, path: Path, needs: Needs | None = None) -> None:
        """Read and check the whole file. Raises DataError; with ``skip_bad_rows`` bad rows are counted instead."""
        self.path = path
        self.judge = Judge(str(path), Needs() if needs is None else needs)
        self.fingerprint, self.warnings = self.judge.fingerprint, self.judge.warnings
        self._lines: list[bytes] = []
        self._numbers: list[int] = []
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    self._add(number, line)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
        self.judge.done()

    def _add(self, number: int, line: bytes) -> None:
        if number == 1:
            refuse_other_formats(self.path, line)
            line = line.removeprefix(BOM)
        if not line.strip():
            return
        if not self._numbers and line.lstrip().startswith(b"["):
            raise DataError(
                f"{self.path}:{number}: an array begins here, and JSONL has one object a line: make lines of it, such "
                "as with jq -c '.[]'"
            )
        if self.judge.accept(f"{self.path}:{number}", partial(_decode, line)):
            self._lines.append(line)
            self._numbers.append(number)

    def where(self, index: int) -> str:
        """``file:line`` of a row, for messages."""
        return f"{self.path}:{self._numbers[index]}"

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Fields:
        """All fields of a row."""
        return self.judge.needs.renamed(_decoder.decode(self._lines[index]))


def refuse_other_formats(path: Path, start: bytes) -> None:
    """Raise DataError where the first bytes of a text file are those of something else."""
    for mark, what in _OTHER_FORMATS:
        if start.startswith(mark):
            raise DataError(f"{path} {what}")


def decode_text(data: bytes) -> str:
    """UTF-8, or a DataError (without a place) that says where it ends and what it may be."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        column = len(data[: error.start].decode()) + 1
        byte = data[error.start]
        guess = bytes([byte]).decode("cp1252", errors="ignore")
        meant = f" (in Latin-1 it is {guess!r}: iconv -f LATIN1 -t UTF-8)" if guess.isalpha() else ""
        raise DataError(f"column {column}: not UTF-8: byte 0x{byte:02x}; save the file as UTF-8{meant}") from error


def _decode(line: bytes) -> Fields:
    try:
        fields: Fields = _decoder.decode(line)
    except msgspec.ValidationError as error:  # JSON, and no object or a number that nothing holds
        message, _, place = str(error).partition(" - at ")
        raise DataError(f"{message}; {'write it as a string' if place else 'each line is one JSON object'}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse(decode_text(line), error)
    return fields


def _refuse(text: str, error: Exception) -> NoReturn:
    """Say what is wrong with a line that is no JSON, and where; msgspec counts bytes and says little."""
    if isinstance(error, RecursionError):
        raise DataError("nested too deeply") from error
    try:
        json.loads(text.rstrip("\r\n"), parse_constant=_refuse_constant)
    except json.JSONDecodeError as found:
        rest = text[found.pos :].strip()
        if not rest:
            what = "the line ends before its object does: each row is one JSON object on one line"
        else:
            shown = rest if len(rest) <= _SHOWN else f"{rest[:_SHOWN]}..."
            what = f"not valid JSON: {found.msg} at {shown!r}; each line is one JSON object, in double quotes"
        raise DataError(f"column {found.colno}: {what}") from error
    except (ValueError, RecursionError) as found:
        if isinstance(found, _ConstantError):
            raise DataError(str(found)) from error
    if "\\ud" in text.lower():
        raise DataError("not valid JSON: a \\ud... escape without its other half, which is no character") from error
    message = str(error).partition(" (byte")[0]
    raise DataError(f"not usable JSON: {message}; write it as a string") from error


class _ConstantError(ValueError):
    """NaN or an infinity, which Python's json would let through."""


def _refuse_constant(name: str) -> NoReturn:
    raise _ConstantError(f"not valid JSON: {name} is no JSON value; write null, or a string")
