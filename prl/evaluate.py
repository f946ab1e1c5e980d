"""Held-out prompts, answered by one version of the weights.

Invariant: an evaluation never mixes versions. Nothing pushes weights while one runs, and every sampled token's stamp is
checked against the version it speaks of. Answers that could not be sampled or scored are counted, never taken for 0.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from prl.engines.base import Decoding
from prl.errors import EngineError, PrlError
from prl.failure import FirstFailure, failures_to
from prl.rollout import Dropped
from prl.types import Completion, Prompt, Score, Verdict

Z_95 = 1.96


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One held-out prompt, answered and judged."""

    prompt: str
    completion: str
    reward: float
    expected: str


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The mean reward on held-out prompts, with its uncertainty."""

    version: int
    reward_mean: float
    interval: float
    """Half width of the 95 % confidence interval of the mean."""
    num_samples: int
    num_failed: int
    answers: list[Answer]


async def evaluate(
    prompts: Sequence[Prompt],
    sample: Callable[[Prompt, Decoding], Awaitable[Completion | Dropped]],
    score: Callable[[Completion, Prompt], Awaitable[Verdict]],
    *,
    decoding: Decoding,
    version: int,
    concurrency: int,
    timeout_s: float,
) -> Evaluation:
    """Answer every prompt once, at most ``concurrency`` at a time.

    Raises:
        PrlError: it took longer than ``timeout_s``, nothing could be judged, or a token came from another version.
    """
    places = asyncio.Semaphore(concurrency)
    failure = FirstFailure()

    async def answer(prompt: Prompt) -> Answer | None:
        async with places:
            completion = await sample(prompt, decoding)
        if isinstance(completion, Dropped):
            return None
        if set(completion.versions) != {version}:
            raise EngineError(f"an evaluation of version {version} was answered by versions {set(completion.versions)}")
        verdict = await score(completion, prompt)
        if not isinstance(verdict, Score):
            return None
        expected = str(prompt.fields.get("answer", ""))
        return Answer(prompt=_asked(prompt), completion=completion.text, reward=verdict.reward, expected=expected)

    async def guarded(prompt: Prompt) -> Answer | None:
        with failures_to(failure.set, f"the evaluation of prompt {prompt.id}"):
            return await answer(prompt)
        return None

    with failure.interrupts():
        try:
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
                tasks = [group.create_task(guarded(prompt)) for prompt in prompts]
        except TimeoutError:
            raise PrlError(
                f"the evaluation of {len(prompts)} prompts took longer than eval.timeout_s = {timeout_s:g} s"
            ) from None
    answers = [answered for task in tasks if (answered := task.result()) is not None]
    if not answers:
        raise PrlError(f"none of the {len(prompts)} answers of the evaluation could be sampled and judged")
    rewards = [answered.reward for answered in answers]
    return Evaluation(
        version=version,
        reward_mean=statistics.fmean(rewards),
        interval=Z_95 * statistics.pstdev(rewards) / math.sqrt(len(rewards)),
        num_samples=len(answers),
        num_failed=len(prompts) - len(answers),
        answers=answers,
    )


def _asked(prompt: Prompt) -> str:
    """The question as its author wrote it."""
    return prompt.messages[-1]["content"] if prompt.messages else prompt.text
