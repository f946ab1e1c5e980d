"""What every run answers at its control address.

- ``GET /status``: how it is. ``GET /engines``: each engine. ``GET /why``: who waits for whom.
- ``POST /engines`` with ``{"count": n}`` or ``{"servers": [addresses]}``: start n more, or open these; in the
  background.
- ``DELETE /engines/NAME``: take one out, in the background; ``?force=true`` even below ``engine.min_engines``.
- ``POST /stacks``: write where every process is to a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

import msgspec

from prl.control.route import Route
from prl.errors import RefusedError

if TYPE_CHECKING:
    from aiohttp import web

ADD_TIMEOUT_S = 60.0
"""The headers of a large model are read, to see whether there is room."""


class ToAdd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``POST /engines`` takes."""

    MOST: ClassVar[int] = 64
    count: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Engines to start; not read where there are servers."""
    servers: Annotated[list[str], msgspec.Meta(max_length=64)] = []
    """Addresses of servers to open."""


class Added(msgspec.Struct, frozen=True):
    """The names of the engines that start."""

    added: list[str]


class Leaving(msgspec.Struct, frozen=True):
    """The name of the engine that was removed."""

    leaving: str


class Run(Protocol):
    """The run that is asked: the pipeline."""

    def status(self) -> Any:
        """How the run is, as a struct."""
        ...

    def engines(self) -> list[Any]:
        """Each engine, as a struct."""
        ...

    async def add_engine(self, server: str | None = None) -> str:
        """Start one more, or open a server; its name. Raises RefusedError."""
        ...

    async def remove_engine(self, name: str, *, force: bool = False) -> str:
        """Take one out; its name. Raises RefusedError."""
        ...

    def why(self) -> Any:
        """Who waits for whom, as a struct."""
        ...

    async def dump_stacks(self) -> str:
        """Write where every process is to a file; says to which."""
        ...


def routes_of(run: Run) -> list[Route]:
    """See the module."""

    async def status(_: web.Request) -> Any:
        return run.status()

    async def engines(_: web.Request) -> Any:
        return run.engines()

    async def add(request: web.Request) -> Any:
        wanted = msgspec.json.decode(await request.read() or b"{}", type=ToAdd)
        added: list[str] = []
        try:
            servers: list[str | None] = [*wanted.servers]
            for server in servers or [None] * wanted.count:
                added.append(await run.add_engine(server))  # noqa: PERF401 -- those before one that is refused stay
        except RefusedError as error:
            if not added:
                raise
            raise RefusedError(f"{', '.join(added)} starts; {error}") from error
        return Added(added)

    async def remove(request: web.Request) -> Any:
        force = request.query.get("force", "false") == "true"
        return Leaving(await run.remove_engine(request.match_info["name"], force=force))

    async def why(_: web.Request) -> Any:
        return run.why()

    async def stacks(_: web.Request) -> Any:
        return {"stacks": await run.dump_stacks()}

    return [
        Route("GET", "/status", status),
        Route("GET", "/engines", engines),
        Route("POST", "/engines", add, ADD_TIMEOUT_S),
        Route("DELETE", "/engines/{name}", remove),
        Route("GET", "/why", why),
        Route("POST", "/stacks", stacks),
    ]
