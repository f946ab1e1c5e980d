"""HTTP around the page and its answers: what is served to whom, and with which headers.

Invariants:

- The guard judges a request before anything else looks at it. Only GET and HEAD are answered.
- The page is the files of ``page/`` and nothing else; no name leads out of that folder.
- Every answer carries the headers that keep a browser from running, or loading, anything that is not the page's own.
- Nothing runs long on the event loop: files are read in threads. What goes wrong is told to whoever asked.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import logging
import mimetypes
import socket
import urllib.parse
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from prl.errors import ConfigError, NotFoundError, RefusedError
from prl.log import get_logger
from prl.view.api import Api, encode
from prl.view.guard import PageGuard
from prl.view.live import Live, Message
from prl.view.run import IndexingError

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
NUM_THREADS = 4
MAX_CONNECTIONS = 64
MAX_HEADER_BYTES = 1 << 14
CLOSE_TIMEOUT_S = 1.0
LOOK_EVERY_S = 0.5
HEARTBEAT_S = 15.0
PAGE = importlib.resources.files("prl.view") / "page"

log = get_logger(__name__)
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ViewServer:
    """Serves ``api`` on a socket that listens. ``open`` it, then ``close`` it."""

    def __init__(
        self, api: Api, guard: PageGuard, listener: socket.socket, *, look_every_s: float = LOOK_EVERY_S
    ) -> None:
        self._api, self._guard, self._listener = api, guard, listener
        self._look_every_s = look_every_s
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="prl-view")
        self._server: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None
        self._ends = asyncio.Event()

    async def open(self) -> None:
        """Begin to answer."""
        app = web.Application(middlewares=[self._judge], client_max_size=1024)
        app.on_response_prepare.append(_add_headers)
        app.router.add_get("/", self._index)
        app.router.add_get("/api/runs", partial(self._answer, self._list_runs))
        app.router.add_get("/api/{run}/stream", self._stream)
        app.router.add_get("/api/{run}/groups/{number}", partial(self._answer, self._group))
        app.router.add_get("/api/{run}/samples/{number}", partial(self._answer, self._sample))
        app.router.add_get("/api/{run}/{what}", partial(self._answer, self._of_run))
        app.router.add_get("/{file:.+}", self._file)
        quiet = logging.getLogger("prl.view.http")
        quiet.disabled = True  # what clients do wrong is told to them
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=quiet,
            keepalive_timeout=60.0,
            lingering_time=0.0,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            shutdown_timeout=CLOSE_TIMEOUT_S,
        )
        await self._runner.setup()
        handler = self._runner.server
        assert handler is not None, "set up"

        def accept() -> asyncio.Protocol:
            return handler() if len(handler.connections) < MAX_CONNECTIONS else _Full()

        self._server = await asyncio.get_running_loop().create_server(accept, sock=self._listener)

    async def close(self) -> None:
        """Answer no more, in bounded time. Idempotent."""
        self._ends.set()
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * CLOSE_TIMEOUT_S):
                    await self._runner.cleanup()
            self._runner = None
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._api.runs.close()

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    # ---- who and what ------------------------------------------------------------------------------------------------

    @property
    def _judge(self) -> Any:
        @web.middleware
        async def judge(request: web.Request, handler: Handler) -> web.StreamResponse:
            refusal = self._guard.refuses(request.headers, request.path, request.query.get("token"))
            if refusal is not None:
                return _error(refusal.status, refusal.message)
            try:
                return await handler(request)
            except web.HTTPException as told:  # no such path, another method
                return _error(told.status, f"{request.method} {request.path}: {told.reason}")

        return judge

    async def _answer(self, make: Callable[[web.Request], Any], request: web.Request) -> web.Response:
        """What ``make`` says, made and encoded in a thread."""
        try:
            body = await self._in_thread(lambda: encode(make(request)))
        except IndexingError as error:
            return _json(202, encode({"indexing": round(error.share, 4)}))
        except NotFoundError as error:
            return _error(404, str(error))
        except (RefusedError, ConfigError) as error:
            return _error(400, str(error))
        except Exception as error:
            if not isinstance(error, OSError):
                log.exception("a question to the page failed; this is a bug", path=request.path)
            return _error(500, f"{type(error).__name__}: {error}; ask again")
        return _json(200, body)

    def _list_runs(self, _: web.Request) -> Any:
        return self._api.list_runs()

    def _of_run(self, request: web.Request) -> Any:
        what = request.match_info["what"]
        if what not in self._api.of_runs:
            raise NotFoundError(f"{request.path}: of a run can be asked {', '.join(self._api.of_runs)}")
        return self._api.of_run(request.match_info["run"], what, request.query)

    def _group(self, request: web.Request) -> Any:
        return self._api.group(request.match_info["run"], request.match_info["number"])

    def _sample(self, request: web.Request) -> Any:
        return self._api.sample(request.match_info["run"], request.match_info["number"])

    # ---- what goes on ------------------------------------------------------------------------------------------------

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        try:
            path = await self._in_thread(self._api.runs.path, request.match_info["run"])
        except NotFoundError as error:
            return _error(404, str(error))
        status = partial(self._api.statuses.of, path)
        live = await self._in_thread(Live, path, _heard_last(request), status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        await response.prepare(request)
        await response.write(b"retry: 2000\n\n")
        with suppress(ConnectionError):
            await self._tell(response, live)
        return response

    async def _tell(self, response: web.StreamResponse, live: Live) -> None:
        loop = asyncio.get_running_loop()
        told_at = loop.time()
        while not self._ends.is_set() and not live.has_ended:
            news: list[Message] = await self._in_thread(live.news)
            if news:
                await response.write(b"".join(message.encode() for message in news))
                told_at = loop.time()
            elif loop.time() - told_at >= HEARTBEAT_S:
                await response.write(b": still here\n\n")
                told_at = loop.time()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_every_s):
                    await self._ends.wait()

    # ---- the page ----------------------------------------------------------------------------------------------------

    async def _index(self, request: web.Request) -> web.StreamResponse:
        response = await self._page("index.html")
        if self._guard.accepts(request.query.get("token")):
            response.set_cookie(self._guard.cookie_name, self._guard.cookie, httponly=True, samesite="Strict", path="/")
        return response

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return await self._page(request.match_info["file"])

    async def _page(self, name: str) -> web.Response:
        parts = name.split("/")
        if any(part.startswith(".") or not part or set(part) & set("\\\0:") for part in parts):
            return _error(404, f"there is no {urllib.parse.quote(name)}")
        try:
            body = await self._in_thread(PAGE.joinpath(*parts).read_bytes)
        except OSError:
            return _error(404, f"there is no {urllib.parse.quote(name)}")
        kind = {".js": "text/javascript"}.get(Path(name).suffix) or mimetypes.guess_type(name)[0]
        text = kind is not None and kind.startswith("text/")
        return web.Response(
            body=body, content_type=kind or "application/octet-stream", charset="utf-8" if text else None
        )


class _Full(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Drop it at once."""
        transport.close()


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers.pop("Server", None)


def _heard_last(request: web.Request) -> str | None:
    """The id of the last event that a browser has heard: by this stream, else by one before it."""
    return request.headers.get("Last-Event-ID") or request.query.get("last")


def _json(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return _json(status, encode({"error": message}))
