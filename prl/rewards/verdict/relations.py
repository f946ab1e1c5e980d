r"""Equations and inequalities: what they say of their symbol, and the intervals that they describe."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from prl.rewards.verdict.kinds import Bracketed, Relation, Scalar, Several, Shape
from prl.rewards.verdict.node import Node, UnreadableError
from prl.rewards.verdict.syntax import parse
from prl.rewards.verdict.text import literal

Read = Callable[[str], Shape]
"""Reads one side."""
INFINITY = Scalar(Node("constant", name="infinity"))
MINUS_INFINITY = Scalar(Node("negative", (INFINITY.formula,)))
_WRAPPED = re.compile(r"\\text\s*\{([^{}]*)\}")
_FLIPPED = {">": "<", ">=": "<=", r"\ge": "<=", "<": "<", "<=": "<=", r"\le": "<=", "!=": "!=", r"\ne": "!=", "=": "="}


def relation(sides: list[str], signs: list[str], read: Read) -> Shape:
    r"""Two sides, a chain of equations (its first and last side), or bounds on both sides of one symbol."""
    if any(not side.strip() for side in sides):
        raise UnreadableError("a side is missing")
    if set(signs) <= {"=", r"\in", r"\approx", r"\equiv"}:
        if not sides[0].strip().isascii():
            raise UnreadableError("an equation of words")
        name = _WRAPPED.sub(r"\1", sides[0])
        if re.fullmatch(r"\s*[a-zA-Z ]{3,}\s*", name):  # area = 5
            return Relation(Node("symbol", name=literal(name)), "=", read(sides[-1]))
        if re.fullmatch(r"\s*\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])+\s*\)\s*", sides[0]):  # (x, y) = (1, 2)
            return Relation(Node("symbol", name=literal(sides[0])), "=", read(sides[-1]))
        return Relation(parse(sides[0]), "=", read(sides[-1]))
    if any(sign not in _FLIPPED for sign in signs):
        raise UnreadableError("an implication")
    flips = [sign in (">", ">=", r"\ge") for sign in signs]
    formulas = [parse(side) for side in sides]
    if len(signs) == 1:
        left, right = reversed(formulas) if flips[0] else formulas
        return _interval(left, _FLIPPED[signs[0]], right)
    if len(signs) != 2 or len(set(flips)) != 1:  # noqa: PLR2004
        raise UnreadableError("a chain of signs")
    low, middle, high = reversed(formulas) if flips[0] else formulas
    first, second = (_FLIPPED[sign] for sign in (reversed(signs) if flips[0] else signs))
    if middle.op != "symbol" or "=" in (first, second):
        raise UnreadableError("a chain of inequalities")
    return Bracketed("[" if first == "<=" else "(", "]" if second == "<=" else ")", (Scalar(low), Scalar(high)))


def _interval(left: Node, sign: str, right: Node) -> Shape:
    if sign in ("<", "<="):
        if left.op == "symbol" and not _has_symbols(right):
            return Bracketed("(", "]" if sign == "<=" else ")", (MINUS_INFINITY, Scalar(right)))
        if right.op == "symbol" and not _has_symbols(left):
            return Bracketed("[" if sign == "<=" else "(", ")", (Scalar(left), INFINITY))
        return Relation(left, "<" if sign == "<" else "<=", Scalar(right))
    return Relation(left, "!=", Scalar(right))


def apart_from(unequal: Relation) -> Shape | None:
    r"""``x \ne 2`` as the two intervals beside 2; None where no symbol stands alone."""
    if not isinstance(unequal.right, Scalar):
        return None
    one, other = unequal.left, unequal.right.formula
    if one.op == "symbol" and not _has_symbols(other):
        return all_but([Scalar(other)])
    return all_but([Scalar(one)]) if other.op == "symbol" and not _has_symbols(one) else None


def all_but(items: Sequence[Shape]) -> Shape:
    """The real numbers without one of them: the two intervals beside it. Raises UnreadableError."""
    if len(items) != 1:
        raise UnreadableError("all but several numbers")
    return Several((Bracketed("(", ")", (MINUS_INFINITY, items[0])), Bracketed("(", ")", (items[0], INFINITY))))


def both(items: Sequence[Shape]) -> Shape | None:
    """The interval of what is above one bound *and* below another; None where these are no such bounds."""
    if len(items) != 2 or not all(isinstance(item, Bracketed) and len(item.items) == 2 for item in items):  # noqa: PLR2004
        return None
    above = [item for item in items if isinstance(item, Bracketed) and item.items[1] == INFINITY]
    below = [item for item in items if isinstance(item, Bracketed) and item.items[0] == MINUS_INFINITY]
    if len(above) != 1 or len(below) != 1 or above == below:
        return None
    return Bracketed(above[0].opening, below[0].closing, (above[0].items[0], below[0].items[1]))


def _has_symbols(node: Node) -> bool:
    return node.op == "symbol" or any(map(_has_symbols, node.args))
