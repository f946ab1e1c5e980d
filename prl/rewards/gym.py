"""``reasoning_gym``: the answer as the prompt's own reasoning-gym task judges it, in killable workers.

The answer is what stands in the last ``<answer>...</answer>`` (the form that reasoning-gym's own prompts ask for), and
where there is none, what ``extract.py`` finds; unfinished thinking is no answer. An answer that exhausts a limit is
wrong, with that reason.
"""

from __future__ import annotations

import importlib.util
from typing import Annotated

import msgspec
from msgspec import Meta

from prl.data.gym_rows import FIELD
from prl.errors import MissingExtraError
from prl.rewards.base import Judged
from prl.rewards.extract import Extract, after_thinking, final_answer, opens_thinking
from prl.rewards.pool import Exhausted, Limits, WorkerPool
from prl.rewards.worker import Question
from prl.types import Completion, Prompt

MAX_ANSWER_CHARS = 20_000
_OPEN, _CLOSE = "<answer>", "</answer>"


class ReasoningGym:
    """What the task's ``score_answer`` gives: 1.0 for right, for many tasks something between for nearly."""

    required_fields = (FIELD,)

    def __init__(
        self,
        *,
        extract: Extract = "auto",
        num_workers: Annotated[int, Meta(ge=1, le=256)] = 2,
        cpu_s: Annotated[int, Meta(ge=1)] = 5,
        wall_s: Annotated[float, Meta(gt=0)] = 8.0,
        memory_mib: Annotated[int, Meta(ge=128)] = 2048,
    ) -> None:
        """``extract`` says where an answer without a tag is; the limits are of one answer. Needs the extra ``data``."""
        if importlib.util.find_spec("reasoning_gym") is None:
            raise MissingExtraError("reasoning-gym", "data", "the reward 'reasoning_gym'")
        self._extract: Extract = extract
        limits = Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mib=memory_mib)
        self.pool = WorkerPool("prl.rewards.gym_worker", num_workers, limits)
        self.open, self.close = self.pool.open, self.pool.close

    async def __call__(self, completion: Completion, prompt: Prompt) -> Judged:
        """Judge one completion. Raises RewardError when a worker dies."""
        answer = self._answer(completion, prompt)
        if answer is None:
            return Judged(value=0.0, reason="no_answer", detail="it states no answer, or its thinking is not over")
        if len(answer) > MAX_ANSWER_CHARS:
            return Judged(value=0.0, reason="answer_too_long", detail=f"{len(answer)} characters")
        reference = msgspec.json.encode(prompt.fields[FIELD]).decode()
        reply = await self.pool.ask(Question(text=answer, reference=reference), prompt.id)
        if isinstance(reply, Exhausted):
            return Judged(value=0.0, reason=reply.reason, detail="judging it took more than a limit")
        return Judged(value=reply.value, reason="judged", detail=f"answer {answer[:200]!r}")

    def _answer(self, completion: Completion, prompt: Prompt) -> str | None:
        text = after_thinking(completion.text, opened=opens_thinking(prompt))
        if text is None:
            return None
        close = text.rfind(_CLOSE)
        begin = text.rfind(_OPEN, 0, close) if close >= 0 else -1
        return (
            text[begin + len(_OPEN) : close].strip() if begin >= 0 else final_answer(completion, prompt, self._extract)
        )
