"""The controller's half of a hosted engine, with a host that has no model. The contract tests run it with real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from prl.config import EngineConfig
from prl.engines.base import Decoding
from prl.engines.host_protocol import Start
from prl.engines.hosted import HostedEngine
from prl.errors import EngineDeadError, EngineError, WeightSyncError
from prl.types import TokenChunk, WeightGroup, WeightUpdate
from tests.engines.fake_host import END, KEEP_SILENT, REFUSE, SERVE, VERSION

DEADLINE_S = 20.0


@asynccontextmanager
async def opened(folder: Path, **config: Any) -> AsyncIterator[HostedEngine]:
    """An engine with the fake host."""
    start = Start(
        model="",
        config=EngineConfig(**{"max_model_len": 16} | config),
        transport="gloo",
        seed=0,
        num_threads=1,
        devices=[0],
    )
    engine = HostedEngine(
        name="engine-0", module="tests.engines.fake_host", environment={}, start=start, log_dir=folder
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            await engine.open()
            yield engine
    finally:
        await engine.close()


async def sampled(engine: HostedEngine, *prompt: int) -> list[TokenChunk]:
    """One stream to its end."""
    decoding = Decoding(temperature=1, max_tokens=9, stop_token_ids=[])
    async with aclosing(engine.generate(list(prompt), decoding)) as chunks:
        return [chunk async for chunk in chunks]


async def test_stream_is_what_the_host_sent(tmp_path: Path) -> None:
    """Tokens come in order, with their log-probabilities and version, one finish last; the tokens are counted."""
    async with opened(tmp_path) as engine:
        chunks = await sampled(engine, SERVE, 11, 12, 13, 14)
        assert [token for chunk in chunks for token in chunk.token_ids] == [14, 13, 12, 11, SERVE]
        assert {chunk.version for chunk in chunks} == {VERSION}
        assert [chunk.finish for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
        assert engine.statistics().tokens_generated == 5
        assert engine.statistics().running == 0


async def test_failed_stream_is_one_streams_error(tmp_path: Path) -> None:
    """What the host says of a stream it cannot serve is that stream's EngineError; others are served on."""
    async with opened(tmp_path) as engine:
        with pytest.raises(EngineError, match="engine-0: will not"):
            await sampled(engine, REFUSE)
        assert len(await sampled(engine, SERVE)) == 1


async def test_requests_that_cannot_be_served_do_not_reach_the_host(tmp_path: Path) -> None:
    """No tokens, unknown tokens and a prompt without room are refused here."""
    async with opened(tmp_path) as engine:
        for prompt, words in [([], "no tokens"), ([100], "tokenizer"), ([SERVE] * 16, "no room")]:
            with pytest.raises(EngineError, match=words):
                await sampled(engine, *prompt)


async def test_failed_calls_are_told_as_what_they_are(tmp_path: Path) -> None:
    """What a host could not do is an EngineError, and a WeightSyncError where weights are concerned."""
    group = WeightGroup(transport="gloo", address="127.0.0.1", port=1, world_size=2, timeout_s=1)
    async with opened(tmp_path) as engine:
        with pytest.raises(EngineError, match="engine-0: cannot score"):
            await engine.score([SERVE, 4])
        with pytest.raises(WeightSyncError, match="engine-0: cannot connect"):
            await engine.connect(group, 1)
        with pytest.raises(WeightSyncError, match="over 'gloo', not over 'nccl'"):
            await engine.connect(WeightGroup(transport="nccl", address="", port=1, world_size=2, timeout_s=1), 1)
        with pytest.raises(EngineError, match="must be paused"):
            await engine.load(WeightUpdate(version=1, transport="gloo", manifest=[]))


async def test_host_that_does_not_answer_is_killed(tmp_path: Path) -> None:
    """A pause without an answer within engine.token_timeout_s leaves nobody knowing the state: the host is killed."""
    async with opened(tmp_path, token_timeout_s=0.5) as engine:
        with pytest.raises(EngineDeadError, match=r"did not answer 'pause' within 0\.5 s"):
            await engine.pause()
        assert "pause" in await engine.failed()
        assert engine.statistics().dead


async def test_host_that_gives_no_token_is_killed(tmp_path: Path) -> None:
    """An open stream without a token for engine.token_timeout_s: it raises with that limit and the host's log."""
    async with opened(tmp_path, token_timeout_s=0.5) as engine:
        with pytest.raises(EngineDeadError, match=r"engine\.token_timeout_s = 0\.5 s; last lines of .*engine-0\.log"):
            await sampled(engine, KEEP_SILENT)


async def test_a_bug_in_reading_ends_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong where tokens are taken is an end with that reason, and no wait for who reads no more."""

    def broken(*_: Any) -> None:
        raise KeyError("bug")

    async with opened(tmp_path) as engine:
        monkeypatch.setattr(engine._meter, "count", broken)
        with pytest.raises(EngineDeadError, match=r"reading from its host failed, KeyError\('bug'\)"):
            await sampled(engine, SERVE, 11, 12)
        assert "KeyError" in await engine.failed()


async def test_end_of_the_host_ends_streams_and_calls(tmp_path: Path) -> None:
    """When the host is gone, open streams and what is asked later raise how it ended."""
    async with opened(tmp_path) as engine:
        for prompt in (END, SERVE):
            with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
                await sampled(engine, prompt)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await engine.resume()
