"""``prl export``: which checkpoint, where to, and that what is written is what was trained."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import prl
from prl import virtual_time
from prl.cli import main
from prl.config import Config
from prl.errors import CheckpointError
from prl.settings import to_toml_without_secrets
from prl.trainer import checkpoint
from prl.trainer.simulated import SimulatedTrainer
from tests.test_pipeline import simulated, take_steps
from tests.trainer.cases import make_batch, make_config, make_model


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of simulated parts with checkpoints of steps 2 and 4."""
    run = tmp_path_factory.mktemp("whole") / "run"

    async def steps() -> None:
        async with prl.Pipeline(simulated(), run_dir=run) as pipeline:
            await take_steps(pipeline, 4)

    virtual_time.run(steps())
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def damage(folder: Path) -> None:
    """Change the last byte of a checkpoint's state."""
    state = folder / checkpoint.STATE
    state.write_bytes(state.read_bytes()[:-1] + b"\xc1")


def test_the_newest_is_exported_to_a_folder_of_its_own(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it holds is what the run's own export holds; the last line says where it is."""
    assert main(["export", str(run)]) == 0
    assert capsys.readouterr().out == f"step 4 of {run} is in {run}/exports/step-000004\n"
    written = (run / "exports" / "step-000004" / "simulated-weights.txt").read_bytes()
    assert written == (run / "export" / "simulated-weights.txt").read_bytes()


def test_a_step_and_a_folder_can_be_chosen(run: Path, tmp_path: Path) -> None:
    """An older checkpoint has other weights."""
    assert main(["export", str(run), "--step", "2", "--out", str(tmp_path / "best")]) == 0
    written = (tmp_path / "best" / "simulated-weights.txt").read_bytes()
    assert written != (run / "export" / "simulated-weights.txt").read_bytes()


def test_a_damaged_checkpoint_is_passed_over_and_never_exported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --step the one before is taken, and that is said; asked for, it is refused with file and reason."""
    damage(run / "checkpoints" / "step-000004")
    assert main(["export", str(run)]) == 0
    said = capsys.readouterr().out
    assert "note: " in said
    assert "the contents of state.msgpack are not what was written" in said
    assert f"step 2 of {run} is in {run}/exports/step-000002\n" in said
    assert main(["export", str(run), "--step", "4"]) == 2
    assert "prl: --step 4: " in (refused := capsys.readouterr().err)
    assert "state.msgpack" in refused
    damage(run / "checkpoints" / "step-000002")
    assert main(["export", str(run), "--out", str(run / "other")]) == 2
    assert "holds no complete checkpoint: " in capsys.readouterr().err


def test_what_cannot_be_exported_is_said_in_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run, no such step, adapters that there are none of, a folder that is taken: nothing is written."""
    (run / "taken").mkdir()
    (run / "taken" / "file").touch()
    (run / "empty").mkdir()
    monkeypatch.chdir(run / "empty")
    before = sorted(run.rglob("*"))
    for arguments, message in (
        ([str(run / "nowhere")], "holds no run (it has no config.toml): name the folder of a run, such as runs/math"),
        ([str(run), "--step", "3"], "holds no checkpoint of that step; those that are there: 2, 4"),
        ([str(run), "--adapters"], "trains whole weights (lora.rank = 0); leave it away"),
        ([str(run), "--out", str(run / "taken")], "is there already: name a folder that is not, or remove it"),
        ([str(run), "--out", str(run / "empty")], "is there already: name a folder that is not, or remove it"),
        ([str(run), "--out", "."], "is there already: name a folder that is not, or remove it"),
    ):
        assert main(["export", *arguments]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
    shutil.rmtree(run / "checkpoints")
    assert main(["export", str(run)]) == 2
    assert "it was not saved yet: see run.checkpoint_every" in capsys.readouterr().err
    assert sorted(run.rglob("*")) == [path for path in before if "checkpoints" not in path.parts]


def test_a_disk_that_is_full_is_a_failure(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 1 with the folder, the reason and what to do."""

    async def full(self: SimulatedTrainer, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SimulatedTrainer, "export", full)
    assert main(["export", str(run)]) == 1
    expected = f"prl: {run}/exports/step-000004 cannot be written: No space left on device; make room, or name another"
    assert expected in capsys.readouterr().err


# ---- real weights ----------------------------------------------------------------------------------------------------


def trained(folder: Path, config: Config, model: Path) -> tuple[Any, Path]:
    """A run folder with a checkpoint of a real trainer after one step; that trainer."""
    torch = pytest.importorskip("torch")
    from prl.trainer.learner import Learner

    learner = Learner(config, str(model), None, torch.device("cpu"))
    batch = make_batch(0, 1)
    learner.train(0, [[batch.samples[index] for index in part] for part in batch.plan[0]], batch.num_sequences)
    run = folder / "run"
    run.mkdir()
    (run / "config.toml").write_text(to_toml_without_secrets(config))
    assert learner.save(checkpoint.step_folder(run / "checkpoints", 1), {}) is None
    return learner, run


@pytest.mark.parametrize("adapters", [False, True])
def test_what_is_exported_is_what_was_trained(tmp_path: Path, adapters: bool) -> None:
    """Every tensor is that of the trainer's own export, bit for bit: whole, merged, or the adapters alone."""
    torch = pytest.importorskip("torch")
    import torch.distributed as dist
    from safetensors.torch import load_file

    from prl.trainer import export_checkpoint
    from prl.trainer.learner import Learner

    model = make_model(tmp_path / "model", "tied")
    config = make_config(model, **({"lora": {"rank": 4}} if adapters else {}))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        learner, run = trained(tmp_path, config, model)
        assert isinstance(learner, Learner)
        learner.export(tmp_path / "own")
    finally:
        dist.destroy_process_group()
    assert main(["export", str(run)]) == 0
    out = run / "exports" / "step-000001"
    names = ["model.safetensors", *(["adapter/adapter_model.safetensors"] if adapters else [])]
    for name in names:
        found, expected = load_file(out / name), load_file(tmp_path / "own" / name)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in found)
    assert {path.name for path in out.iterdir()} == {path.name for path in (tmp_path / "own").iterdir()}
    if not adapters:
        return
    assert main(["export", str(run), "--adapters", "--out", str(tmp_path / "alone")]) == 0
    alone, beside = (load_file(path / "adapter_model.safetensors") for path in (tmp_path / "alone", out / "adapter"))
    assert all(torch.equal(alone[key], beside[key]) for key in beside)
    other = make_model(tmp_path / "other", "untied")
    with pytest.raises(CheckpointError, match=r"does not fit the model|another base"):
        export_checkpoint.export_checkpoint(
            msgspec.structs.replace(config, model=str(other)),
            str(other),
            run / "checkpoints" / "step-000001",
            tmp_path / "x",
        )
    assert not (tmp_path / "x.partial").exists()
