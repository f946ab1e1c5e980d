"""Which part stands for which word of the configuration, and what machine it needs."""

from __future__ import annotations

import importlib.util
import platform
import sys

import msgspec
import pytest

import prl
from prl import parts
from prl.config import Config, EngineConfig, PipelineConfig, RewardConfig, TrainerConfig
from prl.config_environment import EnvironmentConfig
from prl.config_lora import LoraConfig
from prl.errors import ConfigError

CONFIG = Config(model="builtin:tiny-math", engine=EngineConfig(count=2), trainer=TrainerConfig(num_ranks=2))


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="the lock has vLLM for Linux on x86-64 only"
)
def test_vllm_is_there_where_the_lock_has_it() -> None:
    """The engine tests skip where vLLM is missing; where it should be there they must not."""
    assert importlib.util.find_spec("vllm") is not None


def test_auto_says_which_engine_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """``engine.kind = "auto"`` takes vLLM where it is installed, transformers elsewhere, and says so."""
    monkeypatch.setattr(parts, "installed", lambda package: package == "vllm")
    assert parts.engine_kind(CONFIG) == ("vllm", "vLLM is installed")
    monkeypatch.setattr(parts, "installed", lambda _: False)
    kind, why = parts.engine_kind(CONFIG)
    assert kind == "transformers"
    assert "transformers' continuous batching generates" in why


@pytest.mark.parametrize(("num_gpus", "transport"), [(0, "gloo"), (1, "gloo"), (3, "gloo"), (4, "nccl"), (8, "nccl")])
def test_nccl_needs_a_gpu_for_each_worker(monkeypatch: pytest.MonkeyPatch, num_gpus: int, transport: str) -> None:
    """``auto`` takes nccl where two engines and two ranks have a GPU each, and gloo elsewhere."""
    monkeypatch.setattr(parts, "installed", lambda _: True)
    monkeypatch.setattr(parts, "gpu_memory", lambda: [80 << 30] * num_gpus)
    assert parts.transport_of(CONFIG) == transport


@pytest.mark.parametrize(
    ("num_gpus", "device", "transport"), [(2, "cuda", "nccl"), (2, "auto", "gloo"), (1, "cuda", "gloo")]
)
def test_ranks_elsewhere_take_no_gpu_here(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, device: str, transport: str
) -> None:
    """Two engines need two GPUs here; whether the ranks have any is what the configuration says."""
    monkeypatch.setattr(parts, "installed", lambda _: True)
    monkeypatch.setattr(parts, "gpu_memory", lambda: [80 << 30] * num_gpus)
    trainer = msgspec.structs.replace(CONFIG.trainer, launch="external", device=device)
    assert parts.transport_of(msgspec.structs.replace(CONFIG, trainer=trainer)) == transport


def test_the_transformers_engine_takes_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without vLLM there is no nccl backend, however many GPUs there are."""
    monkeypatch.setattr(parts, "installed", lambda _: False)
    monkeypatch.setattr(parts, "gpu_memory", lambda: [80 << 30] * 8)
    assert parts.transport_of(CONFIG) == "gloo"


def test_adapters_alone_take_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only prl's own receivers can merge them; merged weights take what there is."""
    monkeypatch.setattr(parts, "installed", lambda _: True)
    monkeypatch.setattr(parts, "gpu_memory", lambda: [80 << 30] * 8)
    for publish, transport in (("merged", "nccl"), ("adapters", "gloo")):
        lora = LoraConfig(rank=8, publish=publish)  # type: ignore[arg-type]
        assert parts.transport_of(msgspec.structs.replace(CONFIG, lora=lora)) == transport


def test_engines_get_cores_of_their_own_where_there_are_enough() -> None:
    """Controller and ranks keep theirs, the rest is shared evenly; on two cores the kernel decides."""
    assert parts.engine_cores(CONFIG, list(range(2))) == [None, None]
    assert parts.engine_cores(CONFIG, list(range(4))) == [None, None]
    assert parts.engine_cores(CONFIG, list(range(8))) == [[3, 4], [5, 6]]


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_the_buffer_feeds_every_bound(max_lag: int) -> None:
    """There are always slots for the batch that is trained: k + 1 batches of them."""
    pipeline = PipelineConfig(max_lag=max_lag, groups_per_step=5)
    buffer = parts.make_buffer(msgspec.structs.replace(CONFIG, pipeline=pipeline))
    assert buffer.num_slots == 5 * (max_lag + 1)


@prl.environment("test-gives-parts", parts=("math", "style"))
async def gives_parts(session: prl.Session, prompt: prl.Prompt) -> None:
    """Says which parts of a reward it gives."""


@prl.environment("test-gives-one")
async def gives_one(session: prl.Session, prompt: prl.Prompt) -> float:
    """Gives its reward under no name of its own."""
    return 1.0


@pytest.mark.parametrize(
    ("environment", "rewards", "part"),
    [
        ("test-gives-parts", ["math", "answer"], "math"),
        ("test-gives-parts", ["answer", "format"], None),
        ("test-gives-parts", ["environment"], None),
        ("test-gives-one", ["answer", "environment"], "environment"),
        ("guess", ["found"], "found"),
    ],
)
def test_a_part_named_like_a_reward_is_found_before_anything_starts(
    environment: str, rewards: list[str], part: str | None
) -> None:
    """One of both would be lost: what an environment says it gives, or has no name for, is no reward's name."""
    config = msgspec.structs.replace(
        CONFIG,
        environment=EnvironmentConfig(name=environment),
        rewards=[RewardConfig(name=name) for name in rewards],
    )
    if part is None:
        assert parts.environment_of(config) is not None
        return
    message = f"environment.name = '{environment}' gives a part of the score that is named '{part}'"
    with pytest.raises(ConfigError, match=message):
        parts.environment_of(config)
