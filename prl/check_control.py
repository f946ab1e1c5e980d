"""What ``[control]`` and its token must be, so that nobody else steers a run."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

from prl.config import Config

CONTROL_TOKEN = "PRL_CONTROL_TOKEN"  # noqa: S105 -- the name of a variable
METRICS_TOKEN = "PRL_METRICS_TOKEN"  # noqa: S105 -- the same
SHORTEST_TOKEN = 16
"""Characters. A random one of 32 hexadecimal digits cannot be guessed; a short word can."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_control(config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    """One line per conflict."""
    control, token = config.control, environment.get(CONTROL_TOKEN, "")
    if not control.enabled:
        return
    if not control.address:
        yield "control.address = '' must be a host name or an IP address; 0.0.0.0 is every address of this machine"
    elif not token and not is_loopback(control.address):
        yield (
            f"control.address = {control.address!r} can be reached from other machines: set {CONTROL_TOKEN} to a"
            " secret, such as what `openssl rand -hex 16` says, or keep to 127.0.0.1"
        )
    for name in (CONTROL_TOKEN, METRICS_TOKEN):
        if (given := environment.get(name, "")) and not _is_good(given):
            yield (
                f"{name} must have at least {SHORTEST_TOKEN} characters, printable ASCII without spaces, such as what"
                " `openssl rand -hex 16` says"
            )


def _is_good(token: str) -> bool:
    return len(token) >= SHORTEST_TOKEN and token.isascii() and token.isprintable() and " " not in token
