"""``math``: the final answer means the same as ``answer`` of the prompt, judged by rules in worker processes.

- The rules are in ``verdict/``; what they cannot read (integrals, sums) goes to math-verify, in workers of its own: so
  an answer that hangs it holds up no other. Policies are options.
- Nothing of a completion but a short plain number (``verdict/plain.py``) is parsed in this process: mathematics on a
  model's text can hang, and even printing its result can. A worker that exceeds its limits is killed and replaced
  (``pool.py``), and what its group still asks comes behind what others do (``turns.py``).
- An answer that exhausts a limit is wrong (0.0), counted by limit. A worker that dies of anything else has judged
  nothing: RewardError. A right answer that has no meaning makes the reward abstain, never pay; it is found when the
  data is loaded, since every right answer is compared with itself there. So is one that nothing here can read.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from prl.errors import MissingExtraError
from prl.rewards.base import Judged
from prl.rewards.extract import Boxes, Extract, final_answer
from prl.rewards.pool import Exhausted, Limits, WorkerPool
from prl.rewards.verdict.plain import compare_plain, read_plain
from prl.rewards.verdict.policy import Policy
from prl.rewards.verdict.text import MalformedError, clean, literal
from prl.rewards.worker import Question, Reply
from prl.types import Completion, Prompt

MAX_ANSWER_CHARS = 5_000
"""A longer answer is wrong without being read."""
MAX_KNOWN = 20_000
"""Verdicts that are kept: the members of a group often give one answer."""
_PLAINLY = {
    "same_text": "it reads the same",
    "same_value": "it means the same",
    "other_value": "it means something else",
}
_EXPLAINED = {
    "exhausted_cpu": "judging it took more processor time than cpu_s",
    "exhausted_wall": "judging it took longer than wall_s",
    "exhausted_memory": "judging it took more memory than memory_mib",
}


class Math:
    """1.0 for an answer that is mathematically the right one, 0.0 for any other and for none."""

    required_fields = ("answer",)

    def __init__(
        self,
        *,
        extract: Extract = "auto",
        boxes: Boxes = "list",
        relative_tolerance: Annotated[float, Meta(ge=0, lt=1)] = 1e-6,
        percent: Literal["either", "value"] = "either",
        units: Literal["if_stated", "required", "ignored"] = "if_stated",
        bases: Literal["stated", "value"] = "stated",
        empty_gold: Literal["wrong", "abstain"] = "wrong",
        unreadable_gold: Literal["refuse", "text"] = "refuse",
        num_workers: Annotated[int, Meta(ge=1, le=256)] = 2,
        cpu_s: Annotated[int, Meta(ge=1)] = 2,
        wall_s: Annotated[float, Meta(gt=0)] = 6.0,
        memory_mib: Annotated[int, Meta(ge=256)] = 1024,
    ) -> None:
        """``extract`` and ``boxes`` as in ``extract.py``, the next five as in ``verdict/policy.py``.

        A right answer in words and signs that no rule can read is only equal to its own text: a row with one is
        refused when the data is loaded, or with ``unreadable_gold = "text"`` judged so.

        The rest are the number of worker processes (of either kind) and the limits of each. Keep ``wall_s`` below the
        reward's ``timeout_s``, past which a call is a failure and no verdict; the wait for a worker counts for
        neither. Raises MissingExtraError where math-verify is not installed.
        """
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtraError("math-verify", "math", "the reward 'math'")
        self._extract, self._boxes = extract, boxes
        self._policy = policy = Policy(
            relative_tolerance=relative_tolerance, percent=percent, units=units, bases=bases, empty_gold=empty_gold
        )
        self._refuses_unreadable = unreadable_gold == "refuse"
        self._known: dict[Question, Judged] = {}
        limits = Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mib=memory_mib)
        arguments = [msgspec.json.encode(policy).decode()]
        self.rules = WorkerPool("prl.rewards.math_worker", num_workers, limits, arguments=arguments)
        self.symbolic = WorkerPool("prl.rewards.symbolic_worker", num_workers, limits)

    async def open(self) -> None:
        """Start the workers. Those of math-verify take seconds and are seldom asked: nobody waits for them."""
        await self.symbolic.open(wait=False)
        await self.rules.open()

    async def close(self) -> None:
        """Kill the workers."""
        await self.rules.close()
        await self.symbolic.close()

    async def __call__(self, completion: Completion, prompt: Prompt) -> Judged:
        """Judge one completion. Raises RewardError when a worker dies."""
        answer = final_answer(completion, prompt, self._extract, self._boxes)
        if answer is None:
            return Judged(value=0.0, reason="no_answer", detail="the text states no answer")
        if len(answer) > MAX_ANSWER_CHARS:
            detail = f"the answer has {len(answer)} characters, over {MAX_ANSWER_CHARS}"
            return Judged(value=0.0, reason="answer_too_long", detail=detail)
        gold = str(prompt.fields["answer"])
        if (plain := compare_plain(gold, answer, self._policy)) is not None:
            return Judged(value=plain[0], reason=plain[1], detail=f"answer {answer!r}: {_PLAINLY[plain[1]]}")
        question = Question(text=answer, reference=gold)
        if (known := self._known.get(question)) is not None:
            return known
        judged = await self._judge(question, prompt.id)
        if judged.reason not in _EXPLAINED:  # a limit may be met on a busy machine only
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[question] = judged
        return judged

    async def _judge(self, question: Question, group: int) -> Judged:
        reply = await self.rules.ask(question, group)
        if isinstance(reply, Reply) and reply.reason == "unread":
            reply = await self.symbolic.ask(question, group)
        if isinstance(reply, Exhausted):
            return Judged(value=0.0, reason=reply.reason, detail=_EXPLAINED[reply.reason])
        return Judged(value=reply.value, reason=reply.reason, detail=f"answer {question.text[:200]!r}: {reply.detail}")

    def check_row(self, fields: Mapping[str, Any]) -> str | None:
        """What keeps the right answer of a row from being judged right, if anything does."""
        gold = str(fields["answer"])
        if len(gold) > MAX_ANSWER_CHARS:
            return f"field 'answer': it has {len(gold)} characters, and over {MAX_ANSWER_CHARS} are never right"
        boxed = Completion(token_ids=[0], logprobs=[0.0], versions=[0], text=rf"\boxed{{{gold}}}", finish="stop")
        prompt = Prompt(id=0, token_ids=[0], text="", messages=[], fields={})
        try:
            cleaned = clean(gold)
            if literal(clean(final_answer(boxed, prompt, "boxed") or "")) == literal(cleaned):
                return self._unreadable(gold) if self._refuses_unreadable and read_plain(gold) is None else None
            problem = "in a box it is another answer"
        except MalformedError as error:
            problem = str(error)
        return f"field 'answer': {gold[:80]!r} is not even right against itself: {problem}"

    def _unreadable(self, gold: str) -> str | None:
        """Why a right answer could only be compared by its letters, if that is so."""
        from prl.rewards.verdict.same import reading  # noqa: PLC0415 - with mpmath, and most right answers are plain

        read = reading(gold)
        if read.shape is not None or read.is_unknown:
            return None
        return (
            f"field 'answer': {gold[:80]!r} cannot be read ({read.problem}), so that only its own letters are right:"
            " write it otherwise, or set the reward's options.unreadable_gold = 'text'"
        )
