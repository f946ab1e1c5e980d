"""An engine that is a server, against an HTTP server that answers as vLLM's does: what it refuses, and how it fails.

That it keeps the engine protocol on a real ``vllm serve`` process is shown in ``test_contract.py``.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from prl import servers
from prl.config import Config, EngineConfig
from prl.engines.base import Decoding
from prl.engines.lives import Lives
from prl.engines.quorum import Quorum
from prl.engines.seats import Seats
from prl.engines.server import ServerEngine
from prl.engines.server_questions import Wanted
from prl.engines.updated import UpdatedEngines
from prl.errors import ConfigError, EngineDeadError, EngineError, EngineStalledError, WeightSyncError
from prl.process import free_port
from prl.proof import Proof
from prl.types import TensorSpec, TokenChunk, WeightGroup, WeightUpdate
from tests.engines.contract import DEADLINE_S, Stream
from tests.engines.fake_server import FIRST, FakeServer

KEY_VARIABLE = "PRL_TEST_ENGINE_KEY"
PROMPT = [5, 6, 7]


def make_engine(url: str, *, api_key_env: str | None = None, **config: Any) -> ServerEngine:
    """An engine that is not open yet."""
    settings = EngineConfig(kind="server", servers=[url], api_key_env=api_key_env, **({"max_num_seqs": 4} | config))
    wanted = Wanted(model="owner/model", sizes={"vocab_size": 320}, transport="gloo", max_model_len=1024)
    return ServerEngine(index=1, url=url, config=settings, wanted=wanted)


@asynccontextmanager
async def opened(server: FakeServer, **config: Any) -> AsyncIterator[ServerEngine]:
    """An engine on ``server``, which is started too."""
    async with server.running():
        engine = make_engine(server.url, **config)
        await engine.open()
        try:
            async with asyncio.timeout(DEADLINE_S):
                yield engine
        finally:
            await engine.close()


def decoding(max_tokens: int) -> Decoding:
    """Temperature 1."""
    return Decoding(temperature=1.0, max_tokens=max_tokens, stop_token_ids=[])


def update(version: int) -> WeightUpdate:
    """Of one tensor."""
    return WeightUpdate(version=version, transport="gloo", manifest=[TensorSpec(name="w", dtype="float32", shape=[1])])


async def push(engine: ServerEngine, version: int) -> None:
    """Pause, load, resume."""
    await engine.pause()
    await engine.load(update(version))
    await engine.resume()


async def consume(engine: ServerEngine, max_tokens: int, stream: Stream) -> None:
    """One stream to its end."""
    async with aclosing(engine.generate(PROMPT, decoding(max_tokens))) as chunks:
        await stream.consume(chunks)


# TLS ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 127.0.0.1, signed by itself, with its key in the same file."""
    if shutil.which("openssl") is None:
        pytest.skip("makes a certificate with the command `openssl`, which is not installed")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    options = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=engine", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(path.with_suffix(".key")), "-out", str(path.with_suffix(".crt"))]
    subprocess.run(["openssl", "req", *options, *names, *files], check=True, capture_output=True)
    path.write_text(path.with_suffix(".key").read_text() + path.with_suffix(".crt").read_text())
    return path


def with_tls(certificate: Path) -> FakeServer:
    """A server behind https."""
    server = FakeServer()
    server.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.tls.load_cert_chain(certificate)
    return server


async def test_a_server_behind_https_is_taken_with_a_certificate_that_is_trusted(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``SSL_CERT_FILE`` names its authority; the engine streams and takes weights as without TLS."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with opened(with_tls(certificate)) as engine:
        stream = Stream()
        await consume(engine, 3, stream)
        assert stream.token_ids == [FIRST, FIRST + 1, FIRST + 2]


async def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(certificate: Path) -> None:
    """And not waited for until the start's deadline: it would not pass."""
    server = with_tls(certificate)
    async with asyncio.timeout(DEADLINE_S), server.running():
        engine = make_engine(server.url)
        with pytest.raises(EngineError, match=r"TLS with engine-1 at https://.* failed .*SSL_CERT_FILE"):
            await engine.open()
        await engine.close()
    assert server.calls == []


# What will not do -----------------------------------------------------------------------------------------------------

REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"version": "0.31.2"}, r"runs vLLM 0\.31\.2, and prl needs 0\.32 or newer"),
    ({"is_vllm": False}, r"is no vllm serve process"),
    ({"key": "other"}, r"wants an API key: .* engine\.api_key_env"),
    ({"root": "owner/another"}, r"serves owner/another, and the run trains owner/model"),
    ({"max_model_len": 512}, r"room for 512 tokens, and engine\.max_model_len = 1024: .*--max-model-len 1024"),
    ({"has_dev_mode": False}, r"VLLM_SERVER_DEV_MODE=1"),
    ({"has_generate": False}, r"--tokens-only"),
    ({"engine": None}, r"cannot receive weights: start it with --weight-transfer-config '\{\"backend\": \"gloo\"\}'"),
    ({"engine": "NCCLWeightTransferEngine"}, r"receives weights over nccl, and the run sends them over gloo"),
    ({"vocab_size": 300}, r"serves another model than the run trains: its model has vocab_size 300, not 320\."),
    ({"logprobs_are_raw": True}, r"--logprobs-mode processed_logprobs"),
]


@pytest.mark.parametrize(("started", "message"), REFUSALS)
async def test_server_that_will_not_do_is_told_in_one_line(started: dict[str, Any], message: str) -> None:
    """Each way a server can be started wrong is one line that has its address and what to change."""
    server = FakeServer()
    for name, value in started.items():
        setattr(server, name, value)
    async with server.running():
        engine = make_engine(server.url)
        with pytest.raises(EngineError, match=message) as told:
            await engine.open()
        await engine.close()
        assert f"engine-1 at {server.url}" in str(told.value)
        assert "\n" not in str(told.value)


async def test_wrong_key_is_told_apart_from_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that the server refuses, and a variable that is not set, each name the variable and never the key."""
    server = FakeServer()
    server.key = "right"
    async with server.running():
        engine = make_engine(server.url, api_key_env=KEY_VARIABLE)
        with pytest.raises(EngineError, match=f"api_key_env = '{KEY_VARIABLE}', and that environment variable is not"):
            await engine.open()
        monkeypatch.setenv(KEY_VARIABLE, "wrong-one")
        engine = make_engine(server.url, api_key_env=KEY_VARIABLE)
        with pytest.raises(EngineError, match=f"refused the API key in {KEY_VARIABLE}") as told:
            await engine.open()
        assert "wrong-one" not in str(told.value)
        monkeypatch.setenv(KEY_VARIABLE, "right")
        engine = make_engine(server.url, api_key_env=KEY_VARIABLE)
        await engine.open()
        await engine.close()


async def test_address_where_nobody_answers() -> None:
    """A port that nobody listens on is waited for until ``engine.start_timeout_s``; a name of no host is not."""
    port = free_port("127.0.0.1")
    with pytest.raises(
        EngineError, match=rf"nobody answered .*127\.0\.0\.1:{port} within engine\.start_timeout_s = 0\.2"
    ):
        await make_engine(f"http://127.0.0.1:{port}", start_timeout_s=0.2).open()
    with pytest.raises(EngineError, match=r"nobody answers at the address of engine-1 at http://no-such-host\.invalid"):
        await make_engine("http://no-such-host.invalid:1").open()


async def test_server_that_starts_is_waited_for() -> None:
    """An engine opens as soon as its server listens, and takes the workers of all its ranks into the weight group."""
    server = FakeServer()
    async with server.running():
        url = server.url
    engine = make_engine(url)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(engine.open())
        await asyncio.sleep(0)
        await server.start()
        await opening
    assert engine.num_workers == 2
    await engine.close()
    await server.stop()


async def test_the_time_of_every_open_stream_is_counted() -> None:
    """What is in flight on a server is told as that on any engine: two streams side by side count twice."""
    server, streams = FakeServer(), [Stream(), Stream()]
    async with opened(server) as engine:
        async with asyncio.TaskGroup() as tasks:
            for stream in streams:
                tasks.create_task(consume(engine, 3, stream))
            await server.allow(1)
            for stream in streams:
                await stream.has(1)
            await server.allow(3)
        told = engine.statistics()
        assert told.stream_s > told.busy_s > 0


# Versions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [True, False])
async def test_versions_are_the_server_s(early: bool) -> None:
    """Each token of a stream that lives through an update has the version that the server names for it.

    A server with prl's plug-in names it at once. Without it, what comes after the update waits for the stream's end,
    and chunks without tokens say that the stream moves.
    """
    server, stream = FakeServer(), Stream()
    server.names_versions_early = early
    async with opened(server) as engine, asyncio.TaskGroup() as tasks:
        await server.allow(2)
        tasks.create_task(consume(engine, 5, stream))
        await stream.has(2)
        await push(engine, 1)
        await server.allow(4)
        if early:
            await stream.has(4)
        while len(stream.chunks) < 4:  # noqa: ASYNC110 -- a chunk without tokens is no news of the stream's
            await asyncio.sleep(0.01)
        assert stream.versions == [0, 0, 1, 1] if early else [0, 0]
        await server.allow(5)
    assert stream.token_ids == [FIRST + number for number in range(5)]
    assert stream.versions == [0, 0, 1, 1, 1]
    assert stream.chunks[-1].finish == "length"


async def test_request_that_sampled_nothing_is_submitted_again() -> None:
    """A request without a token at a load goes to the server anew, under the salt of the new weights."""
    server, stream = FakeServer(), Stream()
    async with opened(server) as engine, asyncio.TaskGroup() as tasks:
        await server.allow(0)
        first = len(server.salts)
        tasks.create_task(consume(engine, 2, stream))
        await server.until(lambda: len(server.salts) > first)
        await push(engine, 1)
        await server.until(lambda: len(server.salts) > first + 1)
        await server.allow(2)
    assert stream.versions == [1, 1]
    assert server.salts[first] != server.salts[first + 1]
    assert server.salts[first].rpartition("-")[0] == server.salts[first + 1].rpartition("-")[0]


async def test_an_update_that_somebody_left_open_is_closed() -> None:
    """A run that was killed between two calls does not keep the next from loading."""
    server = FakeServer()
    async with opened(server) as engine:
        server.is_update_open = True
        await push(engine, 1)
        assert (engine.statistics().version, server.is_update_open) == (1, False)


async def test_failed_load_is_a_sync_error_that_has_the_servers_words() -> None:
    """What the server says of a load that failed stands in the error; afterwards it refuses until one succeeds."""
    server = FakeServer()
    async with opened(server) as engine:
        await engine.pause()
        server.engine, group = (
            None,
            WeightGroup(transport="gloo", address="127.0.0.1", port=1, world_size=3, timeout_s=5),
        )
        with pytest.raises(WeightSyncError, match=r"could not join the weight group: .* not configured"):
            await engine.connect(group, 1)
        server.has_dev_mode = False
        with pytest.raises(WeightSyncError, match="could not load version 1"):
            await engine.load(update(1))
        server.has_dev_mode = True
        with pytest.raises(EngineError, match="serves nothing until a load succeeds"):
            await consume(engine, 1, Stream())
        await push(engine, 1)
        await consume(engine, 1, Stream())


# Data-parallel ranks --------------------------------------------------------------------------------------------------


async def test_every_data_parallel_rank_is_counted_and_proves_its_weights() -> None:
    """The workers of all are in the weight group; a score is of each, and the pool tells them apart."""
    server = FakeServer()
    server.num_ranks = server.num_ranks_here = 2
    server.score_of = [-1.0, -2.0]
    async with opened(server) as engine:
        assert engine.num_workers == 4
        assert await engine.score(PROMPT) == [-1.0, -1.0, -2.0, -2.0]
        pool = UpdatedEngines([engine], EngineConfig(), gate_timeout_s=5)
        scores = await pool.score(PROMPT)
        assert scores == {
            "engine-1, data-parallel rank 0,": [-1.0, -1.0],
            "engine-1, data-parallel rank 1,": [-2.0, -2.0],
        }
        with pytest.raises(WeightSyncError, match=r"^engine-1, data-parallel rank 1, does not serve the"):
            Proof(PROMPT, 0.1, max).judge(1, [-1.0, -1.0], scores)


async def test_ranks_behind_several_addresses_are_refused() -> None:
    """Each would be taken for all of them, and the weight group would never be complete."""
    server = FakeServer()
    server.num_ranks = 2
    async with server.running():
        engine = make_engine(server.url)
        with pytest.raises(EngineError, match=r"one of several addresses of 2 .* without --data-parallel-external-lb"):
            await engine.open()
        await engine.close()


async def test_ranks_that_are_met_between_two_versions_are_asked_again() -> None:
    """A server that says that they do not agree is no dead one where they took up a version meanwhile."""
    server, answered = FakeServer(), asyncio.Event()
    async with opened(server) as engine, asyncio.TaskGroup() as tasks:
        server.disagrees = answered
        checking = tasks.create_task(engine._check())
        await server.until(lambda: server.disagrees is None)
        await push(engine, 1)
        answered.set()
        await checking
        assert not engine.statistics().dead
        server.disagrees = answered
        await engine._check()
        assert engine.statistics().dead


# Deaths ---------------------------------------------------------------------------------------------------------------


async def test_server_that_was_started_again_is_dead() -> None:
    """A server with weights of somebody else is no engine of this run: streams end, and ``failed`` says why."""
    server, stream = FakeServer(), Stream()
    async with opened(server) as engine:
        await server.allow(1)

        async def consume_until_dead() -> None:
            with pytest.raises(EngineDeadError, match="serves the weights of somebody else"):
                await consume(engine, 5, stream)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consume_until_dead())
            await stream.has(1)
            server.label = "default"
            await server.allow(5)
        assert "it was started again, or another run uses it" in await engine.failed()
        assert engine.statistics().dead
        assert stream.versions == [0]


async def test_idle_server_that_was_started_again_is_noticed() -> None:
    """Nobody need stream for that: the watch asks."""
    server = FakeServer()
    async with opened(server) as engine:
        server.label = "default"
        assert "somebody else" in await engine.failed()
        with pytest.raises(EngineDeadError):
            await engine.pause()


async def test_broken_connection_of_one_stream_is_not_a_death() -> None:
    """The stream goes on elsewhere, behind its tokens; the engine serves on."""
    server, stream = FakeServer(), Stream()
    async with opened(server) as engine:
        await server.allow(1)

        async def consume_until_broken() -> None:
            with pytest.raises(EngineStalledError, match="broke a stream"):
                await consume(engine, 5, stream)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consume_until_broken())
            await stream.has(1)
            server.break_streams()
        await server.allow(5)
        whole = Stream()
        await consume(engine, 5, whole)
        assert len(whole.token_ids) == 5
        assert not engine.statistics().dead


async def test_closed_streams_leave_the_server() -> None:
    """A stream that is closed early ends its request; one that waits for room never makes one."""
    server = FakeServer()
    async with opened(server, max_num_seqs=1) as engine:
        await server.allow(1)
        async with aclosing(engine.generate(PROMPT, decoding(5))) as chunks:
            await anext(chunks)
            async with aclosing(engine.generate(PROMPT, decoding(5))) as waits, asyncio.timeout(DEADLINE_S):
                task: asyncio.Task[TokenChunk] = asyncio.ensure_future(anext(waits))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            assert engine.statistics().running == 1
        await server.until(lambda: server.open_streams == 0)
        assert engine.statistics().running == 0


async def test_server_that_a_killed_run_left_paused_goes_on() -> None:
    """It is claimed, resumed, and only then asked to sample."""
    server = FakeServer()
    server.paused, server.label = True, "somebody/41"
    async with opened(server):
        assert (server.paused, server.label.endswith("/0")) == (False, True)
        assert server.calls.index("/resume") < server.calls.index("/inference/v1/generate")


async def test_server_is_let_go_as_it_was_found() -> None:
    """After the run the server is not paused, and in no weight group."""
    server = FakeServer()
    async with opened(server) as engine:
        await engine.pause()
    assert not server.paused
    assert server.calls[-2:] == ["/shutdown_weight_transfer_engine", "/resume"]


async def test_seat_of_a_server_that_was_away_serves_again_after_a_load() -> None:
    """A server that goes is lost at once; when it is back it is claimed anew, and gets no stream before a load."""
    server = FakeServer()
    async with server.running():
        places = [server.url]
        engines = [make_engine(server.url, start_timeout_s=5)]
        seats = Seats(engines, EngineConfig(), lambda _, place: make_engine(str(place), start_timeout_s=5), places)
        lives = Lives(seats, Quorum(seats, EngineConfig()), EngineConfig())
        await lives.open_first(engines[0])
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(lives.failed())
            await server.stop()
            while seats.all[0].state != "lost":
                await seats.changed.wait()
            await server.start()
            await seats.newcomer()
            seat = seats.all[0]
            assert (seat.serves, seat.num_restarts, seat.status(0).address) == (False, 1, server.url)
            seats.have_joined([seat])
            await push(seat.engine, 7)  # type: ignore[arg-type]
            seats.have_loaded([seat], 7)
            assert seat.serves
            assert server.label.endswith("/7")
            keeping.cancel()
        await lives.close()


# The configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("http://host:8000", None),
        ("https://host/behind/a/path", None),
        ("host:8000", "is no address of a server"),
        ("http://:8000", "is no address of a server"),
        ("http://host:99999", "is no address"),
        ("http://me:secret@host:8000", "holds more than host, port and path"),
        ("http://host:8000?key=secret", "holds more than host, port and path"),
    ],
)
def test_addresses(address: str, problem: str | None) -> None:
    """An address has a scheme and a host; a key in it is refused and not repeated."""
    found = servers.address_problem(address)
    assert (found is None) == (problem is None)
    assert problem is None or problem in (found or "")
    assert "secret" not in (found or "")


async def test_check_asks_every_server() -> None:
    """``--check`` has an answer of each; those that will not do are told together, and nothing is claimed."""
    good, bad = FakeServer(), FakeServer()
    bad.version = "0.30.0"
    async with good.running(), bad.running():
        model = "builtin:tiny-math"
        config = Config(model=model, engine=EngineConfig(kind="server", servers=[good.url]))
        (facts,) = await asyncio.to_thread(servers.ask_all, config, "owner/model", "gloo")
        assert (facts.version, facts.num_workers, facts.names_versions) == ("0.32.0", 2, True)
        assert good.label == "default"
        config = Config(model=model, engine=EngineConfig(kind="server", servers=[good.url, bad.url, bad.url + "/x"]))
        with pytest.raises(
            ConfigError, match=rf"^engine-1 at {bad.url} runs vLLM 0\.30\.0.*\nengine-2 at {bad.url}/x "
        ):
            await asyncio.to_thread(servers.ask_all, config, "owner/model", "gloo")
