"""Where the page listens, and whom it lets in there."""

from __future__ import annotations

import contextlib
import os
import socket

from prl.check_control import CONTROL_TOKEN
from prl.network import is_loopback
from prl.view.guard import PageGuard


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 picks a free one. Raises OSError."""
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with contextlib.ExitStack() as on_error:
        found = on_error.enter_context(socket.socket(family, kind, protocol))
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(where)
        found.listen()
        found.setblocking(False)
        on_error.pop_all()
    return found


def url_of(listening: socket.socket) -> str:
    """What to open, without a token."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 -- looked for
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"


def guard_of(host: str, listening: socket.socket) -> PageGuard:
    """Who may look: everybody who presents PRL_CONTROL_TOKEN; where that is not set, everybody on this machine."""
    names = [host] if is_loopback(host) else [host, socket.gethostname()]
    return PageGuard(os.environ.get(CONTROL_TOKEN) or None, names, listening.getsockname()[1])
