"""HTTP around the sessions, the only place of the gateway that knows aiohttp.

    POST /v1/chat/completions    POST /v1/completions    GET /v1/models    POST /v1/reward {"reward": 1.0, "part": "x"}

Invariants:

- A turn that was asked for and not taken (the agent hung up) is cancelled: it is not in the episode.
- An error has the form and the status that OpenAI's clients know: 400 for what would come back (an episode that is over
  among it, so that no client tries again), 401 for a key that is none, 503 for a turn that may be tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from prl.environments.session import OWN_PART, Reply, Session
from prl.environments.stops import Spoken
from prl.errors import ConfigError, EngineError, EpisodeOverError, TurnFailedError
from prl.failure import being_cancelled
from prl.gateway.gateway import Gateway, Guest
from prl.gateway.replies import Events, Kind, error, logprobs, whole
from prl.gateway.requests import MODEL, Asked, RequestError, read_chat, read_text
from prl.log import get_logger

MAX_BODY_BYTES = 32 << 20

log = get_logger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Event = list[int] | Reply | Exception | None
"""Tokens, the end, why there is none; None: it was cancelled."""


class Given(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A body of ``/v1/reward``."""

    reward: float
    part: str = OWN_PART


def application(gateway: Gateway) -> web.Application:
    """What serves the episodes of ``gateway``."""
    app = web.Application(middlewares=[_judged_by(gateway)], client_max_size=MAX_BODY_BYTES)
    for prefix in ("", "/{key}"):
        app.router.add_post(f"{prefix}/v1/chat/completions", _of_guest(gateway, _chat))
        app.router.add_post(f"{prefix}/v1/completions", _of_guest(gateway, _text))
        app.router.add_post(f"{prefix}/v1/reward", _of_guest(gateway, _reward))
        app.router.add_get(f"{prefix}/v1/models", _of_guest(gateway, _models))
    return app


def _judged_by(gateway: Gateway) -> Any:
    @web.middleware
    async def judge(request: web.Request, handler: Handler) -> web.StreamResponse:
        if (refusal := gateway.names.refuses(request.headers)) is not None:
            return _error(refusal.status, refusal.message, "refused")
        try:
            return await handler(request)
        except RequestError as told:
            return web.json_response(error(str(told), "invalid_request", param=told.param), status=400, dumps=_dumps)
        except web.HTTPException as told:
            return _error(told.status, f"{request.method} {request.path}: {told.reason}", "not_served")
        except Exception as bug:
            log.exception("a request of an agent failed; this is a bug", path=request.path)
            return _error(500, f"{type(bug).__name__}: {bug}", "bug", "server_error")

    return judge


def _of_guest(
    gateway: Gateway, answer: Callable[[Gateway, Guest, web.Request], Awaitable[web.StreamResponse]]
) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        _, _, presented = request.headers.get("Authorization", "").partition(" ")
        guest = gateway.guest(request.match_info.get("key", presented.strip()))
        if guest is None:
            return _error(401, "this is no key of an episode under way: take session.api_key", "invalid_api_key")
        return await answer(gateway, guest, request)

    return handle


async def _models(_: Gateway, __: Guest, ___: web.Request) -> web.StreamResponse:
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "prl"}
    return web.json_response({"object": "list", "data": [model]})


async def _reward(_: Gateway, guest: Guest, request: web.Request) -> web.StreamResponse:
    try:
        given = msgspec.json.decode(await request.read(), type=Given)
        guest.session.reward(given.reward, given.part)
    except (msgspec.DecodeError, ValueError) as problem:
        raise RequestError(f"a reward is posted as {{'reward': NUMBER, 'part': NAME}}: {problem}") from None
    return web.json_response({"rewards": guest.session.rewards})


async def _chat(gateway: Gateway, guest: Guest, request: web.Request) -> web.StreamResponse:
    return await _answer(gateway, guest, request, read_chat(await request.read()), "chat")


async def _text(gateway: Gateway, guest: Guest, request: web.Request) -> web.StreamResponse:
    return await _answer(gateway, guest, request, read_text(await request.read()), "text")


async def _answer(gateway: Gateway, guest: Guest, request: web.Request, asked: Asked, kind: Kind) -> web.StreamResponse:
    gateway.note_overridden(asked.overridden)
    events = asyncio.Queue[Event]()
    answer: web.StreamResponse | None = None
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(_ask(guest.session, asked, events.put_nowait))
        guest.asking.add(asking)
        asking.add_done_callback(guest.asking.discard)
        asking.add_done_callback(lambda _: events.put_nowait(None))
        try:
            answer = await _told(guest.session, request, asked, kind, events)
        except (ConnectionError, asyncio.CancelledError):
            asking.cancel()
            if being_cancelled():
                raise
    return answer or _error(410, "the agent hung up", "gone")


async def _ask(session: Session, asked: Asked, tell: Callable[[Event], None]) -> None:
    """One turn; whatever goes wrong is told as a value, so that no task group closes on it."""
    try:
        reply = await session.generate(
            asked.given,
            tools=asked.tools,
            parallel_tool_calls=asked.parallel_tool_calls,
            max_tokens=asked.max_tokens,
            stop=asked.stop,
            on_tokens=tell,
        )
        tell(reply)
    except Exception as failed:  # noqa: BLE001 -- told
        tell(failed)


async def _told(
    session: Session, request: web.Request, asked: Asked, kind: Kind, events: asyncio.Queue[Event]
) -> web.StreamResponse:
    """The answer, written as it comes where the agent wants a stream."""
    answer_id = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{session.prompt.id}-{session.num_turns}"
    stream = Events(kind, answer_id, has_tools=bool(asked.tools), with_usage=asked.with_usage, stops=asked.stop)
    response: web.StreamResponse | None = None
    text = Spoken(session.text_of)
    while True:
        event = await events.get()
        if isinstance(event, Exception) or event is None:
            status, body = _refusal(event)
            if response is None:
                return web.json_response(body, status=status)
            await response.write(stream.failed(body))
            return response
        if isinstance(event, Reply) and not asked.streams:
            return web.json_response(
                whole(event, kind, answer_id, _logprobs(session, asked, event, kind)), dumps=_dumps
            )
        if not asked.streams:
            continue
        if response is None:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
            await response.prepare(request)
            await response.write(stream.begin())
        if isinstance(event, Reply):
            await response.write(stream.end(event, _logprobs(session, asked, event, kind)))
            await response.write_eof()
            return response
        await response.write(stream.text(text.with_tokens(event)))


def _logprobs(session: Session, asked: Asked, reply: Reply, kind: Kind) -> dict[str, Any] | None:
    return logprobs(session.pieces(reply.token_ids), reply.logprobs, kind) if asked.with_logprobs else None


def _refusal(failed: Exception | None) -> tuple[int, dict[str, Any]]:
    """Status and body of a turn that is none."""
    match failed:
        case None:
            return 410, error("the episode has ended", "episode_over")
        case EpisodeOverError():
            code = "context_length_exceeded" if "max_model_len" in str(failed) else "episode_over"
            return 400, error(str(failed), code)
        case ConfigError():
            return 400, error(str(failed), "invalid_request")
        case TurnFailedError() | EngineError():
            return 503, error(str(failed), "turn_failed", "server_error")
    log.error("a turn of an agent failed; this is a bug", exc_info=failed)
    return 500, error(f"{type(failed).__name__}: {failed}", "bug", "server_error")


def _dumps(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _error(status: int, message: str, code: str, kind: str = "invalid_request_error") -> web.Response:
    return web.json_response(error(message, code, kind), status=status, dumps=_dumps)
