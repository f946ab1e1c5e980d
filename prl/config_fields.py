"""What the fields of a configuration are made of: the ranges that recur, the base of every table, filled defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
PositiveFloat = Annotated[float, Meta(gt=0)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]
Decay = Annotated[float, Meta(ge=0, lt=1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]


class Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every table of the TOML."""


def fill(table: Table, defaults: Mapping[str, Any]) -> None:
    """Give the fields that nobody gave their values; for ``__post_init__``, before anybody has seen the table."""
    for name, value in defaults.items():
        if getattr(table, name) is None:
            force_setattr(table, name, value)
