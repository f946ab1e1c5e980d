"""The tool loop: the model calls, the tool answers, until the model says something without a call.

Invariants:

- A call that cannot be done is answered by what is wrong with it, for the model to read; it ends nothing.
- A tool's answer has a largest length, and a deadline of its own: one that is late is answered so, and the wait for its
  turn is not its lateness. A bug in a tool ends the run as it is.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from prl.deadlines import awake_timeout
from prl.environments.calls import Message, ToolCall
from prl.environments.session import Reply, Session

MAX_ANSWER = 4_000
"""Characters of a tool's answer that the model sees."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of its arguments."""
    call: Callable[..., Awaitable[str]]
    """Called with the arguments as keywords. Raises ValueError where they cannot be used: the model is told."""
    timeout_s: float = 10.0
    places: asyncio.Semaphore | None = None
    """As many calls as it has are under way at once; waiting for a place is not counted against ``timeout_s``."""

    def described(self) -> dict[str, Any]:
        """As OpenAI describes functions."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


async def run_tools(session: Session, messages: Sequence[Message], tools: Sequence[Tool]) -> Reply:
    """Ask until the model calls nothing more, and return what it said last. Raises what ``Session.generate`` does."""
    so_far = list(messages)
    described = [tool.described() for tool in tools]
    by_name = {tool.name: tool for tool in tools}
    while True:
        reply = await session.generate(so_far, tools=described)
        if not reply.tool_calls:
            return reply
        so_far.append(reply.message)
        for call in reply.tool_calls:
            answer = await answered(call, by_name.get(call.name))
            so_far.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": answer})


async def answered(call: ToolCall, tool: Tool | None) -> str:
    """What the model reads of one call; ``tool`` None: there is none of that name."""
    if tool is None:
        return f"error: there is no tool {call.name!r}"
    try:
        inspect.signature(tool.call).bind(**call.arguments)
    except TypeError as error:
        return f"error: {call.name}: {error}"
    try:
        async with tool.places or nullcontext(), awake_timeout(tool.timeout_s) as deadline:
            answer = await tool.call(**call.arguments)
    except ValueError as error:
        answer = f"error: {error}"
    except TimeoutError:
        if not deadline.expired():
            raise
        answer = f"error: {call.name} took longer than {tool.timeout_s:g} s"
    return answer if len(answer) <= MAX_ANSWER else f"{answer[:MAX_ANSWER]} ... ({len(answer)} characters)"
