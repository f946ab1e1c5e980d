"""A real HTTP server on a free port of this machine, that answers as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request, Any], Awaitable[web.StreamResponse]]


class Service:
    """What was asked of the server, and where it is."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Service]:
    """A server that answers every POST with ``answer(request, body)``."""
    service = Service()

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        service.bodies.append(body)
        service.headers.append(dict(request.headers))
        return await answer(request, body)

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        await runner.cleanup()
