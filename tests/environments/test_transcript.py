"""Conversations as they are written down."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from prl.environments.transcript import written


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": "hi", "name": "x"}, {"role": "user", "content": "hi"}),
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, "b"]}, "a\nb"),
        ({"role": "tool", "content": 1 << 70}, str(1 << 70)),
        ({"role": "tool", "content": {"a": {1}}}, "{'a': {1}}"),
        ({"role": "user", "content": "\ud800"}, "?"),
        (
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}, "odd"],
            },
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"name": "add", "arguments": "{}"}, {"name": "odd", "arguments": ""}],
            },
        ),
        ({"role": "assistant", "content": "x", "tool_calls": "none"}, {"role": "assistant", "content": "x"}),
    ],
)
def test_whatever_an_agent_gives_is_words(message: dict[str, Any], expected: Any) -> None:
    """Numbers, parts, objects and broken text become strings that the journal takes and gives back."""
    found = written(message)
    assert found == (expected if isinstance(expected, dict) else {"role": message["role"], "content": expected})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found)) == found
