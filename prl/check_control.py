"""What ``[control]``, ``[view]`` and their token must be, so that nobody else steers a run or looks into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prl.config import Config
from prl.config_control import ControlConfig
from prl.config_view import ViewConfig
from prl.network import is_loopback

CONTROL_TOKEN = "PRL_CONTROL_TOKEN"  # noqa: S105 -- the name of a variable
METRICS_TOKEN = "PRL_METRICS_TOKEN"  # noqa: S105 -- the same
SHORTEST_TOKEN = 16
"""Characters. A random one of 32 hexadecimal digits cannot be guessed; a short word can."""


def check_control(config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    """One line per conflict."""
    tables: dict[str, ControlConfig | ViewConfig] = {"control": config.control, "view": config.view}
    for name, table in tables.items():
        if table.enabled:
            yield from check_address(f"{name}.address", table.address, environment)
    if any(table.enabled for table in tables.values()):
        yield from check_tokens(environment)


def check_address(key: str, address: str, environment: Mapping[str, str]) -> Iterator[str]:
    """One line if nobody can listen there, or everybody could ask."""
    if not address:
        yield f"{key} = '' must be a host name or an IP address; 0.0.0.0 is every address of this machine"
    elif not environment.get(CONTROL_TOKEN) and not is_loopback(address):
        yield (
            f"{key} = {address!r} can be reached from other machines: set {CONTROL_TOKEN} to a"
            " secret, such as what `openssl rand -hex 16` says, or keep to 127.0.0.1"
        )


def check_tokens(environment: Mapping[str, str]) -> Iterator[str]:
    """One line for each token that can be guessed."""
    for name in (CONTROL_TOKEN, METRICS_TOKEN):
        if (given := environment.get(name, "")) and not _is_good(given):
            yield (
                f"{name} must have at least {SHORTEST_TOKEN} characters, printable ASCII without spaces, such as what"
                " `openssl rand -hex 16` says"
            )


def _is_good(token: str) -> bool:
    return len(token) >= SHORTEST_TOKEN and token.isascii() and token.isprintable() and " " not in token
