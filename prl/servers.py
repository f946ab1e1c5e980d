"""The servers of a configuration: what their addresses may be, what they must be, and whether they are.

An address is ``http://host:port``: no key, no name of a user, nothing that a file or a message should not hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from prl.config import Config
from prl.errors import ConfigError, PrlError
from prl.memory import read_json
from prl.models import local_folder

if TYPE_CHECKING:
    from prl.engines.server import ServerEngine
    from prl.engines.server_questions import ServerFacts, Wanted

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers")
_ASK_TIMEOUT_S = 120.0
"""Of all questions to one server, asked by ``prl run --check``."""
_EXAMPLE = "http://host:8000"


def address_problem(address: str) -> str | None:
    """Why this is no address of a server; None: it is one."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        return f"{address!r} is no address ({error}): write it like {_EXAMPLE}"
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        return f"{address!r} is no address of a server: write it like {_EXAMPLE}"
    if parts.username is not None or parts.query or parts.fragment:
        return (
            f"the address of the server at {parts.hostname} holds more than host, port and path: a key goes into an"
            " environment variable, and its name into engine.api_key_env"
        )
    return None


def host_of(address: str) -> str:
    """The host that an address names."""
    return urlsplit(address).hostname or ""


def same_form(address: str) -> str:
    """An address as it is compared with others."""
    return address.rstrip("/")


def make_server(config: Config, model: str, transport: str, *, index: int, address: str) -> ServerEngine:
    """The engine that drives the server at ``address``, not opened."""
    from prl.engines.server import ServerEngine  # noqa: PLC0415 -- aiohttp only where it is needed

    return ServerEngine(index=index, url=address, config=config.engine, wanted=wanted(config, model, transport))


def wanted(config: Config, model: str, transport: str) -> Wanted:
    """What every server must be."""
    from prl.engines.server_questions import Wanted  # noqa: PLC0415 -- as above

    folder = local_folder(model)
    return Wanted(
        model=model,
        sizes={} if folder is None else _sizes(folder),
        transport=transport,
        max_model_len=config.engine.max_model_len,
    )


def ask_all(config: Config, model: str, transport: str) -> list[ServerFacts]:
    """Ask every server of ``[engine]`` what it is, side by side. Blocking.

    Raises:
        ConfigError: one line for each that will not do.
    """
    answers = asyncio.run(_ask_all(config.engine.servers, config, wanted(config, model, transport)))
    facts = [answer for answer in answers if not isinstance(answer, Exception)]
    if len(facts) < len(answers):
        raise ConfigError("\n".join(str(answer) for answer in answers if isinstance(answer, Exception)))
    return facts


async def _ask_all(addresses: Sequence[str], config: Config, want: Wanted) -> list[ServerFacts | Exception]:
    from prl.engines.server_link import ServerLink  # noqa: PLC0415 -- as above
    from prl.engines.server_questions import examine  # noqa: PLC0415 -- as above

    async def ask(index: int, address: str) -> ServerFacts | Exception:
        link = ServerLink(f"engine-{config.engine.num_local + index}", address, config.engine.api_key_env)
        try:
            await link.open()
            async with asyncio.timeout(_ASK_TIMEOUT_S):
                return await examine(link, want)
        except TimeoutError:
            return ConfigError(f"{link.who} did not answer within {_ASK_TIMEOUT_S:g} s: is it hung, or starting?")
        except PrlError as error:
            return error
        finally:
            await link.close()

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask(index, address)) for index, address in enumerate(addresses)]
    return [task.result() for task in asked]


def _sizes(folder: Path) -> dict[str, int]:
    raw = read_json(folder / "config.json")
    raw = raw.get("text_config", raw)
    return {name: raw[name] for name in _SIZES if isinstance(raw.get(name), int)}
