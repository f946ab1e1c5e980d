"""What a row of prompts must be, whatever kind of file it comes from.

A row has either ``prompt`` (a string) or ``messages`` (a list of role and content, the last one not the assistant's),
and optionally ``answer`` and ``id``. Every other field is kept for the rewards; those that nobody asks for are told, or
refused (``extra_fields.py``).

- Answers are strings. A number is refused: 0.10, 1e400 and 12345678901234567890 would not survive as they were written.
- ``id`` is unique in its file. Null is refused where a value must be. Numbers beyond 64 bits or not finite are refused,
  since nothing later could write them down again.
- What is refused is a DataError that names file, line and field, and the column where the field has another name there.
- The fingerprint depends on every good row and their order, and on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from prl.data.extra_fields import ExtraFields, misspelt
from prl.errors import DataError
from prl.plugins import nearest

Text = Annotated[str, Meta(pattern=r"\S")]
"""A string with something in it."""
Fields = dict[str, Any]
CheckRow = Callable[[Mapping[str, Any]], str | None]
"""What makes a row useless to a reward, if anything does."""

_INT64 = range(-(1 << 63), 1 << 63)


class Table(Protocol):
    """Rows by index, each a dict of fields with ``prompt`` or ``messages`` among them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Fields: ...

    def where(self, index: int) -> str:
        """The row's place, for messages."""
        ...

    def fingerprint(self) -> str:
        """What is the same exactly while the rows and their order are."""
        ...


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


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the rows of one file."""

    required_fields: tuple[str, ...] = ()
    """Those that a reward needs."""
    columns: Mapping[str, str] = {}
    """Field to column, see ``data.columns``."""
    answer_after: str | None = None
    skip_bad_rows: bool = False
    check_row: CheckRow | None = None
    known_fields: tuple[str, ...] = ()
    """Others that something reads where a row has them."""
    reads_all: bool = False
    """Something reads whatever a row has."""
    refuse_extra: bool = False
    """Whether a field that nothing reads makes a row a bad one."""

    @property
    def wanted(self) -> frozenset[str]:
        """Every field that something reads by its name."""
        return frozenset((*Row.__struct_fields__, *self.required_fields, *self.known_fields, *self.columns))

    def renamed(self, row: Fields) -> Fields:
        """The fields of a row as it is in the file. Raises DataError, without a place, where a column is missing."""
        if self.columns:
            for field, column in self.columns.items():
                if column not in row:
                    hint = nearest(column, list(row)) or f"; there is {', '.join(map(repr, row)) or 'none'}"
                    raise DataError(f"there is no column {column!r} (data.columns.{field}){hint}")
            mapped = {field: row[column] for field, column in self.columns.items()}
            taken = {*self.columns, *self.columns.values()}
            row = {**mapped, **{name: value for name, value in row.items() if name not in taken}}
        if self.answer_after is not None and isinstance(answer := row.get("answer"), str):
            _, marker, rest = answer.rpartition(self.answer_after)
            if not marker:
                raise DataError(f"{self.named('answer')} has no {self.answer_after!r} in it (data.answer_after)")
            row["answer"] = rest.strip()
        return row

    def named(self, field: str) -> str:
        """A field, and its column where that has another name."""
        column = self.columns.get(field.partition(".")[0].partition("[")[0], field)
        return f"field {field!r}" if column == field else f"field {field!r} (column {column!r})"


class Judge:
    """Judges the rows of one file, one after the other."""

    def __init__(self, name: str, needs: Needs) -> None:
        """``name`` is the file's, for messages."""
        self.needs = needs
        self.name = name
        self.num_good = self.num_bad = 0
        self.first_bad = ""
        """The message of the first row that was skipped."""
        self._extra = ExtraFields(name, needs.wanted)
        self._ids: dict[str | int, str] = {}
        self._hash = blake2b(digest_size=8)
        self._encoder = msgspec.msgpack.Encoder()

    def accept(self, where: str, read: Callable[[], Fields]) -> bool:
        """Whether the row that ``read`` gives is good. Raises DataError, unless bad rows are skipped and counted."""
        try:
            fields = self._checked(where, read)
        except DataError as error:
            found = DataError(f"{where}: {error}")
            if not self.needs.skip_bad_rows:
                raise found from error
            self.num_bad += 1
            self.first_bad = self.first_bad or str(found)
            return False
        self._hash.update(self._encoder.encode(fields))
        self.num_good += 1
        return True

    def done(self) -> None:
        """All rows were there. Raises DataError where none is good."""
        self._ids.clear()
        if not self.num_good:
            why = f": all {self.num_bad} rows are bad, the first: {self.first_bad}" if self.num_bad else ""
            raise DataError(f"{self.name}: there is no row in this file{why}")

    def fingerprint(self) -> str:
        """Of the good rows."""
        return f"{self.name}: {self.num_good} rows, {self._hash.hexdigest()}"

    def warnings(self) -> list[str]:
        """What was skipped, and which fields nobody asks for, in a line each."""
        found = [f"{self.num_bad} bad rows of {self.name} are left out; the first: {self.first_bad}"]
        extra = [] if self.needs.refuse_extra else self._extra.warnings(self.num_good)
        return [*(found if self.num_bad else []), *extra]

    def _checked(self, where: str, read: Callable[[], Fields]) -> Fields:
        try:
            fields = self.needs.renamed(read())
            row = msgspec.convert(fields, Row)
            _check_numbers(fields, "")
        except (msgspec.ValidationError, RecursionError, _NumberError) as error:
            raise DataError(self._explain(error)) from error
        if (row.prompt is UNSET) == (row.messages is UNSET):
            has = "neither" if row.prompt is UNSET else "both"
            names = ", ".join(map(repr, fields))
            also = f" (its fields: {names}; data.columns gives one another name)" if row.prompt is UNSET else ""
            raise DataError(f"a row has either 'prompt' or 'messages', this one has {has}{also}")
        if row.messages is not UNSET and row.messages[-1].role in ("assistant", "system"):
            raise DataError(f"{self.needs.named('messages')}: the last message must be the user's (or a tool's)")
        for field in self.needs.required_fields:
            if fields.get(field) is None:
                hint = misspelt(field, fields, self.needs.wanted)
                raise DataError(f"{self.needs.named(field)} is missing, and a reward needs it{hint}")
        if self.needs.check_row is not None and (problem := self.needs.check_row(fields)):
            raise DataError(problem)
        if self.needs.refuse_extra and not self.needs.reads_all and (problem := self._extra.meet(where, fields)):
            raise DataError(problem)
        if row.id is not UNSET and (before := self._ids.setdefault(row.id, where)) != where:
            raise DataError(f"{self.needs.named('id')}: {row.id!r} is the id of {before} too")
        if not self.needs.refuse_extra and not self.needs.reads_all:
            self._extra.meet(where, fields)  # of rows that are left out nothing is told but why
        return fields

    def _explain(self, error: Exception) -> str:
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
        return f"{self.needs.named(field)}: {message}{hint}"


class _NumberError(ValueError):
    """A number that could not be written down again; its text has the path as msgspec's errors have it."""


def _check_numbers(value: Any, where: str) -> None:
    kind = type(value)
    if kind is int and value not in _INT64:
        raise _NumberError(f"an integer beyond 64 bits; write it as a string - at `$.{where}`")
    if kind is float and not math.isfinite(value):
        raise _NumberError(f"{value} is no finite number - at `$.{where}`")
    if kind is dict:
        for key, member in value.items():
            _check_numbers(member, f"{where}.{key}" if where else key)
    elif kind is list:
        for position, member in enumerate(value):
            _check_numbers(member, f"{where}[{position}]")
