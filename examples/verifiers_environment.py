"""Train in an environment of the package ``verifiers`` (extra: verifiers), unchanged.

    python examples/verifiers_environment.py [key=value ...]

``load_environment`` is all that the package asks of a module; prl finds it by the module's name, here or installed. Its
data set, its turns and its rubric are its own: ``Tries`` is met by the same question again where its answer was wrong.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import verifiers as vf
from datasets import Dataset

import prl
from prl.arithmetic import problem

CONFIG = Path(__file__).parent.parent / "configs" / "math.toml"
OVERRIDES = [
    "run.name=verifiers-environment",
    'environment={name="verifiers", options={env="verifiers_environment", args={num_rows=2000}}}',
    "gateway.enabled=true",
    "data.source=verifiers",
    "rewards=[]",
    "engine.max_model_len=192",
]


class Tries(vf.MultiTurnEnv):
    """Up to ``max_turns`` tries at a question."""

    async def env_response(self, messages: vf.Messages, state: vf.State, **_: object) -> vf.Messages:
        """The question once more, unless the last answer was right."""
        reply = [{"role": "user", "content": state["prompt"][-1]["content"]}]
        if right(messages[-1:], state["answer"]):
            state["final_env_response"] = reply
        return reply


def right(completion: vf.Messages, answer: str) -> float:
    """1 where the last thing that the model said has the answer in a box."""
    said = [message["content"] for message in completion if message["role"] == "assistant"]
    return float(f"\\boxed{{{answer}}}" in said[-1])


def tries_saved(completion: vf.Messages) -> float:
    """1 for one try, less for more."""
    return 1 / sum(message["role"] == "assistant" for message in completion)


def load_environment(num_rows: int = 1000, max_turns: int = 2) -> vf.Environment:
    """What the package calls."""
    problems = [problem(1, index, 0, "train") for index in range(num_rows)]
    rows = Dataset.from_list([{"question": each.question, "answer": each.answer} for each in problems])
    rubric = vf.Rubric(funcs=[right, tries_saved], weights=[1.0, 0.1])
    return Tries(dataset=rows, rubric=rubric, max_turns=max_turns)


async def main(overrides: list[str]) -> None:
    """Train ``run.num_steps`` steps and print how it goes."""
    config = prl.load_config(CONFIG, [*OVERRIDES, *overrides])
    async with prl.Pipeline(config) as pipeline:
        for _ in range(config.run.num_steps):
            report = await pipeline.step()
            print(f"step {report.step}: reward {report.reward_mean:.3f}, {report.length_mean:.1f} tokens")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
