"""A conversation as it is written down for people.

Invariants:

- Whatever an agent gave as a message becomes strings that JSON and msgpack have, so that the journal takes them and a
  resumed run reads back what was written.
- Nothing here is trained or judged: that is what the token ids are for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prl.environments.calls import Message


def written(message: Message) -> dict[str, Any]:
    """A message: ``role``, ``content``, and ``tool_calls`` (each with ``name`` and ``arguments``) if there are any."""
    told: dict[str, Any] = {"role": _text(message.get("role", "")), "content": _text(message.get("content"))}
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        functions = [call.get("function", call) if isinstance(call, Mapping) else {"name": call} for call in calls]
        told["tool_calls"] = [
            {"name": _text(function.get("name", "")), "arguments": _text(function.get("arguments", ""))}
            if isinstance(function, Mapping)
            else {"name": _text(function), "arguments": ""}
            for function in functions
        ]
    return told


def _text(content: Any) -> str:
    """The words of a content: a text, or the texts of its parts."""
    if isinstance(content, list):
        parts = [part.get("text", "") if isinstance(part, Mapping) else part for part in content]
        return "\n".join(text for text in map(_text, parts) if text)
    text = "" if content is None else str(content)
    return text.encode(errors="replace").decode()
