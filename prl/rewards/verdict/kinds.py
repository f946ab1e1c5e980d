"""The kinds of things that an answer may be."""

from __future__ import annotations

from typing import Literal

import msgspec

from prl.rewards.verdict.node import Node
from prl.rewards.verdict.units import Unit


class Words(msgspec.Struct, frozen=True):
    """Only its letters count."""

    letters: str


class Scalar(msgspec.Struct, frozen=True):
    """One formula, what it counts, and whether a percent sign stands behind it."""

    formula: Node
    unit: Unit | None = None
    percent: bool = False
    as_symbols: Node | None = None
    """All of it as a formula, where its unit may be letters of one: ``2 V``."""


class Based(msgspec.Struct, frozen=True):
    """Digits in a stated base."""

    value: int
    base: int


class Several(msgspec.Struct, frozen=True):
    """Values without order."""

    items: tuple[Shape, ...]
    is_set: bool = False
    """Written with braces."""


class Bracketed(msgspec.Struct, frozen=True):
    """Values in order between brackets: a tuple, a vector, an interval."""

    opening: str
    closing: str
    items: tuple[Shape, ...]


class Matrix(msgspec.Struct, frozen=True):
    """Entries by row."""

    rows: tuple[tuple[Shape, ...], ...]


class Relation(msgspec.Struct, frozen=True):
    """``left = right``, with any of the signs; for an equation the right side may be any shape."""

    left: Node
    sign: Literal["=", "<", "<=", "!="]
    right: Shape


Shape = Words | Scalar | Based | Several | Bracketed | Matrix | Relation
