from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

torch: Any = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402 -- after the check for torch

from prl.errors import WeightSyncError  # noqa: E402
from prl.trainer.model import load_policy  # noqa: E402
from prl.trainer.publish import Publisher, gathered, manifest_of  # noqa: E402
from prl.transfer import GlooGroup  # noqa: E402
from prl.types import TensorSpec, WeightGroup, WeightUpdate  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_rank")
CPU = torch.device("cpu")


def _group(world_size: int = 2, timeout_s: float = 10.0) -> WeightGroup:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return WeightGroup(transport="gloo", address="127.0.0.1", port=port, world_size=world_size, timeout_s=timeout_s)


def _update(manifest: list[TensorSpec]) -> WeightUpdate:
    return WeightUpdate(version=3, transport="gloo", manifest=manifest)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_engine_gets_every_tensor_in_its_dtype(models: dict[str, Path], dtype: str) -> None:
    """A receiver in the weight group gets what the checkpoint holds, cast to the engine's dtype, in manifest order."""
    policy = load_policy(str(models["untied"]), CPU, torch.float32)
    publisher = Publisher(policy.tensors, getattr(torch, dtype), 0)
    group = _group()

    def receive() -> list[tuple[str, Any]]:
        with contextlib.closing(GlooGroup.join(group, 1)) as member:
            return list(member.receive(3, publisher.manifest))

    with ThreadPoolExecutor(1) as pool, contextlib.closing(publisher):
        received = pool.submit(receive)
        publisher.connect(group)
        publisher.send(_update(publisher.manifest))
        got = received.result(timeout=20)
    stored = load_file(models["untied"] / "model.safetensors")
    assert [name for name, _ in got] == [spec.name for spec in publisher.manifest]
    assert {name for name, _ in got} == set(stored)
    assert all(torch.equal(tensor, stored[name].to(getattr(torch, dtype))) for name, tensor in got)


def test_integer_buffers_keep_their_type() -> None:
    """The manifest casts floating tensors only, and what is gathered agrees with it."""
    tensors = {"w": torch.ones(2, 3), "counts": torch.arange(2)}
    manifest = manifest_of(tensors, torch.bfloat16)
    assert [(spec.name, spec.dtype, spec.shape) for spec in manifest] == [
        ("w", "bfloat16", [2, 3]),
        ("counts", "int64", [2]),
    ]
    assert [str(tensor.dtype) for _, tensor in gathered(tensors, torch.bfloat16)] == ["torch.bfloat16", "torch.int64"]


def test_tensors_are_gathered_one_at_a_time() -> None:
    """Nothing is gathered before it is asked for."""
    taken: list[str] = []

    class Noted(dict[str, Any]):
        def items(self) -> Any:
            for name, tensor in super().items():
                taken.append(name)
                yield name, tensor

    stream = gathered(Noted(a=torch.ones(1), b=torch.ones(1)), torch.float32)
    next(stream)
    assert taken == ["a"]


def test_another_manifest_is_refused_before_anything_is_sent() -> None:
    """An update that names another dtype or shape is an error that names the first tensor that differs."""
    publisher = Publisher({"a": torch.ones(1), "b": torch.ones(2)}, torch.float32, 0)
    first, second = publisher.manifest
    with pytest.raises(WeightSyncError, match="first at b"):
        publisher.send(_update([first, msgspec.structs.replace(second, dtype="bfloat16")]))
    with pytest.raises(WeightSyncError, match="length"):
        publisher.send(_update([first]))


def test_sending_without_a_group_is_an_error() -> None:
    """Before ``connect`` there is nobody to send to."""
    publisher = Publisher({"a": torch.ones(1)}, torch.float32, 0)
    with pytest.raises(WeightSyncError, match="not connected"):
        publisher.send(_update(publisher.manifest))


def test_an_engine_that_does_not_come_ends_the_wait() -> None:
    """Joining has the group's deadline and says which rank is missing."""
    publisher = Publisher({"a": torch.ones(1)}, torch.float32, 0)
    with pytest.raises(WeightSyncError, match="rank 1"):
        publisher.connect(_group(timeout_s=0.3))
