"""What every run answers at its control address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from prl.control.route import Route

if TYPE_CHECKING:
    from aiohttp import web


class Run(Protocol):
    """The run that is asked: the pipeline."""

    def status(self) -> Any:
        """How the run is, as a struct."""
        ...

    def engines(self) -> list[Any]:
        """Each engine, as a struct."""
        ...

    def why(self) -> Any:
        """Who waits for whom, as a struct."""
        ...

    async def dump_stacks(self) -> str:
        """Write where every process is to a file; says to which."""
        ...


def routes_of(run: Run) -> list[Route]:
    """``GET /status``, ``/engines`` and ``/why``; ``POST /stacks``."""

    async def status(_: web.Request) -> Any:
        return run.status()

    async def engines(_: web.Request) -> Any:
        return run.engines()

    async def why(_: web.Request) -> Any:
        return run.why()

    async def stacks(_: web.Request) -> Any:
        return {"stacks": await run.dump_stacks()}

    return [
        Route("GET", "/status", status),
        Route("GET", "/engines", engines),
        Route("GET", "/why", why),
        Route("POST", "/stacks", stacks),
    ]
