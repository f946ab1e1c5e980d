"""The tree of a formula, and what is raised where there is none."""

from __future__ import annotations

from fractions import Fraction

import msgspec


class UnreadableError(ValueError):
    """The text is no formula that is understood here."""


class UnknownError(UnreadableError):
    """A command that is not known here; a symbolic library may know it."""


class Node(msgspec.Struct, frozen=True):
    """One operation of a formula, or what it acts on."""

    op: str
    """``number``, ``symbol``, ``constant``, ``+`` and ``*`` of any number, ``- / ^``, ``negative``, ``inverse``,
    ``root``, ``!``, ``binom``, ``abs``, ``floor``, ``ceil`` or a function."""
    args: tuple[Node, ...] = ()
    value: Fraction = Fraction(0)
    name: str = ""
    decimal: bool = False
    """The number was written with a decimal point, so that it may be rounded."""


def number(value: int | Fraction, *, decimal: bool = False) -> Node:
    """The node of a number."""
    return Node("number", value=Fraction(value), decimal=decimal)
