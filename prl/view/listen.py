"""Whom the page lets in where it listens."""

from __future__ import annotations

import os
import socket

from prl.check_control import CONTROL_TOKEN
from prl.network import is_loopback
from prl.view.guard import PageGuard


def guard_of(host: str, listening: socket.socket) -> PageGuard:
    """Who may look: everybody who presents PRL_CONTROL_TOKEN; where that is not set, everybody on this machine."""
    names = [host] if is_loopback(host) else [host, socket.gethostname()]
    return PageGuard(os.environ.get(CONTROL_TOKEN) or None, names, listening.getsockname()[1])
