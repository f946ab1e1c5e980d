"""What the fields of a configuration are made of: the ranges that recur, and the base of every table."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
PositiveFloat = Annotated[float, Meta(gt=0)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]
Decay = Annotated[float, Meta(ge=0, lt=1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]


class Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every table of the TOML."""
