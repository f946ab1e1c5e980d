"""A guessing game: find a number with as few questions as it has bits. Small models learn it in minutes.

The number depends on the prompt's id alone, so all members of a group look for the same one, and which of them found it
says who guesses well. Of the prompt itself nothing is shown.
"""

from __future__ import annotations

import re
import zlib
from typing import Annotated

from msgspec import Meta

from prl.environments.session import Session
from prl.errors import ConfigError
from prl.types import Prompt

_NUMBER = re.compile(r"\d{1,9}")


async def guess(
    session: Session,
    prompt: Prompt,
    *,
    low: Annotated[int, Meta(ge=0)] = 1,
    high: int = 9,
    num_guesses: Annotated[int, Meta(ge=1)] = 3,
    narrowing: Annotated[float, Meta(ge=0)] = 0.0,
) -> None:
    """Tell the model between which numbers to look, and after each guess which of them are left.

    The last number of an answer is the guess; an answer that was cut off is none.

    Args:
        session: of the episode.
        prompt: gives the secret number.
        low: the smallest that it can be.
        high: the largest.
        num_guesses: how often the model may guess.
        narrowing: what ruling out every other number is worth, in proportion and whether or not it is found then: a
            reward for guesses that teach something, beside the 1 for finding it.
    """
    if low > high:
        raise ConfigError(f"environment.options: low = {low} is above high = {high}")
    num_others = high - low
    secret = low + zlib.crc32(f"guess/{prompt.id}".encode()) % (high - low + 1)
    messages = [{"role": "user", "content": f"{low} to {high} = ?"}]
    for _ in range(num_guesses):
        reply = await session.generate(messages)
        found = _NUMBER.findall(reply.text) if reply.finish == "stop" else []
        guessed = int(found[-1]) if found else None
        if guessed == secret:
            low = high = secret
            break
        if guessed is not None:
            low = max(low, guessed + 1) if guessed < secret else low
            high = min(high, guessed - 1) if guessed > secret else high
        messages += [reply.message, {"role": "user", "content": f"{low} to {high} = ?"}]
    session.reward(float(guessed == secret), "found")
    if narrowing and num_others:
        session.reward(narrowing * (1 - (high - low) / num_others), "narrowed")


guess.parts = ("found", "narrowed")  # type: ignore[attr-defined]
"""What it gives, as ``prl.environment`` would note it."""
