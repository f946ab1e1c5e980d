"""Train with a reward of your own.

    python examples/own_reward.py [key=value ...]

A reward is a function of a completion and its prompt, here one line: right, and the sooner said the better.
"""

from __future__ import annotations

import prl


@prl.reward("right_and_short", required_fields=["answer"])
def right_and_short(completion: prl.Completion, prompt: prl.Prompt, *, free_tokens: int = 16) -> float:
    """1 for the right answer, less a tenth for each token beyond ``free_tokens``."""
    is_right = f"\\boxed{{{prompt.fields['answer']}}}" in completion.text
    return is_right * max(0.0, 1.0 - 0.1 * max(0, len(completion.token_ids) - free_tokens))


if __name__ == "__main__":
    from training import train

    train('rewards=[{name = "right_and_short"}]', "run.name=own-reward")
