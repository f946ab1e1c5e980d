"""prl: reinforcement learning for language models that trains while it generates.

    import prl

    @prl.reward("short")
    async def short(completion: prl.Completion, prompt: prl.Prompt) -> float:
        return 1.0 if len(completion.token_ids) < 64 else 0.0

    async with prl.Pipeline(prl.load_config("configs/math.toml")) as pipeline:
        for _ in range(100):
            report = await pipeline.step()

These are the public names; everything else may change. Each is imported when it is first used, so ``import prl`` costs
nothing and reaches neither torch nor vLLM.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prl.config import Config
    from prl.environments.base import environment
    from prl.environments.session import Session
    from prl.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        EngineDeadError,
        EngineError,
        MissingExtraError,
        PluginError,
        PrlError,
        RefusedError,
        RewardError,
        StallError,
        TrainerError,
        WeightSyncError,
    )
    from prl.evaluate import Evaluation
    from prl.metrics import StepReport
    from prl.pipeline import Pipeline
    from prl.rewards.base import Judged, group_reward, reward
    from prl.run_folder import Summary
    from prl.settings import load_config
    from prl.types import Completion, Group, Prompt, Score

_HOME = {
    "prl.config": ["Config"],
    "prl.environments.base": ["environment"],
    "prl.environments.session": ["Session"],
    "prl.errors": [
        "CheckpointError",
        "ConfigError",
        "DataError",
        "EngineDeadError",
        "EngineError",
        "MissingExtraError",
        "PluginError",
        "PrlError",
        "RefusedError",
        "RewardError",
        "StallError",
        "TrainerError",
        "WeightSyncError",
    ],
    "prl.evaluate": ["Evaluation"],
    "prl.metrics": ["StepReport"],
    "prl.pipeline": ["Pipeline"],
    "prl.rewards.base": ["Judged", "group_reward", "reward"],
    "prl.run_folder": ["Summary"],
    "prl.settings": ["load_config"],
    "prl.types": ["Completion", "Group", "Prompt", "Score"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "CheckpointError",
    "Completion",
    "Config",
    "ConfigError",
    "DataError",
    "EngineDeadError",
    "EngineError",
    "Evaluation",
    "Group",
    "Judged",
    "MissingExtraError",
    "Pipeline",
    "PluginError",
    "PrlError",
    "Prompt",
    "RefusedError",
    "RewardError",
    "Score",
    "Session",
    "StallError",
    "StepReport",
    "Summary",
    "TrainerError",
    "WeightSyncError",
    "environment",
    "group_reward",
    "load_config",
    "reward",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'prl' has no attribute {name!r}; its public names are {', '.join(__all__)}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
