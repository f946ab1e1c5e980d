"""The processes of a vLLM engine: what is left when a start is given up, and when the controller is killed."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import multiprocessing.spawn
import os
import subprocess
import sys
import warnings
from pathlib import Path

import psutil
import pytest

pytest.importorskip("vllm", reason="the vLLM engine needs vLLM")

from prl.engines.vllm import VllmEngine
from prl.engines.vllm_process import captured_environment
from prl.errors import EngineError, MissingExtraError
from tests.engines.vllm_factory import core_pid, make_engine, tiny_model

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


def test_environment_is_given_back() -> None:
    """What is written to the environment in between is handed over and undone: new names and changed ones."""
    os.environ["PRL_TEST_CHANGED"] = "before"
    try:
        with captured_environment() as changed:
            os.environ["PRL_TEST_CHANGED"] = "after"
            os.environ["PRL_TEST_NEW"] = "new"
        assert changed == {"PRL_TEST_CHANGED": "after", "PRL_TEST_NEW": "new"}
        assert os.environ["PRL_TEST_CHANGED"] == "before"
        assert "PRL_TEST_NEW" not in os.environ
    finally:
        del os.environ["PRL_TEST_CHANGED"]


async def test_start_that_takes_too_long_leaves_nothing(model_dir: Path, tmp_path: Path) -> None:
    """Past ``start_timeout_s`` the start is an error with that limit, and its processes are gone."""
    with warnings.catch_warnings(action="ignore"):  # vLLM's imports, and what it drops when a start fails
        import vllm.v1.engine.async_llm  # noqa: F401 -- so that the time goes into the core's start

        engine = make_engine(model_dir, tmp_path, start_timeout_s=4.0)
        with pytest.raises(EngineError, match=r"not ready within engine\.start_timeout_s = 4 s"):
            await engine.open()
        gc.collect()
    assert_gone(engine)


async def test_cancelled_start_leaves_nothing(model_dir: Path, tmp_path: Path) -> None:
    """A start that is cancelled while the core's process comes up takes that process with it."""
    with warnings.catch_warnings(action="ignore"):  # vLLM's imports, and what it drops when a start fails
        engine = make_engine(model_dir, tmp_path)
        opening = asyncio.ensure_future(engine.open())
        async with asyncio.timeout(60):
            while engine._core._launch is None or engine._core._launch.pid is None:  # noqa: ASYNC110 -- set in a thread
                await asyncio.sleep(0.01)
        opening.cancel()
        async with asyncio.timeout(15):
            with pytest.raises(asyncio.CancelledError):
                await opening
        gc.collect()
    assert_gone(engine)


def assert_gone(engine: VllmEngine) -> None:
    """No process of the engine's group runs, and the interpreter that multiprocessing starts is the real one again."""
    assert not [p for p in psutil.process_iter() if is_in_group(p, core_pid(engine))]
    assert multiprocessing.spawn.get_executable() == os.fsencode(sys.executable)


def is_in_group(process: psutil.Process, group: int) -> bool:
    """Whether a process that still runs is of ``group``."""
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def test_nothing_outlives_a_killed_controller(model_dir: Path, tmp_path: Path) -> None:
    """SIGKILL of the controller's process: every process of its engine, trackers too, is gone within 10 seconds."""
    command = [sys.executable, "-m", "tests.engines.vllm_controller", str(model_dir), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as controller:
        assert controller.stdout is not None
        try:
            core = psutil.Process(int(controller.stdout.readline()))
            family = psutil.Process(controller.pid).children(recursive=True)
        finally:
            controller.kill()
        assert core in family
        assert len(family) >= 2, "the core and multiprocessing's tracker"
        assert psutil.wait_procs(family, timeout=10)[1] == []
