"""Fields of rows that nothing reads by name: mostly harmless, sometimes a misspelt one that is missed.

- One line tells all of a file: each field with how many rows have it, the first of them, and the wanted field that it
  may be meant for. The latter are names that the row has not, so that a second answer is taken for none.
- A null is no field. They stay in the row: code that asks for them by itself finds them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from prl.plugins import nearest

MOST_NAMED = 8
"""Fields that a line names; of more, how many there are."""


class _Met(msgspec.Struct):
    where: str
    hint: str
    count: int = 0


class ExtraFields:
    """Those of one file."""

    def __init__(self, name: str, wanted: Collection[str]) -> None:
        """``name`` is the file's, ``wanted`` are the fields that something reads."""
        self._name, self._wanted = name, wanted
        self._met: dict[str, _Met] = {}

    def meet(self, where: str, fields: Mapping[str, Any]) -> str | None:
        """Take in a row; what is wrong with it where such a field is, as a row of a strict file is told."""
        problem = None
        for field, value in fields.items():
            if field in self._wanted or value is None:
                continue
            met = self._met.get(field)
            if met is None:
                absent = [wanted for wanted in self._wanted if fields.get(wanted) is None]
                met = self._met[field] = _Met(where, nearest(field, sorted(absent)))
            met.count += 1
            problem = problem or (
                f"nothing reads the field {field!r}{met.hint}: take it away, name it in data.columns or in a reward's"
                " required_fields, or set data.extra_fields = 'tell'"
            )
        return problem

    def warnings(self, num_rows: int) -> list[str]:
        """All of them in a line, the likely mistakes first; ``num_rows`` are the rows of the file."""
        if not self._met:
            return []
        ordered = sorted(self._met.items(), key=lambda each: not each[1].hint)
        told = [
            f"{field!r}{met.hint} in {'every row' if met.count == num_rows else f'{met.count:,} of {num_rows:,} rows'}"
            f"{f', first {met.where}' if met.hint or met.count < num_rows else ''}"
            for field, met in ordered[:MOST_NAMED]
        ]
        more = f"; and {len(ordered) - MOST_NAMED} more" if len(ordered) > MOST_NAMED else ""
        return [f"{self._name}: no reward or key asks for these fields by name: {'; '.join(told)}{more}"]


def misspelt(field: str, fields: Mapping[str, Any], wanted: Collection[str]) -> str:
    """The tail of a message that ``field`` is missing: a field of the row that nothing reads and that may be it."""
    hint = nearest(field, [name for name in fields if name not in wanted])
    return f"{hint}; data.columns gives a field another name" if hint else ""
