"""The processes of a vLLM engine: what is left when a start is given up, and when its core does not move.

What is left of one whose controller is killed: ``test_live_engines.py``.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path

import psutil
import pytest

pytest.importorskip("vllm", reason="the vLLM engine needs vLLM")

from prl.engines.base import Decoding
from prl.engines.vllm import VllmEngine
from prl.errors import EngineDeadError, EngineError, MissingExtraError
from tests.engines.vllm_factory import core_process, host_process, make_engine, sample, tiny_model

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model(tied=True).save_pretrained(folder)
    return folder


def test_missing_vllm_is_named(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where vLLM is not installed, making an engine says which extra to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match="prl-train"):
        make_engine(model_dir, tmp_path)


async def test_start_that_takes_too_long_leaves_nothing(model_dir: Path, tmp_path: Path) -> None:
    """Past ``start_timeout_s`` the start is an error with that limit, and its processes are gone."""
    engine = make_engine(model_dir, tmp_path, start_timeout_s=3.0)
    with pytest.raises(EngineError, match=r"not ready within engine\.start_timeout_s = 3 s"):
        await engine.open()
    assert_gone(engine)


async def test_cancelled_start_leaves_nothing(model_dir: Path, tmp_path: Path) -> None:
    """A start that is cancelled while the core's process comes up takes that process with it."""
    engine = make_engine(model_dir, tmp_path)
    opening = asyncio.ensure_future(engine.open())
    async with asyncio.timeout(60):
        while engine._link._child is None or not host_process(engine).children():  # noqa: ASYNC110 -- told by nobody
            await asyncio.sleep(0.01)
    opening.cancel()
    async with asyncio.timeout(15):
        with pytest.raises(asyncio.CancelledError):
            await opening
    assert_gone(engine)


async def test_core_that_leaves_while_it_starts_ends_the_start(model_dir: Path, tmp_path: Path) -> None:
    """A core that is told to end while it starts ends when it is ready; the start ends with it, not at its deadline."""
    engine = make_engine(model_dir, tmp_path, start_timeout_s=300.0)
    opening = asyncio.ensure_future(engine.open())
    async with asyncio.timeout(240):
        while not is_under_way(engine._log):  # noqa: ASYNC110 -- told by nobody
            await asyncio.sleep(0.02)
        core_process(engine).terminate()
        with pytest.raises(EngineDeadError, match="the core of vLLM ended"):
            await opening
    assert_gone(engine)


async def test_core_that_does_not_move_is_killed(model_dir: Path, tmp_path: Path) -> None:
    """A core that gives no token for engine.token_timeout_s: its streams raise, and host and core are gone."""
    engine = make_engine(model_dir, tmp_path, token_timeout_s=5.0)
    try:
        await engine.open()
        core_process(engine).suspend()
        async with asyncio.timeout(30):
            with pytest.raises(EngineDeadError, match=r"engine\.token_timeout_s = 5 s"):
                await sample(engine, [5, 6], Decoding(temperature=1, max_tokens=100, stop_token_ids=[]))
    finally:
        await engine.close()
    assert_gone(engine)


def is_under_way(log: Path) -> bool:
    """Whether the core says in its log that it starts: by its first line, or a later one where that kind is off."""
    said = log.read_bytes() if log.exists() else b""
    return b"Initializing a V1 LLM engine" in said or b"NUMA binding" in said


def assert_gone(engine: VllmEngine) -> None:
    """No process of the engine's group is left, once the kernel has taken away what was killed."""
    assert engine._link._child is not None
    group = engine._link._child.pid
    left = [process for process in psutil.process_iter() if is_in_group(process, group)]
    assert psutil.wait_procs(left, timeout=10)[1] == []


def is_in_group(process: psutil.Process, group: int) -> bool:
    """Whether a process that still runs is of ``group``."""
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
