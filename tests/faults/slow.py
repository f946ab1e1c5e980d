"""A reward that takes its time, so that a job of the matrix leaves the processor to whoever is started again."""

from __future__ import annotations

import asyncio

import prl
from prl.rewards.answer import Answer

WAIT_S = 1.0


class SlowAnswer(Answer):
    """``answer``, a second late."""

    async def __call__(self, completion: prl.Completion, prompt: prl.Prompt) -> float:
        """Wait, then judge."""
        await asyncio.sleep(WAIT_S)
        return await super().__call__(completion, prompt)
