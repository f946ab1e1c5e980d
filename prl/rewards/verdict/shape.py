r"""What kind of thing an answer is: one value, several, an interval or tuple, a matrix, an equation, words.

- Several values (``1, 2``, ``1 \text{ or } 2``, ``\{1, 2\}``, ``\pm 2``, a union) have no order and no repetition.
- ``(a, b)`` and ``[a, b)`` keep their order and their brackets: a tuple and an open interval are written alike. An
  inequality about one symbol is the interval that it describes.
- What holds an ellipsis or a quantifier, and what is words, is its letters and nothing else.
"""

from __future__ import annotations

import itertools
import re
from typing import Literal

import msgspec

from prl.rewards.verdict.brackets import inside, outside, split
from prl.rewards.verdict.node import Node, UnknownError, UnreadableError, number
from prl.rewards.verdict.syntax import MAX_DEPTH, parse
from prl.rewards.verdict.text import literal
from prl.rewards.verdict.units import Unit, split_percent, split_unit
from prl.rewards.verdict.words import number_in_words


class Words(msgspec.Struct, frozen=True):
    """Only its letters count."""

    letters: str


class Scalar(msgspec.Struct, frozen=True):
    """One formula, what it counts, and whether a percent sign stands behind it."""

    formula: Node
    unit: Unit | None = None
    percent: bool = False


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

MAX_VALUES = 200
"""A list of more values than that is not read."""
_LITERAL = re.compile(r"\\ldots|\.\.\.|\\forall|\\exists")
_WORDS = re.compile(r"(?:\\text\s*\{[^{}0-9]*\}|[^\W\d_]|[\s'\-.,!?\"()])+")
_LONG_WORD = re.compile(r"(?<![\\a-zA-Z])[^\W\d_]{3,}|\\text")
_WRAPPED = re.compile(r"\\text\s*\{([^{}]*)\}")
_BASED = re.compile(r"([0-9A-Fa-f]+)\s*_\s*(?:\{\s*(?:\\text\s*\{\s*)?(\d+|[a-z]+)\s*\}?\s*\}|(\d+))")
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_MATRIX = re.compile(
    r"[(\[{]?\s*\\begin\s*\{([pbB]?matrix|array)\}(?:\s*\{[lcr| ]*\})?(.*)\\end\s*\{\1\}\s*[)\]}]?", re.DOTALL
)
_CONNECTIVE = re.compile(
    r"\\text\s*\{\s*,?\s*(?:or|and)\s*,?\s*\}|(?<![\\a-zA-Z])(?:or|and)(?![a-zA-Z])|[,;]|\\cup(?![a-zA-Z])|&"
)
_SIGN = re.compile(r"\\(?:le|ge|ne|in|approx|equiv|to|rightarrow|implies|Rightarrow)(?![a-zA-Z])|[<>]=?|!=|=")
_REALS = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?|\\text\s*\{\s*all real numbers\s*\}|all real numbers")
_FLIPPED = {">": "<", ">=": "<=", r"\ge": "<=", "<": "<", "<=": "<=", r"\le": "<=", "!=": "!=", r"\ne": "!=", "=": "="}


def read(text: str, depth: int = 0) -> Shape:  # noqa: C901, PLR0911, PLR0912 - one a kind
    """The shape of a cleaned text. Raises UnreadableError."""
    text = text.strip()
    if depth > MAX_DEPTH:
        raise UnreadableError("nested too deeply")
    if not text:
        raise UnreadableError("a value is missing")
    if _LITERAL.search(text):
        return Words(literal(text))
    if (wrapped := _WRAPPED.fullmatch(text)) and wrapped.group(1).strip():
        return _wrapped(wrapped.group(1).strip(), depth)
    if _REALS.fullmatch(text):
        infinity = Node("constant", name="infinity")
        return Bracketed("(", ")", (Scalar(Node("*", (number(-1), infinity))), Scalar(infinity)))
    if matrix := _MATRIX.fullmatch(text):
        return _matrix(matrix.group(2), depth)
    if _WORDS.fullmatch(text) and (spelt := number_in_words(_WRAPPED.sub(r" \1 ", text))) is not None:
        return Scalar(number(spelt))
    parts = split(text, _CONNECTIVE)
    if len(parts) > 1:
        return _several(text, parts, depth)
    if _WORDS.fullmatch(text) and _LONG_WORD.search(text):
        return Words(literal(text))
    if len(sides := split(text, _SIGN)) > 1:
        return _relation(sides, _signs(text), depth)
    if r"\pm" in text or r"\mp" in text:
        return _both_signs(text, depth)
    if (inner := inside(text)) is not None:
        return _bracketed(text, inner, depth)
    if based := _BASED.fullmatch(text):
        return _based(based)
    return _scalar(text)


def _wrapped(content: str, depth: int) -> Shape:
    try:
        return read(content, depth + 1)
    except UnreadableError:
        return Words(literal(content))


def _several(text: str, parts: list[str], depth: int) -> Shape:
    if len(parts) > MAX_VALUES:
        raise UnreadableError("too many values")
    if any(not part.strip() for part in parts):
        if not re.search("or|and|&", text):
            raise UnreadableError("a value is missing")
        parts = [part for part in parts if part.strip()]
    if _WORDS.fullmatch(text) and not re.search(r"(?<![a-zA-Z])(?:or|and)(?![a-zA-Z])", text) and "," not in text:
        return Words(literal(text))
    items: list[Shape] = []
    are_sets = r"\cup" in text
    for part in parts:
        item = read(part, depth + 1)
        items.extend(item.items if isinstance(item, Several) else [item])
        are_sets = are_sets and isinstance(item, Several) and item.is_set
    return Several(tuple(items), is_set=are_sets)


def _both_signs(text: str, depth: int) -> Shape:
    r"""``\pm`` stands for two values; ``\mp`` has the other sign at the same time."""
    places = re.split(r"(\\pm|\\mp)(?![a-zA-Z])", text)
    num_signs = len(places) // 2
    if num_signs > 3:  # noqa: PLR2004
        raise UnreadableError("too many signs")
    linked = r"\mp" in text
    choices = [(1,) * num_signs, (-1,) * num_signs] if linked else list(itertools.product((1, -1), repeat=num_signs))
    items = []
    for signs in choices:
        pieces = [places[0]]
        for sign, name, rest in zip(signs, places[1::2], places[2::2], strict=True):
            pieces += ["+" if (sign > 0) == (name == r"\pm") else "-", rest]
        items.append(read("".join(pieces).strip().removeprefix("+"), depth + 1))
    return Several(tuple(items))


def _bracketed(text: str, inner: str, depth: int) -> Shape:
    opening = r"\{" if text.startswith(r"\{") else text[0]
    parts = split(inner, re.compile(r"[,;]"))
    if opening == r"\{":
        if not inner.strip():
            return Several((), is_set=True)
        if re.search(r"\||:", inner):
            raise UnknownError("a set by its property")
        item = read(inner, depth + 1)
        return Several(item.items if isinstance(item, Several) else (item,), is_set=True)
    if len(parts) == 1:
        return read(inner, depth + 1) if opening in "({" else _bracket_of_one(text, depth)
    if opening == "{":
        return read(inner, depth + 1)
    if len(parts) > MAX_VALUES:
        raise UnreadableError("too many values")
    items = tuple(read(part, depth + 1) for part in parts)
    closing = ")" if text.endswith((")", r"\rangle")) else text[-1]
    return Bracketed("(" if opening == "\\" else opening, closing, items)


def _bracket_of_one(text: str, depth: int) -> Shape:
    return read(text[1:-1], depth + 1)


def _matrix(body: str, depth: int) -> Shape:
    rows = [row for row in re.split(r"\\\\", body) if row.strip()]
    if not 0 < len(rows) <= MAX_VALUES:
        raise UnreadableError("a matrix without rows")
    entries = tuple(tuple(read(entry, depth + 1) for entry in split(row, re.compile("&"))) for row in rows)
    if len({len(row) for row in entries}) != 1:
        raise UnreadableError("rows of different lengths")
    return Matrix(entries)


def _based(match: re.Match[str]) -> Shape:
    digits, braced, plain = match.groups()
    base = _BASES.get(braced or "") or int(plain or (braced if (braced or "").isdigit() else 0))
    try:
        if len(digits) <= MAX_VALUES:
            return Based(int(digits, base), base)
    except ValueError:
        pass
    raise UnreadableError(f"{digits} is no number in base {base}")


def _relation(sides: list[str], signs: list[str], depth: int) -> Shape:
    r"""Two sides, a chain of equations (its first and last side), or bounds on both sides of one symbol."""
    if any(not side.strip() for side in sides):
        raise UnreadableError("a side is missing")
    if set(signs) <= {"=", r"\in", r"\approx", r"\equiv"}:
        if not sides[0].strip().isascii():
            raise UnreadableError("an equation of words")
        name = _WRAPPED.sub(r"\1", sides[0])
        if re.fullmatch(r"\s*[a-zA-Z ]{3,}\s*", name):  # area = 5
            return Relation(Node("symbol", name=literal(name)), "=", read(sides[-1], depth + 1))
        if re.fullmatch(r"\s*\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])+\s*\)\s*", sides[0]):  # (x, y) = (1, 2)
            return Relation(Node("symbol", name=literal(sides[0])), "=", read(sides[-1], depth + 1))
        return Relation(parse(sides[0]), "=", read(sides[-1], depth + 1))
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
    infinity = Node("constant", name="infinity")
    if sign in ("<", "<="):
        if left.op == "symbol" and not _has_symbols(right):
            low = Scalar(Node("*", (number(-1), infinity)))
            return Bracketed("(", "]" if sign == "<=" else ")", (low, Scalar(right)))
        if right.op == "symbol" and not _has_symbols(left):
            return Bracketed("[" if sign == "<=" else "(", ")", (Scalar(left), Scalar(infinity)))
        return Relation(left, "<" if sign == "<" else "<=", Scalar(right))
    return Relation(left, "!=", Scalar(right))


def _has_symbols(node: Node) -> bool:
    return node.op == "symbol" or any(map(_has_symbols, node.args))


def _scalar(text: str) -> Shape:
    text, percent = split_percent(text)
    text, unit = split_unit(text)
    if re.search(r"(?<![\\a-zA-Z_{])[a-zA-Z]{4,}", text):
        raise UnreadableError("words stand in a formula")
    return Scalar(parse(text), unit, percent)


def _signs(text: str) -> list[str]:
    return [match.group() for match in outside(text, _SIGN)]
