"""The reward protocol: an async (or plain) function of a completion and its prompt.

A reward returns a finite number, or None to abstain; anything else is a failure of the reward, never a 0. Plain
functions run outside the event loop. A reward sees the completion only, never the prompt's text joined with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from prl.types import Completion, Prompt

Judgement = float | int | bool | None
RewardFunction = Callable[[Completion, Prompt], Awaitable[Judgement]] | Callable[[Completion, Prompt], Judgement]
F = TypeVar("F", bound=RewardFunction)
