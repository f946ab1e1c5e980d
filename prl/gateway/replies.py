"""What a session says, in OpenAI's words: whole answers, the events of a stream, errors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal

import msgspec

from prl.environments.calls import OPEN
from prl.environments.session import Reply
from prl.gateway.requests import MODEL

Kind = Literal["chat", "text"]


def whole(reply: Reply, kind: Kind, answer_id: str, said: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer to a request that does not stream; ``said`` are its ``logprobs``."""
    if kind == "text":
        choice: dict[str, Any] = {"index": 0, "text": reply.text, "logprobs": said, "finish_reason": reply.finish}
        return {**_head("text_completion", answer_id), "choices": [choice], "usage": usage(reply)}
    message = {**reply.message, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": said, "finish_reason": _finish(reply)}
    return {**_head("chat.completion", answer_id), "choices": [choice], "usage": usage(reply)}


def logprobs(pieces: list[str], values: list[float], kind: Kind) -> dict[str, Any]:
    """The log-probability of every token that was sampled, those that ended the turn included, after temperature."""
    if kind == "text":
        offsets = [0, *accumulate(map(len, pieces))][: len(pieces)]
        return {"tokens": pieces, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}
    content = [
        {"token": piece, "logprob": value, "bytes": _bytes_of(piece), "top_logprobs": []}
        for piece, value in zip(pieces, values, strict=True)
    ]
    return {"content": content, "refusal": None}


def _bytes_of(piece: str) -> list[int] | None:
    """None for a part of a character, whose bytes its text does not have."""
    return None if "\ufffd" in piece else list(piece.encode())


def usage(reply: Reply) -> dict[str, int]:
    """Tokens of the turn."""
    num_sampled = len(reply.token_ids)
    return {
        "prompt_tokens": reply.num_prompt_tokens,
        "completion_tokens": num_sampled,
        "total_tokens": reply.num_prompt_tokens + num_sampled,
    }


def error(message: str, code: str, kind: str = "invalid_request_error", *, param: str | None = None) -> dict[str, Any]:
    """The body of an error; ``param`` is the parameter that it speaks of."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class Events:
    """The events of one streamed answer.

    Text is sent once it is certain: not half a character, nor what may be the beginning of a tool call or of a stop
    sequence. Log-probabilities come with the last of it.
    """

    def __init__(
        self, kind: Kind, answer_id: str, *, has_tools: bool, with_usage: bool, stops: Sequence[str] = ()
    ) -> None:
        self._kind, self._id, self._with_usage = kind, answer_id, with_usage
        self._marks = [*([OPEN] if has_tools else []), *stops]
        self._sent = 0

    def begin(self) -> bytes:
        """What comes first."""
        return self._delta({"role": "assistant", "content": ""}, None) if self._kind == "chat" else b""

    def text(self, so_far: str) -> bytes:
        """What is new in the text so far."""
        certain = so_far.rstrip("\ufffd")
        certain = certain[: min((_before(mark, certain) for mark in self._marks), default=None)]
        new = certain[self._sent :]
        self._sent += len(new)
        return self._text(new, None) if new else b""

    def end(self, reply: Reply, said: dict[str, Any] | None = None) -> bytes:
        """The rest, and how it ended; ``said`` are its ``logprobs``."""
        content = str(reply.message["content"]) if self._kind == "chat" else reply.text
        rest, out = content[self._sent :], b""
        if rest or said is not None:
            out += self._text(rest, None, said)
        if self._kind == "chat" and reply.tool_calls:
            calls = [{"index": index, **call} for index, call in enumerate(reply.message["tool_calls"])]
            out += self._delta({"tool_calls": calls}, None)
        out += self._delta({}, _finish(reply)) if self._kind == "chat" else self._text("", reply.finish)
        if self._with_usage:
            out += _event({**self._head(), "choices": [], "usage": usage(reply)})
        return out + b"data: [DONE]\n\n"

    def failed(self, body: dict[str, Any]) -> bytes:
        """An error after the stream has begun."""
        return _event(body)

    def _head(self) -> dict[str, Any]:
        return _head("chat.completion.chunk" if self._kind == "chat" else "text_completion", self._id)

    def _text(self, new: str, finish: str | None, said: dict[str, Any] | None = None) -> bytes:
        if self._kind == "chat":
            return self._delta({"content": new}, finish, said)
        choice = {"index": 0, "text": new, "logprobs": said, "finish_reason": finish}
        return _event({**self._head(), "choices": [choice]})

    def _delta(self, delta: dict[str, Any], finish: str | None, said: dict[str, Any] | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": said, "finish_reason": finish}
        return _event({**self._head(), "choices": [choice]})


def _before(mark: str, text: str) -> int:
    """How much of ``text`` is surely before ``mark``."""
    if (start := text.find(mark)) >= 0:
        return start
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return len(text) - length
    return len(text)


def _finish(reply: Reply) -> str | None:
    return "tool_calls" if reply.tool_calls and reply.finish == "stop" else reply.finish


def _head(what: str, answer_id: str) -> dict[str, Any]:
    return {"id": answer_id, "object": what, "created": int(time.time()), "model": MODEL}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
