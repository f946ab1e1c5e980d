"""Asking a run from another process: who is found, and what is said where nobody is."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prl.check_control import CONTROL_TOKEN
from prl.config_control import ControlConfig
from prl.control import address as control_file
from prl.control import client
from prl.control.address import ControlAddress
from prl.control.route import Route
from prl.control.server import ControlServer
from prl.errors import ConfigError, NotFoundError, RefusedError


async def answer(request: Any) -> Any:
    """Refuse, or say what came."""
    errors = {"no": RefusedError("no"), "who": NotFoundError("who?")}
    if (name := request.match_info["name"]) in errors:
        raise errors[name]
    return [name, (await request.read()).decode()]


async def test_a_run_is_found_by_folder_and_by_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder holds the token, an address needs it from the environment; refusals arrive as what they were."""
    server = ControlServer(ControlConfig(), tmp_path, [Route("POST", "/{name}", answer)])
    server.bind()
    await server.open()
    assert server.address is not None
    url = server.address.url

    def asked() -> None:
        run = client.find(str(tmp_path))
        assert run.ask("POST", "/a", list[str], {"b": 1}) == ["a", '{"b":1}']
        with pytest.raises(RefusedError, match=r"^no$"):
            run.ask("POST", "/no", list[str])
        with pytest.raises(NotFoundError, match=r"^who\?$"):
            run.ask("POST", "/who", list[str])
        with pytest.raises(client.Unanswered, match="405"):
            run.ask("GET", "/a", list[str])
        with pytest.raises(client.Unanswered, match="no run of this version"):
            run.ask("POST", "/a", int)
        with pytest.raises(ConfigError, match=f"put the token of the run into {CONTROL_TOKEN}"):
            client.find(url)
        monkeypatch.setenv(CONTROL_TOKEN, "a wrong one")
        with pytest.raises(ConfigError, match="the token is wrong"):
            client.find(url).ask("POST", "/a", list[str])
        monkeypatch.setenv(CONTROL_TOKEN, server._token)
        assert client.find(url).ask("POST", "/a", list[str]) == ["a", ""]

    await asyncio.to_thread(asked)
    await server.close()
    with pytest.raises(client.Unanswered, match="does not answer"):
        await asyncio.to_thread(client.find(url).ask, "POST", "/a", list[str])


@pytest.mark.parametrize("url", ["https://h:1", "http://h", "http://:1", "http://h:x", "http://h:1/page"])
def test_an_address_is_said_as_it_must_be(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another scheme, no host, no port, a path: one line with an example."""
    monkeypatch.setenv(CONTROL_TOKEN, "token")
    with pytest.raises(ConfigError, match=r"such as http://127\.0\.0\.1:8470"):
        client.find(url)


def test_a_run_on_another_machine_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    """On a shared file system: its loopback cannot be asked from here, and that is what is said."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = ControlAddress(url=f"http://127.0.0.1:{port}", token="t", pid=1, host="elsewhere")
    control_file.write(tmp_path, address)
    with pytest.raises(client.Unanswered, match=r"on elsewhere; ask there, or forward the port with ssh -L"):
        client.find(str(tmp_path)).ask("GET", "/status", dict)
    control_file.write(tmp_path, msgspec.structs.replace(control_file.of_this_process("http://x:1", None)))
    with pytest.raises(ConfigError, match=f"was started with {CONTROL_TOKEN} set"):
        client.find(str(tmp_path))
