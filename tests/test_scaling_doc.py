from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prl.check import cross_check
from prl.config import Config
from prl.launching.layout import layout_of, notes
from prl.settings import load_config

ROOT = Path(__file__).parent.parent
DOC = (ROOT / "docs/scaling.md").read_text()
SETUPS = {"2 cores": "configs/math.toml", "8 GPUs": "configs/qwen2.5-7b-8xh100.toml"}
TABLES = {field.name for field in msgspec.structs.fields(Config)}


def _changes() -> dict[str, Any]:
    """The TOML block at the end."""
    (block,) = re.findall(r"```toml\n(.*?)```", DOC, re.DOTALL)
    return tomllib.loads(block)


def _large() -> Config:
    settings = [f"{table}.{key}={value}" for table, values in _changes().items() for key, value in values.items()]
    return load_config(ROOT / SETUPS["8 GPUs"], settings)


def _value(config: Config, key: str) -> Any:
    """What ``table.key`` is there. Raises AttributeError for a key that is none."""
    table, name = key.split(".")
    return getattr(getattr(config, table), name)


def test_every_key_is_one() -> None:
    """Whatever stands there as `table.key` is a key of the configuration."""
    named = {key for key in re.findall(r"`([a-z]+\.[a-z_]+)`", DOC) if key.split(".")[0] in TABLES}
    assert len(named) > 20
    config = load_config(ROOT / SETUPS["2 cores"])
    for key in named:
        _value(config, key)


@pytest.mark.parametrize("setup", ["2 cores", "8 GPUs", "128 GPUs"])
def test_the_table_says_what_the_configurations_say(setup: str) -> None:
    """Each number of the table is the one that a run of that set-up has."""
    head, _, *rows = [line for line in DOC.splitlines() if line.startswith("|")]
    column = [cell.strip() for cell in head.split("|")].index(setup)
    config = load_config(ROOT / SETUPS[setup]) if setup in SETUPS else _large()
    assert len(rows) > 10
    for row in rows:
        cells = [cell.strip() for cell in row.split("|")]
        for key in re.findall(r"`([a-z_.]+)`", cells[1]):
            found = _value(config, key)
            if key == "trainer.launch" and setup == "128 GPUs":
                continue  # `prl launch` sets it
            shown = "absent" if found is None else f"{found:g}" if isinstance(found, int | float) else found
            assert (key, cells[column]) == (key, shown)


def test_the_large_set_up_is_one_that_can_run() -> None:
    """16 machines of 8 GPUs, none idle, with nothing to note; what is in flight is as the formula says."""
    config = _large()
    cross_check(config, {})
    layout = layout_of(config, 8)
    assert (layout.num_nodes, layout.num_engine_nodes, layout.num_trainer_nodes) == (16, 12, 4)
    assert layout.num_gpus_wanted == 128
    assert notes(config, layout) == []
    for path, lag in ((SETUPS["2 cores"], 0.5), (SETUPS["8 GPUs"], 1.0), (None, 1.5)):
        each = _large() if path is None else load_config(ROOT / path)
        in_flight = each.engine.count * each.engine.max_num_seqs
        assert in_flight / (each.pipeline.groups_per_step * each.pipeline.group_size) == lag
