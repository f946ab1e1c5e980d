"""``format``: the completion's text matches a regular expression.

Python's ``re`` can take exponential time on a text made for it, and holds the interpreter while it does. So matching
runs in a worker process under limits (``pool.py``), on at most ``max_chars`` characters; a text that exhausts a limit
does not match, and is counted. The pattern is compiled once when the reward is made, for its errors.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta

from prl.errors import PluginError
from prl.rewards.base import Judged
from prl.rewards.pool import Exhausted, Limits, WorkerPool
from prl.rewards.worker import Question
from prl.types import Completion, Prompt


class Format:
    """1.0 for a text that matches, 0.0 for one that does not."""

    def __init__(
        self,
        *,
        pattern: str,
        match: Literal["full", "partial"] = "full",
        num_workers: Annotated[int, Meta(ge=1, le=256)] = 1,
        cpu_s: Annotated[int, Meta(ge=1)] = 1,
        wall_s: Annotated[float, Meta(gt=0)] = 4.0,
        max_chars: Annotated[int, Meta(ge=1)] = 100_000,
    ) -> None:
        """``pattern`` must match the whole text, or with ``match = "partial"`` some part of it.

        A ``.`` matches newlines too. A text over ``max_chars`` does not match. Raises PluginError for a pattern that is
        no regular expression.
        """
        try:
            re.compile(pattern, re.DOTALL)
        except (re.error, RecursionError, OverflowError) as error:
            raise PluginError(
                f"the reward 'format', option 'pattern', is no regular expression: {error}; got {pattern!r}"
            ) from error
        self._reference, self._max_chars = f"{match}:{pattern}", max_chars
        limits = Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mib=512)
        self.pool = WorkerPool("prl.rewards.format_worker", num_workers, limits)
        self.open, self.close = self.pool.open, self.pool.close

    async def __call__(self, completion: Completion, prompt: Prompt) -> Judged:
        """Match one completion. Raises RewardError when a worker dies."""
        if len(completion.text) > self._max_chars:
            detail = f"the text has {len(completion.text)} characters, over max_chars = {self._max_chars}"
            return Judged(value=0.0, reason="text_too_long", detail=detail)
        reply = await self.pool.ask(Question(text=completion.text, reference=self._reference), prompt.id)
        if isinstance(reply, Exhausted):
            return Judged(value=0.0, reason=reply.reason, detail="matching it took more than a limit")
        return Judged(value=reply.value, reason="match" if reply.value else "no_match")
