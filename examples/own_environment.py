"""Train in an environment of your own.

    python examples/own_environment.py [key=value ...]

An environment is an async function that asks the model as often as it likes. Here it may try again: an answer that is
wrong is met by the same question, and being right at the second try is worth half.
"""

from __future__ import annotations

import prl


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


if __name__ == "__main__":
    from training import train

    train("run.name=own-environment", 'environment.name="two_tries"', "rewards=[]", "engine.max_model_len=192")
