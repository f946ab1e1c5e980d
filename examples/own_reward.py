"""Train with a reward of your own.

    python examples/own_reward.py [key=value ...]

A reward is a function of a completion and its prompt, here one line: right, and the sooner said the better.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import prl

CONFIG = Path(__file__).parent.parent / "configs" / "math.toml"


@prl.reward("right_and_short", required_fields=["answer"])
def right_and_short(completion: prl.Completion, prompt: prl.Prompt, *, free_tokens: int = 16) -> float:
    """1 for the right answer, less a tenth for each token beyond ``free_tokens``."""
    is_right = f"\\boxed{{{prompt.fields['answer']}}}" in completion.text
    return is_right * max(0.0, 1.0 - 0.1 * max(0, len(completion.token_ids) - free_tokens))


async def main(overrides: list[str]) -> None:
    """Train ``run.num_steps`` steps and print how it goes."""
    config = prl.load_config(CONFIG, ['rewards=[{name = "right_and_short"}]', "run.name=own-reward", *overrides])
    async with prl.Pipeline(config) as pipeline:
        for _ in range(config.run.num_steps):
            report = await pipeline.step()
            print(f"step {report.step}: reward {report.reward_mean:.3f}, {report.length_mean:.1f} tokens")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
