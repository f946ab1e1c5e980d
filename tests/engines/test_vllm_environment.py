from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from prl.config import EngineConfig
from prl.engines import vllm_environment
from prl.engines.vllm_environment import host_environment, is_cpu_build


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """A Linux machine with this version of the distribution ``vllm``, or with one of another name."""

    def found(name: str) -> str:
        if version is None:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr(vllm_environment, "version", found)
    monkeypatch.setattr(vllm_environment.sys, "platform", "linux")


@pytest.mark.parametrize(("version", "expected"), [("0.32.0", False), ("0.32.0+cpu", True), (None, True)])
def test_build_is_told_from_the_version(monkeypatch: pytest.MonkeyPatch, version: str | None, expected: bool) -> None:
    """VLLM's own rule: a CPU build says so in its version, or is a distribution of another name."""
    installed(monkeypatch, version)
    assert is_cpu_build() is expected


def test_cores_are_split_over_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker is bound to its share of the engine's cores, and to none where the engine has none."""
    installed(monkeypatch, None)
    config = EngineConfig(tensor_parallel_size=2)
    assert host_environment(config, [2, 3, 4, 5])["VLLM_CPU_OMP_THREADS_BIND"] == "2,3|4,5"
    assert host_environment(config, None)["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_gpu_build_keeps_its_threads_and_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """What spares a CPU a compilation is not said to a GPU build."""
    installed(monkeypatch, "0.32.0")
    assert not {"OMP_NUM_THREADS", "TORCHDYNAMO_DISABLE"} & host_environment(EngineConfig(), None).keys()
