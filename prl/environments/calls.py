"""Tool calls in what a model says, and tools in what it is told.

The form is that of Hermes and Qwen, ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``; a model whose
template knows another one is asked without ``tools``, and its environment reads the text itself.

Invariants:

- Reading is linear in the text, whatever the text is.
- Only a call that is whole and well-formed is one; anything else stays text, for the environment to answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from prl.tokenizer import Tokenizer

OPEN, CLOSE = "<tool_call>", "</tool_call>"
Message = Mapping[str, Any]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model asks for."""

    id: str
    """Unique in its episode."""
    name: str
    arguments: dict[str, Any]


class _Written(msgspec.Struct):
    """A call as the model writes it."""

    name: str
    arguments: dict[str, Any] = {}


def find_calls(text: str, id_prefix: str) -> tuple[str, list[ToolCall]]:
    """The text without its calls, and the calls in their order, named ``id_prefix`` and a number."""
    said: list[str] = []
    calls: list[ToolCall] = []
    at = 0
    while (start := text.find(OPEN, at)) >= 0 and (end := text.find(CLOSE, start)) >= 0:
        try:
            written = msgspec.json.decode(text[start + len(OPEN) : end].strip(), type=_Written)
        except msgspec.DecodeError:
            said.append(text[at : end + len(CLOSE)])
        else:
            said.append(text[at:start])
            call_id = f"{id_prefix}{len(calls)}"
            calls.append(ToolCall(id=call_id, name=written.name, arguments=written.arguments))
        at = end + len(CLOSE)
    return "".join([*said, text[at:]]), calls


def as_message(content: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """What the model said, as a message of a conversation in OpenAI's form."""
    if not calls:
        return {"role": "assistant", "content": content}
    asked = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": msgspec.json.encode(call.arguments).decode()},
        }
        for call in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": asked}


def shown(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> str:
    """The conversation as text, the tools shown to the model by its template or, where that knows none, by us."""
    if not tools or tokenizer.knows_tools:
        return tokenizer.render_text(messages, tools)
    told = "\n".join(
        [
            "You may call these functions:",
            *(msgspec.json.encode(tool.get("function", tool)).decode() for tool in tools),
            f'To call one, write {OPEN}{{"name": its name, "arguments": an object}}{CLOSE}',
        ]
    )
    if messages and messages[0].get("role") == "system":
        system = {**messages[0], "content": f"{messages[0]['content']}\n\n{told}"}
        return tokenizer.render_text([system, *messages[1:]])
    return tokenizer.render_text([{"role": "system", "content": told}, *messages])
