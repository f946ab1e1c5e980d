"""Tables made of other tables or of nothing: generated problems, some rows of a table, several tables in a row."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from prl import arithmetic, word_problems
from prl.data.rows import Fields, Table

GENERATORS = {"arithmetic": arithmetic.problem, "word_problems": word_problems.problem}
"""What ``data.source`` may name besides what is read."""


class Problems:
    """Generated problems as a table."""

    def __init__(self, source: str, split: arithmetic.Split, *, level: int, seed: int, num_rows: int) -> None:
        """``source`` is one of ``GENERATORS``."""
        self._source, self._problem = source, GENERATORS[source]
        self._level, self._seed, self._split, self._num_rows = level, seed, split, num_rows

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> Fields:
        problem = self._problem(self._level, index, self._seed, self._split)
        return {"prompt": problem.question, "answer": problem.answer, "level": problem.level}

    def where(self, index: int) -> str:
        """Level, split and index."""
        return f"{self._source} problem {index} of level {self._level} ({self._split})"

    def fingerprint(self) -> str:
        """Everything that the problems depend on."""
        return f"{self._source} level {self._level} seed {self._seed}: {self._num_rows} {self._split} problems"


class Part:
    """Some rows of a table, in a given order."""

    def __init__(self, table: Table, rows: Sequence[int]) -> None:
        self._table, self._rows = table, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Fields:
        return self._table[self._rows[index]]

    def where(self, index: int) -> str:
        """As the whole table says it."""
        return self._table.where(self._rows[index])

    def fingerprint(self) -> str:
        """The table's, and which rows."""
        if isinstance(self._rows, range):
            return f"{self._table.fingerprint()}, {self._rows.start} to {self._rows.stop}"
        digest = blake2b(str(list(self._rows)).encode(), digest_size=4).hexdigest()
        return f"{self._table.fingerprint()}, {len(self._rows)} of them {digest}"


class Joined:
    """The rows of several tables, one after the other."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tables
        self._ends = list(accumulate(len(table) for table in tables))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _find(self, index: int) -> tuple[Table, int]:
        at = bisect_right(self._ends, index)
        return self._tables[at], index - (self._ends[at - 1] if at else 0)

    def __getitem__(self, index: int) -> Fields:
        table, row = self._find(index)
        return table[row]

    def where(self, index: int) -> str:
        """As the row's own table says it."""
        table, row = self._find(index)
        return table.where(row)

    def fingerprint(self) -> str:
        """All of them."""
        return "; ".join(table.fingerprint() for table in self._tables)


def solve_rate_of(fields: dict[str, Any], name: str) -> float | None:
    """The solve rate that a row states: a number, or text that is one; None where there is none from 0 to 1."""
    value = fields.get(name)
    try:
        rate = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
    except ValueError:
        return None
    return rate if 0 <= rate <= 1 else None
