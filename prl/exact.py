"""Which fields of a prompt a resumed run reads back as the rewards of the run before saw them.

The journal and the checkpoints hold msgpack. It knows null, booleans, integers of 64 bits, floats, strings, lists, and
objects with strings for keys: all that JSON has, and no more is let through. The rest (a date, a decimal, a tuple, a
set, an array) would be changed silently or not be written at all, and then a reward would see one thing before an
interruption and another after it.
"""

from __future__ import annotations

from typing import Any

from prl.errors import DataError
from prl.types import Prompt

_INT64 = range(-(1 << 63), 1 << 63)


def check_fields(prompt: Prompt) -> None:
    """Raise DataError, with prompt id and field, where a field's value would not come back as it is."""
    for name, value in prompt.fields.items():
        problem = _problem(value, str(name)) if type(name) is str else f"a field has the name {name!r}, no string"
        if problem:
            raise DataError(
                f"prompt {prompt.id}: {problem}; a resumed run could not restore it: let the source give what JSON "
                "has (null, true, numbers of 64 bits, strings, lists, objects), such as a string made of it"
            )


def _problem(value: Any, where: str) -> str | None:
    """What is wrong with a value, and where; None: nothing."""
    kind = type(value)
    if kind is list:
        return next(filter(None, (_problem(item, f"{where}[{index}]") for index, item in enumerate(value))), None)
    if kind is dict:
        if any(type(key) is not str for key in value):
            return f"the field {where!r} has keys that are no strings"
        return next(filter(None, (_problem(item, f"{where}.{key}") for key, item in value.items())), None)
    if kind is int and value not in _INT64:
        return f"the field {where!r} is an integer beyond 64 bits"
    if kind is str and not value.isascii() and value != value.encode(errors="ignore").decode():
        return f"the field {where!r} holds half a surrogate pair, which is no text"
    return None if kind in {type(None), bool, int, float, str} else f"the field {where!r} is a {kind.__qualname__}"
