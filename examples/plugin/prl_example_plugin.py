"""A reward and an environment that a TOML names once this package is installed.

[environment]
name = "ask_twice"

[[rewards]]
name = "tidy"
options = { most_words = 4 }
"""

from __future__ import annotations

import prl


async def tidy(completion: prl.Completion, prompt: prl.Prompt, *, most_words: int = 10) -> float:  # noqa: ARG001
    """1 for an answer of few words."""
    return float(len(completion.text.split()) <= most_words)


async def ask_twice(session: prl.Session, prompt: prl.Prompt) -> None:
    """Ask the same question twice; what the model says the second time is judged by the rewards."""
    first = await session.generate(prompt.messages)
    await session.generate([*prompt.messages, first.message, *prompt.messages])
