"""The control address over real sockets: who is answered, with what, and that nothing reaches the run."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from prl.check_control import CONTROL_TOKEN
from prl.config_control import ControlConfig
from prl.control import address as control_file
from prl.control import server as control_server
from prl.control.answers import MAX_BODY_BYTES
from prl.control.route import Route
from prl.control.server import ControlServer
from prl.errors import ConfigError, NotFoundError, RefusedError

Answer = tuple[int, Any]


class Question(msgspec.Struct):
    """What the tests post."""

    count: int


async def echo(request: Any) -> Any:
    """Say what came."""
    return {"count": msgspec.json.decode(await request.read(), type=Question).count, "name": request.match_info["name"]}


async def fails(request: Any) -> Any:
    """Raise what the path says."""
    raise {"bug": KeyError("bug"), "refused": RefusedError("no"), "missing": NotFoundError("who?")}[
        request.match_info["how"]
    ]


async def hangs(_: Any) -> Any:
    """Wait for ever."""
    await asyncio.get_running_loop().create_future()


ROUTES = [Route("POST", "/echo/{name}", echo), Route("GET", "/fails/{how}", fails), Route("GET", "/hangs", hangs, 0.05)]


def files_in(folder: Path) -> list[str]:
    """What is there."""
    return [path.name for path in folder.iterdir()]


@asynccontextmanager
async def listening(folder: Path, config: ControlConfig | None = None) -> AsyncIterator[ControlServer]:
    """A server with some routes."""
    server = ControlServer(config or ControlConfig(), folder, ROUTES)
    server.bind()
    await server.open()
    try:
        yield server
    finally:
        await server.close()


async def ask(server: ControlServer, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
    """Ask with the token, unless ``Authorization`` says otherwise; status and JSON of the answer."""
    assert server.address is not None
    headers = {"Authorization": f"Bearer {server._token}", **headers}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, server.address.url + path, data=body, headers=headers) as response,
    ):
        assert response.headers["Cache-Control"] == "no-store"
        return response.status, await response.json()


async def test_an_answer_is_json_and_a_stranger_gets_none(tmp_path: Path) -> None:
    """With the token a route answers; without, or with a foreign Host or Origin, not even its existence shows."""
    async with listening(tmp_path) as server:
        assert await ask(server, "POST", "/echo/a%20b", b'{"count": 3}') == (200, {"count": 3, "name": "a b"})
        for path in ("/echo/x", "/nowhere"):
            status, answer = await ask(server, "POST", path, Authorization="Bearer guess")
            assert (status, "Authorization: Bearer TOKEN" in answer["error"]) == (401, True)
            assert (await ask(server, "POST", path, Host="evil.example"))[0] == 421
            assert (await ask(server, "POST", path, Origin="http://evil.example"))[0] == 403


async def test_every_wrong_question_is_told_what_was_wrong(tmp_path: Path) -> None:
    """No such path, another method, a body that is none, or is too large, announced or not."""
    async with listening(tmp_path) as server:
        assert await ask(server, "GET", "/nowhere") == (404, {"error": "GET /nowhere: Not Found"})
        assert (await ask(server, "GET", "/echo/x"))[0] == 405
        for body in (b"", b"{", b'{"count": "3"}', b"[]"):
            status, answer = await ask(server, "POST", "/echo/x", body)
            assert (status, answer["error"].startswith("the body is not what POST /echo/{name} takes")) == (400, True)
        assert (await ask(server, "POST", "/echo/x", b" " * (MAX_BODY_BYTES + 1)))[0] == 413

        async def unannounced() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b" " * 1024

        assert (await ask(server, "POST", "/echo/x", unannounced()))[0] == 413  # type: ignore[arg-type]


async def test_a_route_that_fails_or_hangs_ends_nothing(tmp_path: Path) -> None:
    """A refusal is told, a bug is a 500 with its name, a deadline a 504; afterwards the next question is answered."""
    async with listening(tmp_path) as server:
        assert await ask(server, "GET", "/fails/refused") == (409, {"error": "no"})
        assert await ask(server, "GET", "/fails/missing") == (404, {"error": "who?"})
        status, answer = await ask(server, "GET", "/fails/bug")
        assert (status, answer["error"].startswith("KeyError: 'bug'")) == (500, True)
        assert await ask(server, "GET", "/hangs") == (504, {"error": "/hangs took longer than 0.05 s"})
        assert (await ask(server, "POST", "/echo/x", b'{"count": 1}'))[0] == 200


async def test_rubbish_and_crowds_are_shed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no HTTP is dropped, a header that is too large is a 400, a connection too many is closed at once."""
    monkeypatch.setattr(control_server, "MAX_CONNECTIONS", 2)
    async with listening(tmp_path) as server:
        assert server.address is not None
        port = int(server.address.url.rpartition(":")[2])

        async def said(text: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(text)
            answer = await reader.read()
            writer.close()
            return answer

        assert b"400" in (await said(b"\x16\x03\x01 what\r\n\r\n")).splitlines()[0]
        assert b"400" in (await said(b"GET / HTTP/1.1\r\nA: " + b"b" * 40_000 + b"\r\n\r\n")).splitlines()[0]
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert await idle[2][0].read() == b""
        for _, writer in idle:
            writer.close()


async def test_the_file_is_there_while_it_listens(tmp_path: Path) -> None:
    """``control.json`` names address and token; afterwards nothing listens and no file is left. Close is idempotent."""
    async with listening(tmp_path) as server:
        found = control_file.read(tmp_path)
        assert found == server.address
        assert found.token is not None
        assert len(found.token) == 32
    await server.close()
    assert files_in(tmp_path) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(found.url.rpartition(":")[2])))


async def test_a_token_of_the_environment_stays_off_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what must be presented, on every address of the machine, and no file holds it."""
    monkeypatch.setenv(CONTROL_TOKEN, "correct-horse-battery")
    async with listening(tmp_path, ControlConfig(address="0.0.0.0")) as server:
        assert (await ask(server, "GET", "/nowhere", Authorization="Bearer correct-horse-battery"))[0] == 404
        assert json.loads((tmp_path / control_file.CONTROL_FILE).read_text())["token"] is None


async def test_a_port_that_was_chosen_and_is_taken_is_said_before_the_start(tmp_path: Path) -> None:
    """The user's port or address is a ConfigError; nothing is listened on, nothing written."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"control.port = {port}: .*; name an address of this machine"):
            ControlServer(ControlConfig(port=port), tmp_path, []).bind()
    with pytest.raises(ConfigError, match=r"control\.address = '203\.0\.113\.1'"):
        ControlServer(ControlConfig(address="203.0.113.1"), tmp_path, []).bind()
    assert files_in(tmp_path) == []


async def test_without_its_default_address_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody chose it, so that it cannot be had, or the file not be written, is a warning."""
    server = ControlServer(ControlConfig(), tmp_path / "missing", ROUTES)
    server.bind()
    await server.open()
    assert server.address is None
    await server.close()

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(1, "not allowed")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    other = ControlServer(ControlConfig(), tmp_path, ROUTES)
    other.bind()
    await other.open()
    assert other.address is None
