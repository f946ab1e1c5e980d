"""What the examples have in common: each trains the model that ships with prl on its own reward or environment."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import prl

CONFIG = Path(__file__).parent.parent / "configs" / "math.toml"


def train(*overrides: str) -> None:
    """Train ``run.num_steps`` steps of ``configs/math.toml``, changed so and by the command line; print how it goes."""
    asyncio.run(_train(prl.load_config(CONFIG, [*overrides, *sys.argv[1:]])))


async def _train(config: prl.Config) -> None:
    async with prl.Pipeline(config) as pipeline:
        for _ in range(config.run.num_steps):
            report = await pipeline.step()
            print(f"step {report.step}: reward {report.reward_mean:.3f}, {report.length_mean:.1f} tokens")
