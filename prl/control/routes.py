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


def routes_of(run: Run) -> list[Route]:
    """``GET /status`` and ``GET /engines``."""

    async def status(_: web.Request) -> Any:
        return run.status()

    async def engines(_: web.Request) -> Any:
        return run.engines()

    return [Route("GET", "/status", status), Route("GET", "/engines", engines)]
