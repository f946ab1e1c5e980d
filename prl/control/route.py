"""What can be asked at the control address. Whoever has something to tell, or to let others do, adds a ``Route``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from aiohttp import web

ANSWER_TIMEOUT_S = 10.0
"""Longest time for one answer, where its route says no other."""


class Route(NamedTuple):
    """One thing that can be asked or done."""

    method: str
    path: str
    """In aiohttp's form, such as ``/engines/{name}``: what matched is ``request.match_info["name"]``."""
    answer: Callable[[web.Request], Awaitable[Any]]
    """Runs in the event loop of the run, and so must not block. What it returns is sent as JSON: anything that msgspec
    encodes; a response of aiohttp's own, for what is none, is sent as it is. A RefusedError becomes status 409 with its
    message, a NotFoundError 404, a body that msgspec cannot decode 400, whatever else 500."""
    timeout_s: float | None = ANSWER_TIMEOUT_S
    """None: as long as it takes, for a stream."""
