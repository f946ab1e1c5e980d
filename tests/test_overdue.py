"""Waits that only the end of their process ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prl.overdue import ends_process

STANDS = """
import sys, threading, types
from prl.types import WeightGroup

def stands(*_, **__):
    threading.Event().wait()

common = types.ModuleType("vllm.distributed.weight_transfer.nccl_common")
packed = types.ModuleType("vllm.distributed.weight_transfer.packed_tensor")
common.trainer_init = stands if sys.argv[1] == "connect" else (lambda place: object())
packed.packed_nccl_broadcast_producer = stands
above = types.ModuleType("vllm.distributed.weight_transfer")
above.nccl_common, above.packed_tensor = common, packed
for module in (types.ModuleType("vllm"), types.ModuleType("vllm.distributed"), above, common, packed):
    sys.modules[module.__name__] = module

from prl.trainer.publish import NcclSender
group = WeightGroup(transport="nccl", address="127.0.0.1", port=1, world_size=3, timeout_s=0.3)
NcclSender(group).send(7, [], iter(()))
"""


@pytest.mark.parametrize(
    ("at", "what"), [("connect", "meeting 2 engine workers over NCCL"), ("send", "the NCCL broadcast of version 7")]
)
def test_a_collective_without_a_deadline_ends_its_process(at: str, what: str) -> None:
    """Field notes B, a collective waits for ever: its peer never came; the process says what, where, and ends."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", STANDS, at]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert ended.returncode == 1
    last = f"prl: {what} took longer than 0.3 s (weights.timeout_s); nothing else can end it, so this process ends"
    assert ended.stderr.splitlines()[-1] == last
    assert " in stands" in ended.stderr


def test_what_ends_in_time_ends_nothing() -> None:
    """Afterwards no watch is left, also where the body raised."""
    with pytest.raises(KeyError), ends_process(0.05, "a call"):
        raise KeyError
    with ends_process(3600.0, "a call"):
        pass
