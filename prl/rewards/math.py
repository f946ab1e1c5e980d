"""``math``: the final answer means the same as ``answer`` of the prompt, by math-verify in worker processes.

- Nothing of a completion is parsed in this process: symbolic mathematics on a model's text can hang, and even printing
  its result can. A worker that exceeds its limits is killed and replaced (``pool.py``).
- An answer that exhausts a limit is wrong (0.0), counted by limit. A worker that dies of anything else has judged
  nothing: RewardError. A right answer that cannot be read makes the reward abstain, never pay.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from typing import Annotated

from msgspec import Meta

from prl.errors import MissingExtraError
from prl.rewards.extract import Extract, final_answer
from prl.rewards.pool import Exhausted, Limits, WorkerPool
from prl.rewards.worker import Question
from prl.types import Completion, Prompt

MAX_ANSWER_CHARS = 5_000
"""A longer answer is wrong without being read."""


class Math:
    """1.0 for an answer that is mathematically the right one, 0.0 for any other and for none."""

    required_fields = ("answer",)

    def __init__(
        self,
        *,
        extract: Extract = "auto",
        num_workers: Annotated[int, Meta(ge=1, le=256)] = 2,
        cpu_s: Annotated[int, Meta(ge=1)] = 3,
        wall_s: Annotated[float, Meta(gt=0)] = 8.0,
        memory_mib: Annotated[int, Meta(ge=256)] = 1024,
    ) -> None:
        """``extract`` as in ``extract.py``; the rest are the number of worker processes and the limits of each.

        Keep ``wall_s`` below the reward's ``timeout_s``, past which a call is a failure and no verdict. Raises
        MissingExtraError where math-verify is not installed.
        """
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtraError("math-verify", "math", "the reward 'math'")
        self._extract: Extract = extract
        self.concurrency = num_workers
        self.pool = WorkerPool(
            "prl.rewards.math_worker", num_workers, Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mib=memory_mib)
        )
        self.open, self.close = self.pool.open, self.pool.close
        self._counts: Counter[str] = Counter()

    async def __call__(self, completion: Completion, prompt: Prompt) -> float | None:
        """Judge one completion. Raises RewardError when a worker dies."""
        answer = final_answer(completion, prompt, self._extract)
        if answer is None:
            self._counts["no_answer"] += 1
            return 0.0
        if len(answer) > MAX_ANSWER_CHARS:
            self._counts["answer_too_long"] += 1
            return 0.0
        reply = await self.pool.ask(Question(text=answer, reference=str(prompt.fields["answer"])))
        if isinstance(reply, Exhausted):
            self._counts[reply.reason] += 1
            return 0.0
        if reply.reason:
            self._counts[reply.reason] += 1
        return reply.value

    def statistics(self) -> dict[str, float]:
        """Answers by what kept them from being judged: ``no_answer``, ``exhausted_cpu``, ``gold_unparsable`` ..."""
        return dict(self._counts)
