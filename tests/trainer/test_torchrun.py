from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from prl.errors import TrainerError
from prl.trainer import launch
from prl.trainer.remote import FsdpTrainer
from prl.trainer.torchrun import Torchrun
from tests.trainer.cases import make_config
from tests.trainer.played import assert_gone


async def test_a_child_that_ends_is_reported_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that dies before any rank connects is an error at once, with its exit code and last words."""
    monkeypatch.setattr(launch, "torchrun_command", lambda _: [sys.executable, "-c", "print('no luck'); exit(3)"])
    with pytest.raises(TrainerError, match=r"(?s)did not start: the trainer .* exited with 3; .*no luck"):
        await FsdpTrainer(make_config(Path("m")), "m", tmp_path, None).open()


async def test_another_world_size_is_refused_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torchrun with another number of ranks ends the start with both numbers, and its processes are gone."""
    one = launch.torchrun_command(1)
    monkeypatch.setattr(launch, "torchrun_command", lambda _: one)
    others = {process.pid for process in psutil.Process().children(recursive=True)}  # of other tests
    trainer = FsdpTrainer(make_config(Path("m"), trainer={"num_ranks": 2}), "m", tmp_path, None)
    with pytest.raises(TrainerError, match=r"rank 0 \(pid \d+ on [^)]+\) of 1 came, but trainer.num_ranks = 2"):
        await trainer.open()
    assert isinstance(trainer._launched, Torchrun)
    assert trainer._launched.child is not None
    ours = {process.pid for process in psutil.Process().children(recursive=True)} - others
    await assert_gone([trainer._launched.child.pid, *ours], 3)
