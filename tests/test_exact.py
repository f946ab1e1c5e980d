"""Which fields of a prompt are let through."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from enum import IntEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.errors import DataError
from prl.exact import check_fields
from prl.types import Prompt
from tests.factories import make_prompt

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


class Level(IntEnum):
    """A number with a name."""

    EASY = 1


def prompt_of(fields: dict[str, Any]) -> Prompt:
    """Prompt 7 with these fields."""
    return msgspec.structs.replace(make_prompt(7), fields=fields)


def typed(value: Any) -> Any:
    """A value with the types of its parts, which ``==`` overlooks."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return type(value), value


@settings(deadline=None)
@given(st.dictionaries(st.text(), values))
def test_what_is_let_through_comes_back(fields: dict[str, Any]) -> None:
    """Everything that JSON has is let through, and msgpack gives it back in type and value."""
    prompt = prompt_of(fields)
    check_fields(prompt)
    assert typed(msgspec.msgpack.decode(msgspec.msgpack.encode(prompt), type=Prompt).fields) == typed(fields)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (date(2026, 1, 1), "the field 'it' is a date;"),
        (Decimal("0.1"), "the field 'it' is a Decimal;"),
        ((1, 2), "the field 'it' is a tuple;"),
        ({1}, "the field 'it' is a set;"),
        (b"raw", "the field 'it' is a bytes;"),
        (Level.EASY, "the field 'it' is a Level;"),
        (1 << 63, "the field 'it' is an integer beyond 64 bits;"),
        (chr(0xD800), "the field 'it' holds half a surrogate pair"),
        ({1: "a"}, "the field 'it' has keys that are no strings;"),
        ([0, {"deep": [{1}]}], "the field 'it[1].deep[0]' is a set;"),
    ],
)
def test_what_would_change_is_refused(value: Any, problem: str) -> None:
    """The error names prompt id and place, and says what to do."""
    with pytest.raises(DataError) as caught:
        check_fields(prompt_of({"answer": "4", "it": value}))
    assert f"prompt 7: {problem}" in str(caught.value)
    assert "let the source give what JSON has" in str(caught.value)


def test_names_of_fields_are_strings() -> None:
    """A number as a name would come back, and a reward that asks for the string would not find it before or after."""
    with pytest.raises(DataError, match="prompt 7: a field has the name 5, no string"):
        check_fields(prompt_of({5: "x"}))  # type: ignore[dict-item]
