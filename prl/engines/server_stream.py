"""One stream of a ``vllm serve`` process: server-sent events in, chunks of one version each out.

Invariants:

- A token's version is the one that the server names for the step that sampled it (``weight_versions``: spans over the
  tokens of the whole stream). Servers that have prl's plug-in name it in every event.
- A server without the plug-in names it in the last event only. Tokens of a stream that has seen no update since it was
  submitted are of the version served then, for nothing else sampled since; all others are kept until the last event
  says whose they are, and a chunk without tokens says meanwhile that the stream moves.
- A stream that has sampled nothing can be superseded: whatever it still gives is dropped, and it ends ``Superseded``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, NoReturn

import aiohttp
import msgspec

from prl.engines.base import Decoding
from prl.engines.server_link import GENERATE, ServerAwayError, ServerLink
from prl.errors import EngineError
from prl.types import Finish, TokenChunk

_DATA, _END = b"data: ", b"\n\n"
_FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length", "abort": "abort"}
_NO_LOGPROB = -9999.0
"""What vLLM writes for a log-probability that it does not have, or that is none."""


class Superseded(Exception):  # noqa: N818 -- no error: the request is submitted again
    """The request is to be submitted again, under other weights."""


class _Logprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Logprob]


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _Choice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    weight_versions: list[_Span] | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


def body_of(token_ids: list[int], decoding: Decoding, *, salt: str, stream_interval: int) -> bytes:
    """A request for a stream: ids in, ids and the sampled token's log-probability out."""
    sampling: dict[str, Any] = {
        "temperature": decoding.temperature,
        "max_tokens": decoding.max_tokens,
        "stop_token_ids": decoding.stop_token_ids,
        "ignore_eos": True,  # the end tokens are all in stop_token_ids; what is not there shall not stop
        "seed": decoding.request_seed(),
        "logprobs": 0,
        "detokenize": False,
        "stream_interval": stream_interval,
    }
    return msgspec.json.encode(
        {"token_ids": token_ids, "sampling_params": sampling, "stream": True, "cache_salt": salt}
    )


class ServerStream:
    """One request.

    Args:
        link: to the server.
        body: see ``body_of``.
        version: what is served when it is submitted.
        version_of: the version that a label of the server's stands for; raises where it is none of this run's.
    """

    def __init__(self, link: ServerLink, body: bytes, *, version: int, version_of: Callable[[str], int]) -> None:
        self._link, self._body, self._version_of = link, body, version_of
        self._version: int | None = version
        """Of all that was sampled so far, where no update came in between; else None."""
        self._response: aiohttp.ClientResponse | None = None
        self._kept: list[tuple[int, float]] = []
        """Tokens whose version is not known yet, with their log-probabilities."""
        self._num_given = 0
        self._last_version = version
        self._is_superseded = self._is_dropped = False
        self.has_sampled = False

    def updated(self) -> bool:
        """Other weights are served from now on. Where nothing was sampled: to be submitted again."""
        self._version = None
        if not self.has_sampled:
            self._is_superseded = True
            self.drop()
        return self._is_superseded

    def drop(self) -> None:
        """End the connection, which frees the request; a read that waits fails."""
        self._is_dropped = True
        if self._response is not None:
            self._response.close()

    async def chunks(self) -> AsyncGenerator[TokenChunk, None]:
        """What is sampled. Iterate under ``contextlib.aclosing``.

        Raises:
            Superseded: see ``updated``.
            ServerAwayError: the connection broke.
            EngineError: the server ended the stream for a reason of its own, or broke the protocol.
        """
        try:
            async with self._link.request("POST", GENERATE, self._body) as response:
                self._response = response
                if self._is_dropped:
                    response.close()
                async for event in _events(response):
                    for chunk in self._take(event):
                        yield chunk
                        if chunk.finish is not None:
                            return
            self._ended_early()
        except msgspec.MsgspecError as error:
            raise EngineError(f"{self._link.who} sent what is no event of a stream: {error}") from error
        except (aiohttp.ClientError, ServerAwayError) as error:
            if self._is_superseded:
                raise Superseded from None
            raise ServerAwayError(f"{self._link.who} broke a stream: {error or type(error).__name__}") from error

    def _ended_early(self) -> NoReturn:
        raise ServerAwayError("it ended without a finish")

    def _take(self, event: _Event) -> Iterator[TokenChunk]:
        if event.error is not None:
            raise EngineError(f"{self._link.who} ended a stream: {event.error}")
        for choice in event.choices:
            if self._is_superseded:
                raise Superseded
            self.has_sampled = True
            yield from self._stamped(choice)

    def _stamped(self, choice: _Choice) -> Iterator[TokenChunk]:
        """The tokens of an event, and those kept before, cut where the version changes."""
        finish = self._finish_of(choice)
        self._kept += zip(choice.token_ids, self._logprobs_of(choice), strict=True)
        if choice.weight_versions is not None:
            spans = [(self._version_of(span.version), span.start, span.end) for span in choice.weight_versions]
        elif self._version is not None:
            spans = [(self._version, self._num_given, self._num_given + len(self._kept))]
        elif finish is None or not self._kept:
            spans = []
        else:
            raise EngineError(f"{self._link.who} does not say which weights sampled a stream: it names no version")
        chunks = []
        for version, start, end in spans:
            taken = self._kept[: max(0, end - max(start, self._num_given))]
            if taken:
                del self._kept[: len(taken)]
                self._num_given += len(taken)
                self._last_version = version
                chunks.append((version, taken))
        if not chunks:
            chunks = [(self._last_version, [])]
        for number, (version, taken) in enumerate(chunks, start=1):
            yield TokenChunk(
                token_ids=[token for token, _ in taken],
                logprobs=[logprob for _, logprob in taken],
                version=version,
                finish=finish if number == len(chunks) else None,
            )

    def _finish_of(self, choice: _Choice) -> Finish | None:
        if choice.finish_reason is None:
            return None
        if choice.finish_reason not in _FINISHES:
            raise EngineError(f"{self._link.who} ended a stream for the reason {choice.finish_reason!r}")
        return _FINISHES[choice.finish_reason]

    def _logprobs_of(self, choice: _Choice) -> list[float]:
        found = [] if choice.logprobs is None else [each.logprob for each in choice.logprobs.content]
        if len(found) != len(choice.token_ids) or any(logprob <= _NO_LOGPROB for logprob in found):
            raise EngineError(f"{self._link.who} gave tokens without their log-probabilities")
        return found


async def _events(response: aiohttp.ClientResponse) -> AsyncGenerator[_Event, None]:
    """The events of an answer, as they come."""
    rest = b""
    async for data in response.content.iter_any():
        *events, rest = (rest + data).split(_END)
        for event in events:
            payload = event.removeprefix(_DATA)
            if payload.startswith(b"{"):  # else it is the last word, or a comment that keeps the connection
                yield _decode(payload)
