"""On policy the importance ratio is 1: a real vLLM engine and the real trainer, over real weight updates."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

import prl
from prl.engines import vllm
from prl.settings import load_config

CONFIG = Path(__file__).parent.parent / "configs/math.toml"


class KeptEngine(vllm.VllmEngine):
    """Stays open from run to run, as it starts slowly: each run's trainer meets it anew and sends its weights."""

    is_open = False

    async def open(self) -> None:
        """Once."""
        if not self.is_open:
            await super().open()
            self.is_open = True

    async def close(self) -> None:
        """Not yet."""

    async def end(self) -> None:
        """Now."""
        await super().close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines() -> AsyncIterator[list[KeptEngine]]:
    """The one that the first run makes, for the others."""
    made: list[KeptEngine] = []
    yield made
    for engine in made:
        await engine.end()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore")  # what vLLM's and torch's own imports warn of
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
async def test_the_ratio_is_1_on_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engines: list[KeptEngine], temperature: float
) -> None:
    """Engine and trainer agree on every sampled token at any temperature, at the start and after updates.

    Over N tokens no ratio is further from 1 than its mean plus sqrt(N (1 - ESS)): the steps are small, so that this
    bounds each of them by 1e-4.
    """

    def make(**arguments: Any) -> KeptEngine:
        if not engines:
            engines.append(KeptEngine(**arguments))
        return engines[0]

    monkeypatch.setattr(vllm, "VllmEngine", make)
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
