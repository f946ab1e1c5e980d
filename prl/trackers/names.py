"""Names of curves: a key of ``metrics.jsonl`` in a section, so that a tracker shows related curves together.

A key that no section names is in ``train``. What is no finite number has no curve, nor has what is true or false.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_SECTIONS = {
    "on_policy": ("lag_max", "lag_mean", "versions_max", "ess", "kl_behaviour", "clip_frac"),
    "speed": (
        "time_s",
        "gen_tok_s",
        "train_tok_s",
        "trainer_busy",
        "engine_busy",
        "wait_batch_s",
        "pause_s",
        "publish_s",
        "eval_block_s",
        "checkpoint_s",
        "loop_lag_ms",
    ),
    "count": ("samples", "tokens_generated", "tokens_trained", "version"),
    "mended": (
        "evals_incomplete",
        "streams_moved",
        "streams_handed_over",
        "engine_restarts",
        "trainer_restarts",
        "reward_retries",
    ),
}
_SECTION_OF = {key: section for section, keys in _SECTIONS.items() for key in keys}
_PREFIXES = ("reward", "dropped")


def curves_of_step(line: Mapping[str, Any]) -> dict[str, float]:
    """A line of ``metrics.jsonl`` by curve: ``train/loss``, ``reward/mean``, ``dropped/timeout``."""
    return {_curve(key): value for key, value in _numbers(line)}


def curves_of_evaluation(line: Mapping[str, Any]) -> dict[str, float]:
    """A line of ``evaluations.jsonl``: ``eval/reward_mean``, ``eval/pass_at_4``; nothing of an incomplete one."""
    if not line.get("complete", False):
        return {}
    found = dict(_numbers(line))
    for k, estimate in line.get("pass_at", {}).items():
        found[f"pass_at_{k}"] = float(estimate["mean"])
    if len(interval := line.get("interval", ())) == 2:  # noqa: PLR2004 -- two ends
        found["reward_mean_low"], found["reward_mean_high"] = map(float, interval)
    return {f"eval/{key}": value for key, value in found.items() if key != "version"}


def curves_of_summary(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of ``summary.json``: ``summary/goodput``."""
    return {f"summary/{key}": value for key, value in _numbers(summary)}


def _curve(key: str) -> str:
    section = _SECTION_OF.get(key)
    if section is not None:
        return f"{section}/{key}"
    prefix, _, rest = key.partition("_")
    return f"{prefix}/{rest}" if prefix in _PREFIXES and rest else f"train/{key}"


def _numbers(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in line.items():
        if key != "step" and isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            yield key, float(value)
