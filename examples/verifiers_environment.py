"""Train in an environment that the package ``verifiers`` ships (extras: verifiers, data), unchanged: ReasoningGymEnv.

    python examples/verifiers_environment.py [key=value ...]

``load_environment`` is all that the package asks of a module; prl finds it by the module's name, here or installed.
Rows, turns and rubric are the environment's own: problems of reasoning-gym, judged by the task's own verifier.
"""

from __future__ import annotations

import verifiers as vf
from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv


def load_environment(num_rows: int = 1000, num_held_out: int = 256, **task: object) -> vf.Environment:
    """What the package calls: sums of two numbers, or as ``task`` says; the answer is in a box and not between tags."""
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2, **task}
    return ReasoningGymEnv(
        gym=[{"name": "chain_sum", "weight": 1.0, "config": options}],
        num_train_examples=num_rows,
        num_eval_examples=num_held_out,
        system_prompt="",
        parser=vf.Parser(vf.extract_boxed_answer),
    )


if __name__ == "__main__":
    from training import train

    train(
        "run.name=verifiers-environment",
        'environment={name="verifiers", options={env="verifiers_environment", args={num_rows=2000}}}',
        "gateway.enabled=true",
        "data.source=verifiers",
        "rewards=[]",
        "engine.max_model_len=192",
    )
