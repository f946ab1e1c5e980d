"""One contract, kept by every tracker that is built in, with its real package and without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prl.trackers import state as state_file

ROOT = Path(__file__).parents[2]
TAKES_BACK = {"tensorboard"}


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_run_in_two_parts_is_one_set_of_curves(name: str, tmp_path: Path) -> None:
    """After a resume from an older checkpoint each step is drawn once.

    The configuration and the summary are there; the state file says which run it is.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tests.trackers.read_back", name, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    curves = found["curves"]
    assert found["num_runs"] == 1
    again = 0.25 if name in TAKES_BACK else 0.5  # of the steps that were done twice
    losses = [0.5, 1.5, 2.5, 3 + again, 4 + again, 5.25, 6.25]
    assert [step for step, _ in curves["train/loss"]] == list(range(7))
    assert [value for _, value in curves["train/loss"]] == pytest.approx(losses)
    assert [step for step, _ in curves["eval/reward_mean"]] == [0, 2, 4, 6]
    assert [value for _, value in curves["eval/pass_at_4"]] == [0.75] * 4
    assert [value for _, value in curves["dropped/timeout"]] == [2] * 7
    assert "on_policy/ess" not in curves  # it was never a number
    assert str(found["config"]["engine.count"]) in {"2", "2.0"}
    assert found["config"]["advantage.name"] == "leave_one_out"
    assert found["summary"]["goodput"] == 0.75
    assert str(found["config"]["run.num_steps"]) in {"4", "4.0"}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if b"sesame-open" in path.read_bytes()] == []
    state = state_file.read(tmp_path, name)
    assert state.id
    assert state.sent == {"metrics.jsonl": 6, "evaluations.jsonl": 6}
    assert (state.num_dropped, state.error, state.is_finished) == (0, "", True)
