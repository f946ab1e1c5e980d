"""HTTP around the routes, the only place that knows aiohttp: limits, deadlines, and what an answer looks like.

Invariants:

- The guard judges a request before anything else looks at it, so that a stranger cannot even tell which paths exist.
- Every answer is JSON, an error ``{"error": "..."}``, unless a route returned a response of its own.
- A route that fails is a bug in it: logged with its traceback, told as 500, and the next request is served.
- A header and a body have a largest size; a connection that asks nothing, or only begins to, is dropped after
  ``IDLE_S``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from aiohttp import web

from prl.control.guard import Guard
from prl.control.route import Route
from prl.errors import NotFoundError, RefusedError
from prl.log import get_logger

MAX_BODY_BYTES = MAX_HEADER_BYTES = 1 << 14
IDLE_S = 15.0
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

log = get_logger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def runner_of(routes: Iterable[Route], guard: Guard, *, close_timeout_s: float) -> web.AppRunner:
    """What serves ``routes`` to those whom ``guard`` lets pass, not set up."""
    app = web.Application(middlewares=[_judged_by(guard)], client_max_size=MAX_BODY_BYTES)
    app.on_response_prepare.append(_add_headers)
    for route in routes:
        app.router.add_route(route.method, route.path, _handler_of(route))
    quiet = logging.getLogger("prl.control.http")
    quiet.disabled = True  # what clients do wrong is told to them; of bugs the handlers tell
    return web.AppRunner(
        app,
        access_log=None,
        logger=quiet,
        keepalive_timeout=IDLE_S,
        lingering_time=0.0,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        shutdown_timeout=close_timeout_s,
    )


def _judged_by(guard: Guard) -> Any:
    @web.middleware
    async def judge(request: web.Request, handler: Handler) -> web.StreamResponse:
        if (refusal := guard.refuses(request.headers, request.path)) is not None:
            return _error(refusal.status, refusal.message)
        if (request.content_length or 0) > MAX_BODY_BYTES:
            return _error(413, f"a body may have {MAX_BODY_BYTES} bytes")
        try:
            return await handler(request)
        except web.HTTPException as told:  # no such path, another method, a body that grew too large
            return _error(told.status, f"{request.method} {request.path}: {told.reason}")

    return judge


def _handler_of(route: Route) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        limit = f"{route.path} took longer than {route.timeout_s} s"
        try:
            async with asyncio.timeout(route.timeout_s):
                answer = await route.answer(request)
            return answer if isinstance(answer, web.StreamResponse) else _json(200, answer)
        except web.HTTPException:
            raise
        except NotFoundError as error:
            return _error(404, str(error))
        except RefusedError as error:
            return _error(409, str(error))
        except msgspec.DecodeError as error:
            return _error(400, f"the body is not what {route.method} {route.path} takes: {error}")
        except TimeoutError:
            return _error(504, limit)
        except Exception as error:
            log.exception("a question to the run failed; this is a bug", route=f"{route.method} {route.path}")
            return _error(500, f"{type(error).__name__}: {error}; the run's events.jsonl has more")

    return handle


def _json(status: int, value: Any) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return _json(status, {"error": message})


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
