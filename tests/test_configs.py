"""Every configuration that ships is loaded and cross-checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from prl.check import cross_check
from prl.models.make_smollm2 import OUT
from prl.settings import load_config, to_toml

ROOT = Path(__file__).parent.parent
CONFIGS = sorted([*(ROOT / "configs").glob("*.toml"), *(ROOT / "benchmarks").glob("*.toml")])


def test_there_is_one_for_any_machine_and_one_for_eight_gpus() -> None:
    """The two that the README names."""
    assert {"math.toml", "qwen2.5-7b-8xh100.toml"} <= {path.name for path in CONFIGS}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_shipped_config_is_valid_and_free_of_conflicts(path: Path, tmp_path: Path) -> None:
    """It loads, its fields agree with each other, and its resolved form means the same."""
    config = load_config(path)
    cross_check(config, environment={})
    resolved = tmp_path / "config.toml"
    resolved.write_text(to_toml(config))
    assert load_config(resolved) == config


def test_the_eight_gpu_config_uses_eight_gpus() -> None:
    """Engines and ranks together, one GPU each."""
    config = load_config(next(path for path in CONFIGS if "8xh100" in path.name))
    assert config.engine.count * config.engine.tensor_parallel_size + config.trainer.num_ranks == 8


def test_the_real_models_config_names_the_folder_that_the_script_makes() -> None:
    """Script and configuration agree without either being told."""
    config = load_config(next(path for path in CONFIGS if path.name == "smollm2-135m.toml"))
    assert config.model == str(OUT)
