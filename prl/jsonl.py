"""The rows of a JSONL file of prompts, every one checked before anything starts.

A row is an object with either ``prompt`` (a string) or ``messages`` (a list of role and content, the last one not the
assistant's), and optionally ``answer`` and ``id``. Every other field is kept for the rewards.

- Answers are strings. A number is refused: 0.10, 1e400 and 12345678901234567890 would not survive as they were written.
- ``id`` is unique in its file. Null is refused where a value must be. NaN, integers beyond 64 bits, broken UTF-8 and
  broken JSON are refused, since nothing later could write them down again.
- What is refused is a DataError that names file, line and field. Blank lines are no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from prl.errors import DataError

Text = Annotated[str, Meta(pattern=r"\S")]
"""A string with something in it."""

_INT64 = range(-(1 << 63), 1 << 63)
_decoder = msgspec.json.Decoder(dict[str, Any])


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that prl itself reads."""

    prompt: Text | UnsetType = UNSET
    messages: Annotated[list[Message], Meta(min_length=1)] | UnsetType = UNSET
    answer: Text | UnsetType = UNSET
    id: str | int | UnsetType = UNSET


class Rows:
    """The good rows of one file, kept as the bytes they were."""

    def __init__(self, path: Path, *, required_fields: Sequence[str] = (), skip_bad_rows: bool = False) -> None:
        """Read and check the whole file. Raises DataError; with ``skip_bad_rows`` bad rows are counted instead."""
        self.path = path
        self.num_bad = 0
        self.first_bad = ""
        """The message of the first row that was skipped."""
        self._lines: list[bytes] = []
        self._numbers: list[int] = []
        self._ids: dict[str | int, int] = {}
        self._required = required_fields
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    self._add(number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, skip_bad_rows)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
        self._ids.clear()
        if not self._lines:
            why = f": all {self.num_bad} rows are bad, the first: {self.first_bad}" if self.num_bad else ""
            raise DataError(f"{path}: there is no row in this file{why}")

    def _add(self, number: int, line: bytes, skip_bad_rows: bool) -> None:
        if not line.strip():
            return
        try:
            self._check(number, line)
        except DataError as error:
            if not skip_bad_rows:
                raise
            self.num_bad += 1
            self.first_bad = self.first_bad or str(error)
            return
        self._lines.append(line)
        self._numbers.append(number)

    def _check(self, number: int, line: bytes) -> None:
        try:
            fields = _decoder.decode(line)
            row = msgspec.convert(fields, Row)
            _check_integers(fields, "")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _TooLargeError) as error:
            raise self._bad(number, _explain(error)) from error
        if (row.prompt is UNSET) == (row.messages is UNSET):
            has = "neither" if row.prompt is UNSET else "both"
            raise self._bad(number, f"a row has either 'prompt' or 'messages', this one has {has}")
        if row.messages is not UNSET and row.messages[-1].role in ("assistant", "system"):
            raise self._bad(number, "field 'messages': the last message must be the user's (or a tool's)")
        for field in self._required:
            if fields.get(field) is None:
                raise self._bad(number, f"field {field!r} is missing, and a reward needs it")
        if row.id is not UNSET and (before := self._ids.setdefault(row.id, number)) != number:
            raise self._bad(number, f"field 'id': {row.id!r} is the id of line {before} too")

    def _bad(self, number: int, what: str) -> DataError:
        return DataError(f"{self.path}:{number}: {what}")

    def where(self, index: int) -> str:
        """``file:line`` of a row, for messages."""
        return f"{self.path}:{self._numbers[index]}"

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """All fields of a row."""
        fields: dict[str, Any] = _decoder.decode(self._lines[index])
        return fields


class _TooLargeError(ValueError):
    """An integer that 64 bits do not hold."""


def _check_integers(value: Any, where: str) -> None:
    if isinstance(value, int) and value not in _INT64:
        raise _TooLargeError(f"field {where!r}: an integer beyond 64 bits; write it as a string")
    if isinstance(value, dict):
        for key, member in value.items():
            _check_integers(member, f"{where}.{key}" if where else key)
    elif isinstance(value, list):
        for position, member in enumerate(value):
            _check_integers(member, f"{where}[{position}]")


def _explain(error: Exception) -> str:
    """The decoder's message with the field first and by its own name."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    message, _, path = str(error).partition(" - at `$")
    field = path.rstrip("`").removeprefix(".")
    if field in ("", "[...]"):
        return message
    if "matching regex" in message:
        message = "must not be empty"
    hint = "; answers are strings, put it in quotes" if field == "answer" and "got `str`" not in message else ""
    return f"field {field!r}: {message}{hint}"
