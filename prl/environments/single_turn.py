"""One answer to the prompt: what a rollout is where ``[environment]`` names nothing else.

Such a run does not go through here: its streams are recorded token by token and go on after a crash (``rollout.py``).
This is the same in an environment's words.
"""

from __future__ import annotations

from prl.environments.session import Session
from prl.types import Prompt


async def single_turn(session: Session, prompt: Prompt) -> None:  # noqa: ARG001 -- the protocol's
    """Ask once."""
    await session.generate()
