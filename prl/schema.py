"""What is wrong with a tree of plain values that should become a ``Config``, found by walking the config's types.

- Every problem is found at once and carries the path of its key; a value is judged by msgspec against the field's own
  type, so a constraint is written once, in ``config.py``.
- An unknown key is a problem at every depth, tables in lists included, and names the nearest known one.
- A number that is not finite is a problem anywhere, also inside ``options``, which no type describes.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin

import msgspec
from msgspec import inspect

from prl.config import Config

Path = tuple[str | int, ...]

_MAX_SHOWN = 60
_INT64 = range(-(1 << 63), 1 << 63)


class Problem(NamedTuple):
    """One thing that is wrong, and where."""

    path: Path
    message: str


def dotted(path: Path) -> str:
    """A path as it is written for ``--set``: ``rewards.0.weight``."""
    return ".".join(map(str, path))


def problems(tree: Any, kind: Any = Config, path: Path = ()) -> Iterator[Problem]:
    """Everything about ``tree`` that keeps it from being a ``kind``; nothing if it can be converted."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if isinstance(tree, Mapping):
            yield from _table_problems(tree, kind, path)
        else:
            yield Problem(path, f"{shown(tree)} must be a table")
    elif get_origin(kind) is list:
        if isinstance(tree, list):
            for index, item in enumerate(tree):
                yield from problems(item, get_args(kind)[0], (*path, index))
        else:
            yield Problem(path, f"{shown(tree)} must be a list of tables: write [[{dotted(path)}]]")
    else:
        yield from _value_problems(tree, kind, path)


def _table_problems(table: Mapping[str, Any], kind: type[msgspec.Struct], path: Path) -> Iterator[Problem]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    meant = set()
    for key, value in table.items():
        if key in fields:
            yield from problems(value, fields[key].type, (*path, key))
        else:
            meant.add(nearest_of(key, fields))
            yield Problem((*path, key), f"unknown key, {_advice(key, fields, path)}")
    for name, field in fields.items():
        if field.required and name not in table and name not in meant:
            yield Problem((*path, name), f"missing, it must be {allowed(field.type)}")


def _value_problems(value: Any, kind: Any, path: Path) -> Iterator[Problem]:
    odd = list(_odd_numbers(value, path))
    if odd:
        yield from odd
        return
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        hint = nearest_of(value, get_args(kind)) if isinstance(value, str) else None
        yield Problem(path, f"{shown(value)} must be {allowed(kind)}" + (f", did you mean {hint!r}?" if hint else ""))


def _odd_numbers(value: Any, path: Path) -> Iterator[Problem]:
    """Numbers that TOML can say and nothing can compute with."""
    if isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, f"{value} must be a finite number")
    elif isinstance(value, int) and value not in _INT64:
        yield Problem(path, f"{shown(value)} must fit into 64 bits")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _odd_numbers(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _odd_numbers(item, (*path, index))


def _advice(key: str, known: Iterable[str], path: Path) -> str:
    """What an unknown key may have meant: a similar one here, the same one elsewhere, or any that there is."""
    if close := nearest_of(key, known):
        return f"did you mean {dotted((*path, close))}?"
    elsewhere = [name for name in known_keys() if name.rpartition(".")[2] == key]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    return f"known here: {', '.join(known)}"


def nearest_of(value: str, choices: Iterable[Any]) -> str | None:
    """The choice that ``value`` probably means, if one is close."""
    close = difflib.get_close_matches(value, [choice for choice in choices if isinstance(choice, str)], n=1)
    return close[0] if close else None


def known_keys(kind: Any = Config, path: Path = ()) -> Iterator[str]:
    """Every key of the configuration, dotted; a list of tables is entered at index 0."""
    for field in msgspec.structs.fields(kind):
        here = (*path, field.encode_name)
        inner = field.type
        if get_origin(inner) is list:
            inner, inside = get_args(inner)[0], (*here, 0)
        else:
            inside = here
        yield dotted(here)
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from known_keys(inner, inside)


def allowed(kind: Any) -> str:
    """What a field takes, in words: ``an integer >= 1``."""
    return _words(inspect.type_info(kind))


def _words(info: inspect.Type) -> str:
    words = "another type"
    match info:
        case inspect.BoolType():
            words = "true or false"
        case inspect.StrType():
            words = "a string (in quotes)"
        case inspect.IntType() | inspect.FloatType():
            words = ("an integer" if isinstance(info, inspect.IntType) else "a number") + _bounds(info)
        case inspect.LiteralType(values):
            words = ("one of " if len(values) > 1 else "") + ", ".join(map(repr, values))
        case inspect.UnionType(types):
            words = " or ".join(_words(each) for each in types if not isinstance(each, inspect.NoneType))
        case inspect.TupleType(items):
            words = f"a list of {len(items)}: " + ", ".join(map(_words, items))
        case inspect.ListType(inspect.StrType(), least):
            words = f"a list of {least} or more strings" if least else "a list of strings"
        case inspect.VarTupleType(item):
            words = f"a list, each {_words(item)}"
        case inspect.DictType():
            words = "a table"
    return words


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    limits = ((">=", info.ge), (">", info.gt), ("<=", info.le), ("<", info.lt))
    stated = [f"{sign} {limit:g}" for sign, limit in limits if limit is not None]
    return " " + " and ".join(stated) if stated else ""


def shown(value: Any) -> str:
    """A value on one line, as TOML writes it, cut where it is long."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, bool | str):
        text = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(map(shown, value)) + "]"
    else:
        text = str(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
