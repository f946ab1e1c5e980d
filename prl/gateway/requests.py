"""What a client of OpenAI's may ask, and what its words mean to a session.

Invariants:

- The distribution that is sampled is the run's: parameters that would change it are overridden where agents set them by
  habit (``OVERRIDDEN``), and refused where an agent relies on what they do (``REFUSED`` says why of each).
- Whatever else is not understood is refused by name, never passed over. A value that asks for nothing (``n = 1``) is as
  good as none.
- A stop sequence changes no distribution: it only says where a turn ends (``environments/stops.py``). So does
  ``parallel_tool_calls = false``: with the first call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

MODEL = "policy"
"""The only model there is; clients may call it anything."""
OVERRIDDEN = frozenset({"temperature", "top_p", "seed", "presence_penalty", "frequency_penalty"})
"""The run's own settings hold in their place."""
HARMLESS = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
"""They change nothing of what is sampled."""
_ONE = "a request has one answer: ask again for another"
_CHANGES = "it would change the distribution that is sampled, and so what is trained: leave it out"
REFUSED = {
    "n": _ONE,
    "best_of": _ONE,
    "response_format": "the form cannot be forced on what is sampled and trained: say in the prompt which is wanted",
    "logit_bias": _CHANGES,
    "top_k": _CHANGES,
    "min_p": _CHANGES,
    "repetition_penalty": _CHANGES,
    "top_logprobs": "the engines give the log-probability of what was sampled alone: leave it out, or take 0",
    "functions": "it is the old form: take tools",
    "function_call": "it is the old form: take tools",
    "echo": "the prompt is known to whoever sends it",
    "suffix": "the model continues a text, and fills none in",
}
"""Parameters that an agent may rely on and cannot have, with the reason."""
_NOTHING: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
}
"""Values of them that ask for nothing."""
MAX_STOPS, MAX_SHOWN = 16, 60
_READ = frozenset(
    {"model", "max_tokens", "max_completion_tokens", "stream", "stream_options", "stop", "logprobs", *REFUSED}
)
_CHAT = frozenset({"messages", "tools", "tool_choice", "parallel_tool_calls"})


class RequestError(Exception):
    """A request that cannot be understood; the message says why, ``param`` which parameter it is."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One turn as a client asks for it."""

    given: list[dict[str, Any]] | list[int] | str
    tools: list[dict[str, Any]]
    parallel_tool_calls: bool
    max_tokens: int | None
    stop: list[str]
    with_logprobs: bool
    streams: bool
    with_usage: bool
    overridden: list[str]
    """Parameters that do not hold."""


class _Common(msgspec.Struct, kw_only=True):
    """What both kinds of requests have."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    stop: str | list[str] | None = None


class _Chat(_Common):
    messages: list[dict[str, Any]]
    logprobs: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None


class _Text(_Common):
    prompt: str | list[int | str | list[int]]
    logprobs: int | None = None


def read_chat(body: bytes) -> Asked:
    """A body of ``/v1/chat/completions``. Raises RequestError."""
    fields = _fields(body, _READ | _CHAT)
    chat = _convert(fields, _Chat)
    if not chat.messages:
        raise RequestError("messages must not be empty", "messages")
    if chat.tool_choice not in (None, "auto", "none"):
        raise RequestError(f"tool_choice = {chat.tool_choice!r} is not supported: 'auto' or 'none'", "tool_choice")
    tools = [] if chat.tool_choice == "none" else chat.tools or []
    messages = [message_of(message) for message in chat.messages]
    asked = _asked(chat, messages, tools, fields, with_logprobs=bool(chat.logprobs))
    return msgspec.structs.replace(asked, parallel_tool_calls=chat.parallel_tool_calls is not False)


def read_text(body: bytes) -> Asked:
    """A body of ``/v1/completions``. Raises RequestError."""
    fields = _fields(body, _READ | {"prompt"})
    text = _convert(fields, _Text)
    given: Any = text.prompt
    if isinstance(given, list) and given and not isinstance(given[0], int):
        if len(given) > 1:
            message = f"{len(given)} prompts in one request are not supported: ask for each by itself"
            raise RequestError(message, "prompt")
        given = given[0]
    if not given or (isinstance(given, list) and not all(isinstance(token, int) for token in given)):
        raise RequestError("prompt must be a text or token ids, and not empty", "prompt")
    if text.logprobs:
        raise RequestError(f"logprobs = {text.logprobs} is not supported: {REFUSED['top_logprobs']}", "logprobs")
    return _asked(text, given, [], fields, with_logprobs=text.logprobs is not None)


def message_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as chat templates know it: content a text, arguments of calls objects. Raises RequestError."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise RequestError(f"a message has the role {role!r}")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise RequestError(f"a message of {role!r} has a part that is no text")
        content = "".join(part["text"] for part in content)
    if content is not None and not isinstance(content, str):
        raise RequestError(f"a message of {role!r} has a content that is no text")
    known: dict[str, Any] = {**message, "role": "system" if role == "developer" else role, "content": content or ""}
    if message.get("tool_calls"):
        known["tool_calls"] = [_call_of(call) for call in message["tool_calls"]]
    return known


def _call_of(call: Any) -> dict[str, Any]:
    """Arguments come as a text of JSON; templates write objects."""
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        raise RequestError("a tool call is no object with a function")
    arguments = call["function"].get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except msgspec.DecodeError:
            return dict(call)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _fields(body: bytes, known: frozenset[str]) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is no JSON object: {error}") from None
    for name, value in fields.items():
        if value is None or name in OVERRIDDEN | HARMLESS or value in _NOTHING.get(name, ()):
            continue
        if name in REFUSED:
            raise RequestError(f"{name} = {_shown(value)} is not supported: {REFUSED[name]}", name)
        if name not in known:
            raise RequestError(f"{name!r} is not supported here; leave it out", name)
    return fields


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _convert(fields: dict[str, Any], kind: type[msgspec.Struct]) -> Any:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise RequestError(str(error)) from None


def _asked(
    common: _Common, given: Any, tools: list[dict[str, Any]], fields: Mapping[str, Any], *, with_logprobs: bool
) -> Asked:
    limits = [limit for limit in (common.max_tokens, common.max_completion_tokens) if limit is not None]
    if any(limit < 1 for limit in limits):
        raise RequestError(f"max_tokens = {min(limits)} must be at least 1", "max_tokens")
    stop = [common.stop] if isinstance(common.stop, str) else common.stop or []
    if len(stop) > MAX_STOPS or not all(stop):
        raise RequestError(f"stop must be at most {MAX_STOPS} texts, none empty, got {_shown(common.stop)}", "stop")
    return Asked(
        given=given,
        tools=tools,
        parallel_tool_calls=True,
        max_tokens=min(limits, default=None),
        stop=stop,
        with_logprobs=with_logprobs,
        streams=bool(common.stream),
        with_usage=bool((common.stream_options or {}).get("include_usage")),
        overridden=sorted(name for name in fields if name in OVERRIDDEN and fields[name] is not None),
    )
