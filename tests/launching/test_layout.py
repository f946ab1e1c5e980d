from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prl.config import Config
from prl.errors import ConfigError
from prl.launching.layout import layout_of, notes, secrets_stay_out
from prl.settings import load_config

MATH = Path("configs/math.toml")


def _config(*settings: str) -> Config:
    return load_config(MATH, settings)


@pytest.mark.parametrize(
    ("count", "tensor", "ranks", "num_gpus", "expected"),
    [
        (4, 1, 4, 8, (True, 0, 0, 0, 1)),
        (2, 4, 8, 16, (True, 0, 0, 0, 1)),
        (8, 1, 8, 8, (False, 8, 1, 1, 2)),
        (12, 2, 16, 8, (False, 12, 3, 2, 5)),
        (96, 1, 32, 8, (False, 96, 12, 4, 16)),
        (3, 4, 2, 4, (False, 3, 3, 1, 4)),
    ],
)
def test_what_fits_on_one_machine_stays_there(
    count: int, tensor: int, ranks: int, num_gpus: int, expected: tuple[Any, ...]
) -> None:
    """Else engines and ranks are on machines of their own, as few as hold them."""
    settings = (f"engine.count={count}", f"engine.tensor_parallel_size={tensor}", f"trainer.num_ranks={ranks}")
    layout = layout_of(_config(*settings), num_gpus)
    found = (layout.is_single, layout.num_engines, layout.num_engine_nodes, layout.num_trainer_nodes, layout.num_nodes)
    assert found == expected
    assert layout.num_gpus_wanted == count * tensor + ranks


@pytest.mark.parametrize(
    ("settings", "num_gpus", "words"),
    [
        (["trainer.num_ranks=12"], 8, r"trainer\.num_ranks = 12 does not fill nodes of 8 GPUs.*8 or 16"),
        (["engine.tensor_parallel_size=16"], 8, r"engine\.tensor_parallel_size = 16 is more than the 8 GPUs"),
        ([], 0, r"--gpus-per-node = 0"),
        (
            ["engine.servers=['http://a:1']", "engine.count=8"],
            8,
            r"engine\.servers lists 1 servers, and engine\.count = 8",
        ),
        (["trainer.kind=simulated", "engine.kind=simulated"], 8, r"'simulated' needs no scheduler"),
    ],
)
def test_what_cannot_be_laid_out_is_said_with_its_key(settings: list[str], num_gpus: int, words: str) -> None:
    """The value, and what to take instead."""
    with pytest.raises(ConfigError, match=words):
        layout_of(_config(*settings), num_gpus)


def test_there_is_time_for_a_step_and_a_save() -> None:
    """The grace is the sum of their deadlines, and a margin."""
    assert layout_of(_config("trainer.step_timeout_s=1800"), 8).grace_s == 3660


def test_names_are_those_of_hosts() -> None:
    """Lower case, without what a host's name may not hold, and never empty."""
    names = {name: layout_of(_config(f"run.name={name}"), 8).name for name in ("Qwen2.5-7B", "--x--", "Ä")}
    assert names == {"Qwen2.5-7B": "qwen2-5-7b", "--x--": "x", "Ä": "run"}


def test_what_may_not_be_meant_is_noted() -> None:
    """Sharding across nodes, GPUs without an engine, and no checkpoints; nothing where all is well."""
    config = _config("engine.count=9", "trainer.num_ranks=16")
    found = notes(config, layout_of(config, 8))
    assert [note.partition(" ")[0] for note in found] == ["trainer.num_replicas", "7", "run.checkpoint_every"]
    config = _config("engine.count=8", "trainer.num_ranks=16", "trainer.num_replicas=2", "run.checkpoint_every=5")
    assert notes(config, layout_of(config, 8)) == []


def test_variables_that_the_configuration_refers_to_are_known(large: Path) -> None:
    """By their names; their values are never read."""
    assert layout_of(load_config(large), 8).variables == ["JUDGE_KEY"]


def test_a_secret_in_the_toml_is_refused(large: Path) -> None:
    """What is written lies in files; the key is named, the secret is not."""
    large.write_text(large.read_text().replace("env:JUDGE_KEY", "Bearer hush"))
    with pytest.raises(ConfigError, match=r"rewards\.0\.options\.headers\.Authorization holds a secret") as caught:
        secrets_stay_out(load_config(large))
    assert "hush" not in str(caught.value)
