"""By which of its addresses others reach this host: found without looking up its own name, or a byte on the wire.

A host has several addresses, and its own name may stand for any or none of them. What counts is the route: the address
from which a packet to the other host would leave is one at which that host can answer.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable

LOOPBACK = "127.0.0.1"
_ANY_PORT = 9
"""Connecting a datagram socket sends nothing; it only looks up the route."""


def is_loopback(host: str) -> bool:
    """Whether an address or name means this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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


def origin_of(listening: socket.socket) -> str:
    """What reaches it from this machine, such as ``http://127.0.0.1:8470``."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)  # noqa: S104 -- looked for
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def address_towards(host: str) -> str:
    """This machine's address on the way to ``host``. Raises OSError: there is no way, or no such name."""
    return _route(host)[0]


def meeting_address(hosts: Iterable[str]) -> str:
    """Where ``hosts`` can meet on this machine: on loopback where all are here, else where the first other comes in.

    Raises OSError: one of them cannot be reached from here.
    """
    for host in hosts:
        own, other = _route(host)
        if own != other:
            return own
    return LOOPBACK


def interface_of(address: str) -> str | None:
    """The name of the interface that has ``address``; None: this machine has no such address."""
    import psutil  # noqa: PLC0415 - only where ranks are on several hosts

    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return str(name)
    return None


def _route(host: str) -> tuple[str, str]:
    """The two ends of the way to ``host``."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return probe.getsockname()[0], probe.getpeername()[0]
