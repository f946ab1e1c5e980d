"""Which part stands for which word of the configuration, and what machine it needs."""

from __future__ import annotations

import msgspec
import pytest

import prl
from prl import parts
from prl.config import Config, EngineConfig, PipelineConfig, RewardConfig, TrainerConfig
from prl.config_environment import EnvironmentConfig
from prl.errors import ConfigError

CONFIG = Config(model="builtin:tiny-math", engine=EngineConfig(count=2), trainer=TrainerConfig(num_ranks=2))


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_the_buffer_feeds_every_bound(max_lag: int) -> None:
    """There are always slots for the batch that is trained: k + 1 batches of them."""
    pipeline = PipelineConfig(max_lag=max_lag, groups_per_step=5)
    buffer = parts.make_buffer(msgspec.structs.replace(CONFIG, pipeline=pipeline))
    assert buffer.num_slots == 5 * (max_lag + 1)


@prl.environment("test-gives-parts", parts=("math", "style"))
async def gives_parts(session: prl.Session, prompt: prl.Prompt) -> None:
    """Says which parts of a reward it gives."""


@prl.environment("test-gives-one")
async def gives_one(session: prl.Session, prompt: prl.Prompt) -> float:
    """Gives its reward under no name of its own."""
    return 1.0


@pytest.mark.parametrize(
    ("environment", "rewards", "part"),
    [
        ("test-gives-parts", ["math", "answer"], "math"),
        ("test-gives-parts", ["answer", "format"], None),
        ("test-gives-parts", ["environment"], None),
        ("test-gives-one", ["answer", "environment"], "environment"),
        ("guess", ["found"], "found"),
    ],
)
def test_a_part_named_like_a_reward_is_found_before_anything_starts(
    environment: str, rewards: list[str], part: str | None
) -> None:
    """One of both would be lost: what an environment says it gives, or has no name for, is no reward's name."""
    config = msgspec.structs.replace(
        CONFIG,
        environment=EnvironmentConfig(name=environment),
        rewards=[RewardConfig(name=name) for name in rewards],
    )
    if part is None:
        assert parts.environment_of(config) is not None
        return
    message = f"environment.name = '{environment}' gives a part of the score that is named '{part}'"
    with pytest.raises(ConfigError, match=message):
        parts.environment_of(config)
