r"""What kind of thing an answer is: one value, several, an interval or tuple, a matrix, an equation, words.

- Several values (``1, 2``, ``1 \text{ or } 2``, ``\{1, 2\}``, ``\pm 2``, a union) have no order and no repetition.
- ``(a, b)`` and ``[a, b)`` keep their order and their brackets: a tuple and an open interval are written alike. An
  inequality about one symbol is the interval that it describes.
- What holds an ellipsis or a quantifier, and what is words, is its letters and nothing else.
"""

from __future__ import annotations

import itertools
import re

from prl.rewards.verdict.bases import based
from prl.rewards.verdict.brackets import inside, outside, split
from prl.rewards.verdict.kinds import Bracketed, Matrix, Scalar, Several, Shape, Words
from prl.rewards.verdict.node import UnknownError, UnreadableError, number
from prl.rewards.verdict.relations import INFINITY, MINUS_INFINITY, all_but, both, relation
from prl.rewards.verdict.syntax import MAX_DEPTH, parse
from prl.rewards.verdict.text import literal
from prl.rewards.verdict.units import is_known, split_percent, split_unit
from prl.rewards.verdict.value import symbols
from prl.rewards.verdict.words import number_in_words

MAX_VALUES = 200
"""A list of more values than that is not read."""
_LITERAL = re.compile(r"\\ldots|\.\.\.|\\forall|\\exists")
_WORDS = re.compile(r"(?:\\text\s*\{[^{}0-9]*\}|[^\W\d_]|[\s'\-.,!?\"()])+")
_LONG_WORD = re.compile(r"(?<![\\a-zA-Z])[^\W\d_]{3,}|\\text")
_WRAPPED = re.compile(r"\\text\s*\{([^{}]*)\}")
_MATRIX = re.compile(
    r"[(\[{]?\s*\\begin\s*\{([pbB]?matrix|array)\}(?:\s*\{[lcr| ]*\})?(.*)\\end\s*\{\1\}\s*[)\]}]?", re.DOTALL
)
_NOTHING = re.compile(
    r"\\emptyset|(?:\\text\s*\{)?\s*(?:no (?:real )?solutions?|(?:the )?empty set)[.!]?\s*\}?", re.IGNORECASE
)
_REALS_BUT = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?\s*(?:\\setminus|\\backslash|-)\s*(\\\{.*\\\})")
_BY_PROPERTY = re.compile(r"\s*[a-zA-Z](?:\s*\\in\s*\\mathbb\s*\{?\s*R\s*\}?)?\s*[|:](.*)")
_AND = re.compile(r"(?<![\\a-zA-Z])and(?![a-zA-Z])")
_SYMBOL = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])")
_CONNECTIVE = re.compile(
    r"\\text\s*\{\s*,?\s*(?:or|and)\s*,?\s*\}|(?<![\\a-zA-Z])(?:or|and)(?![a-zA-Z])|[,;]|\\cup(?![a-zA-Z])|&"
)
_SIGN = re.compile(r"\\(?:le|ge|ne|in|approx|equiv|to|rightarrow|implies|Rightarrow)(?![a-zA-Z])|[<>]=?|!=|=")
_MAY_BE_SYMBOLS = re.compile(r"(?:\s*(?<![a-zA-Z])[a-zA-Z]{1,2}(?![a-zA-Z])(?:\s*\^\s*\{?-?\d\}?)?|\s*/|\s*\\cdot)+\s*")
_REALS = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?|\\text\s*\{\s*all real numbers\s*\}|all real numbers")


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
    if _NOTHING.fullmatch(text):
        return Several((), is_set=True)
    if _REALS.fullmatch(text):
        return Bracketed("(", ")", (MINUS_INFINITY, INFINITY))
    if match := _REALS_BUT.fullmatch(text):
        item = read(match.group(1), depth + 1)
        return all_but(item.items if isinstance(item, Several) else [item])
    if (in_base := based(text)) is not None:
        return in_base
    if matrix := _MATRIX.fullmatch(text):
        return _matrix(matrix.group(2), depth)
    if _WORDS.fullmatch(text) and (counted := _counted(_WRAPPED.sub(r" \1 ", text))) is not None:
        return counted
    parts = split(text, _CONNECTIVE)
    if len(parts) > 1:
        return _several(text, parts, depth)
    if _WORDS.fullmatch(text) and _LONG_WORD.search(text):
        return Words(literal(text))
    if len(sides := split(text, _SIGN)) > 1:
        return relation(sides, _signs(text), lambda side: read(side, depth + 1))
    if r"\pm" in text or r"\mp" in text:
        return _both_signs(text, depth)
    if (inner := inside(text)) is not None:
        return _bracketed(text, inner, depth)
    return _scalar(text)


def _counted(text: str) -> Shape | None:
    """A number in words, or several words that begin with one and go on with what is counted."""
    if (spelt := number_in_words(text)) is not None:
        return Scalar(number(spelt))
    words = text.split()
    if words[0].lower() in ("a", "an"):
        return _one_of(" ".join(words[1:]))
    if words[0].lower() == "half" and words[1:2] in (["a"], ["an"]):
        del words[1]
    for end in range(min(len(words) - 1, 8), 0, -1):
        if (spelt := number_in_words(" ".join(words[:end]))) is None:
            continue
        try:
            _, unit = split_unit(f"1 {' '.join(words[end:])}")
        except UnreadableError:
            return None
        return None if unit is None else Scalar(number(spelt), unit)
    return None


def _one_of(counted: str) -> Shape | None:
    """``a meter`` is 1 m where its unit is one that is known: ``a lot`` is no number."""
    try:
        _, unit = split_unit(f"1 {counted}")
    except UnreadableError:
        return None
    known = unit is not None and is_known(unit) and len(counted) > 1
    return Scalar(number(1), unit) if known else None


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
    if _AND.search(text) and len(set(_SYMBOL.findall(_WRAPPED.sub("", text)))) == 1:
        bounds = both([read(part, depth + 1) for part in parts])
        if bounds is not None:
            return bounds
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
        if (match := _BY_PROPERTY.fullmatch(inner)) and _SIGN.search(match.group(1)):
            return read(match.group(1), depth + 1)
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
    opening = "(" if opening == "\\" else opening
    if len(items) == 2:  # noqa: PLR2004 - at infinity an interval is open, however it is written
        opening = "(" if items[0] == MINUS_INFINITY else opening
        closing = ")" if items[1] == INFINITY else closing
    return Bracketed(opening, closing, items)


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


def _scalar(text: str) -> Shape:
    whole, percent = split_percent(text)
    text, unit = split_unit(whole)
    if re.search(r"(?<![\\a-zA-Z_{])[a-zA-Z]{4,}", text):
        raise UnreadableError("words stand in a formula")
    formula = parse(text)
    letters = _letters_of_unit(whole, text)
    if unit is None or not letters:
        return Scalar(formula, unit, percent)
    try:
        as_symbols = parse(whole)
    except UnreadableError:
        return Scalar(formula, unit, percent)
    if symbols(formula) & letters:  # V^2 V
        return Scalar(as_symbols, None, percent)
    return Scalar(formula, unit, percent, as_symbols)


def _letters_of_unit(whole: str, formula: str) -> set[str]:
    """The letters behind a formula, where they are one or two side by side that may be symbols as well as a unit."""
    if not whole.startswith(formula) or not _MAY_BE_SYMBOLS.fullmatch(behind := whole[len(formula) :]):
        return set()
    return set(re.findall("[a-zA-Z]", behind))


def _signs(text: str) -> list[str]:
    return [match.group() for match in outside(text, _SIGN)]
