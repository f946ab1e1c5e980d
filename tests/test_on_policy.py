"""On policy the importance ratio is 1: a real vLLM engine and the real trainer, over real weight updates."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

import prl
from prl.settings import load_config

CONFIG = Path(__file__).parent.parent / "configs/math.toml"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
async def test_the_ratio_is_1_on_policy(tmp_path: Path, temperature: float) -> None:
    """Engine and trainer agree on every sampled token at any temperature, at the start and after updates.

    Over N tokens no ratio is further from 1 than its mean plus sqrt(N (1 - ESS)): the steps are small, so that this
    bounds each of them by 1e-4.
    """
    settings = [
        "engine.count=1",
        "trainer.num_ranks=1",
        "pipeline.max_lag=0",
        "pipeline.groups_per_step=1",
        "pipeline.group_size=4",
        "eval.num_samples=0",
        "run.num_steps=3",
        f"sampling.temperature={temperature}",
    ]
    async with prl.Pipeline(load_config(CONFIG, settings), run_dir=tmp_path / "run") as pipeline:
        reports = [await pipeline.step() for _ in range(3)]
    samples = [msgspec.json.decode(line) for line in (tmp_path / "run" / "samples.jsonl").read_bytes().splitlines()]
    for report in reports:
        assert report.lag_max == 0
        assert abs(report.kl_behaviour) + math.sqrt(report.tokens_trained * max(0.0, 1 - report.ess)) < 1e-4
    assert {version for sample in samples for version in sample["versions"]} == {0, 1, 2}
