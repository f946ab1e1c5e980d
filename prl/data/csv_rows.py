"""The rows of a CSV file, every one checked before anything starts (``rows.py`` says for what).

- Every value is the text that stands in the file: ``007`` and ``0.10`` stay what they are, which is why no library that
  guesses types reads it.
- The first row names the columns. A row of another length, a quote that is never closed and broken UTF-8 are refused
  with file and line; the line of a row is the one that it begins in.
- A file that ends in ``.tsv`` is separated by tabs, any other by commas.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from prl.data.jsonl import BOM, decode_text, refuse_other_formats
from prl.data.rows import Fields, Judge, Needs
from prl.errors import DataError

_LONGEST_VALUE = 1 << 30


class CsvRows:
    """The good rows of one file."""

    def __init__(self, path: Path, needs: Needs) -> None:
        """Read and check the whole file. Raises DataError; with ``skip_bad_rows`` bad rows are counted instead."""
        self.path = path
        self.judge = Judge(str(path), needs)
        self.fingerprint, self.warnings = self.judge.fingerprint, self.judge.warnings
        self._rows: list[list[str]] = []
        self._numbers: list[int] = []
        try:
            lines = path.read_bytes().splitlines(keepends=True)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
        refuse_other_formats(path, lines[0] if lines else b"")
        reader = csv.reader(self._decoded(lines), strict=True, delimiter="\t" if path.suffix == ".tsv" else ",")
        with _long_values():
            self._header = self._read_header(reader)
            self._read_rows(reader)
        self.judge.done()

    def _decoded(self, lines: list[bytes]) -> Iterator[str]:
        for number, line in enumerate(lines, 1):
            try:
                yield decode_text(line.removeprefix(BOM) if number == 1 else line)
            except DataError as error:
                raise DataError(f"{self.path}:{number}: {error}") from error

    def _read_header(self, reader: Iterator[list[str]]) -> list[str]:
        header = next(reader, [])
        twins = sorted({name for name in header if header.count(name) > 1})
        if twins or not all(name.strip() for name in header):
            what = f"two columns are named {twins[0]!r}" if twins else "a column has no name"
            raise DataError(f"{self.path}:1: {what}; the first line names the columns")
        return header

    def _read_rows(self, reader: Iterator[list[str]]) -> None:
        while True:
            begins_at = reader.line_num + 1  # type: ignore[attr-defined]
            try:
                values = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise DataError(
                    f"{self.path}:{begins_at}: no valid CSV: {error}; a value with a quote in it stands in quotes, the "
                    'quote twice: "say ""hi"""'
                ) from error
            if values and self.judge.accept(f"{self.path}:{begins_at}", partial(self._fields, values)):
                self._rows.append(values)
                self._numbers.append(begins_at)

    def _fields(self, values: list[str]) -> Fields:
        if len(values) != len(self._header):
            raise DataError(
                f"{len(values)} values, and there are {len(self._header)} columns ({', '.join(self._header)}): a value "
                "with a comma in it stands in quotes"
            )
        return dict(zip(self._header, values, strict=True))

    def where(self, index: int) -> str:
        """``file:line`` of a row, for messages."""
        return f"{self.path}:{self._numbers[index]}"

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Fields:
        """All fields of a row."""
        return self.judge.needs.renamed(self._fields(self._rows[index]))


@contextmanager
def _long_values() -> Iterator[None]:
    """The csv module refuses long values; how long one may be is the process's setting, so it is put back."""
    before = csv.field_size_limit(_LONGEST_VALUE)
    try:
        yield
    finally:
        csv.field_size_limit(before)
