from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from prl.errors import TrainerError
from prl.trainer.shared_folder import check, witness


def test_a_rank_in_the_same_folder_finds_the_witness(tmp_path: Path) -> None:
    """Nothing is left of it afterwards."""
    with witness(tmp_path) as seen:
        check(seen, "rank 1 on node-2")
    assert list(tmp_path.iterdir()) == []


def test_another_folder_of_the_same_name_does_not_pass(tmp_path: Path) -> None:
    """What a host has there of its own is told apart by the word, and the error says what to do."""
    with witness(tmp_path) as seen:
        other = msgspec.structs.replace(seen, word="of another run")
        with pytest.raises(TrainerError, match=r"rank 1 on node-2 .* is another folder there.*--run-dir") as caught:
            check(other, "rank 1 on node-2", look_s=0)
    assert str(tmp_path) in str(caught.value)


def test_a_host_without_the_folder_is_named(tmp_path: Path) -> None:
    """A run folder on the controller's own disk."""
    (tmp_path / "run").mkdir()
    with witness(tmp_path / "run") as seen:
        gone = msgspec.structs.replace(seen, path=str(tmp_path / "nowhere" / "run" / "x"))
        with pytest.raises(TrainerError, match=r"rank 0 on node-1 .*nowhere/run is not there"):
            check(gone, "rank 0 on node-1", look_s=0)
