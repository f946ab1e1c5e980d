"""Train in an environment of your own.

    python examples/own_environment.py [key=value ...]

An environment is an async function that asks the model as often as it likes. Here it may try again: an answer that is
wrong is met by the same question, and being right at the second try is worth half.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import prl

CONFIG = Path(__file__).parent.parent / "configs" / "math.toml"
OVERRIDES = ["run.name=own-environment", 'environment.name="two_tries"', "rewards=[]", "engine.max_model_len=192"]


@prl.environment("two_tries")
async def two_tries(session: prl.Session, prompt: prl.Prompt, *, worth_of_second: float = 0.5) -> None:
    """Ask, and ask again where the answer was wrong. Every token that the model sampled is trained."""
    right = f"\\boxed{{{prompt.fields['answer']}}}"
    messages = list(prompt.messages)
    for worth in (1.0, worth_of_second):
        reply = await session.generate(messages)
        if right in reply.text:
            session.reward(worth)
            return
        messages += [reply.message, prompt.messages[-1]]


async def main(overrides: list[str]) -> None:
    """Train ``run.num_steps`` steps and print how it goes."""
    config = prl.load_config(CONFIG, [*OVERRIDES, *overrides])
    async with prl.Pipeline(config) as pipeline:
        for _ in range(config.run.num_steps):
            report = await pipeline.step()
            print(f"step {report.step}: reward {report.reward_mean:.3f}, {report.length_mean:.1f} tokens")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
