"""Which engine and which transport a configuration means, and the cores of each engine."""

from __future__ import annotations

import importlib.util
import platform
import sys

import msgspec
import pytest

from prl import machinery
from prl.config import Config, EngineConfig, TrainerConfig
from prl.config_lora import LoraConfig

CONFIG = Config(model="builtin:tiny-math", engine=EngineConfig(count=2), trainer=TrainerConfig(num_ranks=2))


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="the lock has vLLM for Linux on x86-64 only"
)
def test_vllm_is_there_where_the_lock_has_it() -> None:
    """The engine tests skip where vLLM is missing; where it should be there they must not."""
    assert importlib.util.find_spec("vllm") is not None


def test_auto_says_which_engine_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """``engine.kind = "auto"`` takes vLLM where it is installed, transformers elsewhere, and says so."""
    monkeypatch.setattr(machinery, "installed", lambda package: package == "vllm")
    assert machinery.engine_kind(CONFIG) == ("vllm", "vLLM is installed")
    monkeypatch.setattr(machinery, "installed", lambda _: False)
    kind, why = machinery.engine_kind(CONFIG)
    assert kind == "transformers"
    assert "transformers' continuous batching generates" in why


@pytest.mark.parametrize(("num_gpus", "transport"), [(0, "gloo"), (1, "gloo"), (3, "gloo"), (4, "nccl"), (8, "nccl")])
def test_nccl_needs_a_gpu_for_each_worker(monkeypatch: pytest.MonkeyPatch, num_gpus: int, transport: str) -> None:
    """``auto`` takes nccl where two engines and two ranks have a GPU each, and gloo elsewhere."""
    monkeypatch.setattr(machinery, "installed", lambda _: True)
    monkeypatch.setattr(machinery, "gpu_memory", lambda: [80 << 30] * num_gpus)
    assert machinery.transport_of(CONFIG) == transport


@pytest.mark.parametrize(
    ("num_gpus", "device", "transport"), [(2, "cuda", "nccl"), (2, "auto", "gloo"), (1, "cuda", "gloo")]
)
def test_ranks_elsewhere_take_no_gpu_here(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, device: str, transport: str
) -> None:
    """Two engines need two GPUs here; whether the ranks have any is what the configuration says."""
    monkeypatch.setattr(machinery, "installed", lambda _: True)
    monkeypatch.setattr(machinery, "gpu_memory", lambda: [80 << 30] * num_gpus)
    trainer = msgspec.structs.replace(CONFIG.trainer, launch="external", device=device)
    assert machinery.transport_of(msgspec.structs.replace(CONFIG, trainer=trainer)) == transport


def test_the_transformers_engine_takes_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without vLLM there is no nccl backend, however many GPUs there are."""
    monkeypatch.setattr(machinery, "installed", lambda _: False)
    monkeypatch.setattr(machinery, "gpu_memory", lambda: [80 << 30] * 8)
    assert machinery.transport_of(CONFIG) == "gloo"


def test_adapters_alone_take_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only prl's own receivers can merge them; merged weights take what there is."""
    monkeypatch.setattr(machinery, "installed", lambda _: True)
    monkeypatch.setattr(machinery, "gpu_memory", lambda: [80 << 30] * 8)
    for publish, transport in (("merged", "nccl"), ("adapters", "gloo")):
        lora = LoraConfig(rank=8, publish=publish)  # type: ignore[arg-type]
        assert machinery.transport_of(msgspec.structs.replace(CONFIG, lora=lora)) == transport


def test_engines_get_cores_of_their_own_where_there_are_enough() -> None:
    """Controller and ranks keep theirs, the rest is shared evenly; on two cores the kernel decides."""
    assert machinery.engine_cores(CONFIG, list(range(2))) == [None, None]
    assert machinery.engine_cores(CONFIG, list(range(4))) == [None, None]
    assert machinery.engine_cores(CONFIG, list(range(8))) == [[3, 4], [5, 6]]
