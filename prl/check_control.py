"""What ``[control]`` and its token must be, so that nobody else steers a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prl.config import Config
from prl.network import is_loopback

CONTROL_TOKEN = "PRL_CONTROL_TOKEN"  # noqa: S105 -- the name of a variable
SHORTEST_TOKEN = 16
"""Characters. A random one of 32 hexadecimal digits cannot be guessed; a short word can."""


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
    if token and not (len(token) >= SHORTEST_TOKEN and token.isascii() and token.isprintable() and " " not in token):
        yield (
            f"{CONTROL_TOKEN} must have at least {SHORTEST_TOKEN} characters, printable ASCII without spaces, such as"
            " what `openssl rand -hex 16` says"
        )
