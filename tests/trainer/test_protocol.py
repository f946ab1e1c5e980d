from __future__ import annotations

import typing
from pathlib import Path

import msgspec
import pytest

from prl.trainer import protocol
from prl.trainer.base import TrainerReady, TrainReport
from prl.types import TensorSpec, WeightGroup, WeightUpdate
from tests.trainer.cases import make_batch, make_config

SPEC = TensorSpec(name="w", dtype="float32", shape=[2, 3])
REPORT = TrainReport(
    step=1,
    loss=float("inf"),
    grad_norm=1.0,
    lr=1e-6,
    ess=1.0,
    kl_behaviour=0.0,
    clip_frac=0.0,
    entropy=1.0,
    tokens_trained=3,
    skipped=True,
    train_s=0.1,
)
MESSAGES = [
    protocol.Hello(rank=0, world_size=2, pid=7, token="t"),
    protocol.Beat(),
    protocol.Ready(ready=TrainerReady(step=0, manifest=[SPEC], state={"a": [1]}, num_parameters=6, memory_bytes=1)),
    protocol.Trained(report=REPORT),
    protocol.Scored(logprobs=[-1.0]),
    protocol.Written(errno=28, error="No space left on device"),
    protocol.Meeting(address="10.0.0.2", port=4000),
    protocol.Rescored(logprobs=[[-1.0], []]),
    protocol.Done(),
    protocol.Failed(error="e", traceback=""),
    protocol.Setup(config=make_config(Path("m")), model="m", resume=None),
    protocol.Refused(reason="r"),
    protocol.Meet(hosts=["10.0.0.9"]),
    protocol.Connect(group=WeightGroup(transport="gloo", address="a", port=1, world_size=2, timeout_s=1.0)),
    protocol.Train(step=0, microbatches=[make_batch(0, 1).samples, []], num_sequences=4),
    protocol.Publish(update=WeightUpdate(version=1, transport="gloo", manifest=[SPEC])),
    protocol.Score(token_ids=[1, 2]),
    protocol.Rescore(sequences=[[1, 2], [3]], temperature=0.5, dtype="bfloat16"),
    protocol.Nudge(names=["w"], scale=0.1),
    protocol.Save(folder="f", state={"cursor": 1}),
    protocol.Export(folder="f"),
    protocol.Shutdown(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_survives_the_wire(message: msgspec.Struct) -> None:
    """Encoded and decoded as the union that its receiver expects, a message is itself again."""
    union = protocol.FromRank if isinstance(message, protocol.FromRank) else protocol.FromController
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=union) == message


def test_no_message_is_left_out() -> None:
    """The list above holds every message of both directions."""
    known = set(typing.get_args(protocol.FromRank)) | set(typing.get_args(protocol.FromController))
    assert {type(message) for message in MESSAGES} == known
