"""Held-out prompts, answered by one version of the weights.

Invariant: an evaluation never mixes versions. Nothing pushes weights while one runs, and every sampled token's stamp is
checked against the version it speaks of. Answers that could not be sampled or scored are counted, never taken for 0.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec

from prl.config_eval import EvalConfig
from prl.engines.base import Decoding
from prl.errors import EngineError, PrlError
from prl.estimates import Estimate, estimate, pass_at_k
from prl.failure import FirstFailure, failures_to
from prl.sampler import Dropped, stream_seed
from prl.types import Completion, Prompt, Score, Verdict
from prl.waits import waiting

_SEED_DOMAIN = -1
"""Keeps the seeds of evaluations apart from those of rollouts, whose first part is the run's."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to a held-out prompt, judged."""

    prompt_id: int
    prompt: str
    completion: str
    reward: float
    expected: str
    num_tokens: int
    finish: Literal["stop", "length"]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """How one version of the weights answers the held-out prompts."""

    version: int
    reward_mean: float
    """Mean over the prompts of their answers' mean reward."""
    is_accuracy: bool = False
    """Whether that is the share of right answers: the reward of each was 0 or 1. Older run folders do not say."""
    interval: tuple[float, float]
    """The 95 % confidence interval of that mean, from its lower to its upper end."""
    pass_at: dict[int, Estimate]
    """pass@k by k, over the prompts that have as many answers."""
    num_prompts: int
    """Prompts with an answer."""
    num_answers: int
    """Answers that were judged."""
    num_failed: int
    """Answers that could not be sampled or judged."""
    length_mean: float
    """Tokens per answer."""
    length_max: int
    truncated: float
    """Share of the answers that were cut at their longest."""
    seconds: float
    block_s: float = 0.0
    """How much of that training waited for."""
    answers: list[Answer]

    def line(self) -> dict[str, Any]:
        """The object written to ``evaluations.jsonl``."""
        fields = msgspec.structs.asdict(self)
        del fields["answers"]
        return {"step": self.version, "complete": True, **fields}


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluation asks for."""

    decoding: Decoding
    num_answers: int
    pass_at: tuple[int, ...]
    pass_reward: float
    concurrency: int
    """Most streams at once."""
    seed: int | None
    """Seeds every stream, the same for every version, where the engine supports it."""


def ks_of(config: EvalConfig) -> tuple[int, ...]:
    """The k of pass@k, ascending."""
    if config.pass_at is not None:
        return tuple(sorted(set(config.pass_at)))
    return (1, config.num_answers) if config.num_answers > 1 else ()


async def evaluate(
    prompts: Sequence[Prompt],
    sample: Callable[[Prompt, Decoding], Awaitable[Completion | Dropped]],
    score: Callable[[Completion, Prompt], Awaitable[Verdict]],
    *,
    asked: Asked,
    version: int,
    on_answer: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Answer every prompt as often as asked. The caller owns the deadline.

    Raises:
        PrlError: nothing could be judged, or a token came from another version.
    """
    clock = asyncio.get_running_loop().time
    began_at, failure, places = clock(), FirstFailure(), asyncio.Semaphore(asked.concurrency)

    async def answer(prompt: Prompt, number: int) -> Answer | None:
        try:
            completion = await sample(prompt, _decoding(asked, prompt, number))
        finally:
            places.release()
        if isinstance(completion, Dropped):
            return None
        if set(completion.versions) != {version}:
            raise EngineError(f"an evaluation of version {version} was answered by versions {set(completion.versions)}")
        verdict = await score(completion, prompt)
        return _answer(prompt, completion, verdict.reward) if isinstance(verdict, Score) else None

    async def guarded(prompt: Prompt, number: int) -> Answer | None:
        what = f"the evaluation of prompt {prompt.id}"
        with failures_to(failure.set, what), waiting(f"held-out prompt {prompt.id}", aside=True):
            answered = await answer(prompt, number)
            on_answer()
            return answered
        return None

    tasks: list[asyncio.Task[Answer | None]] = []
    with failure.interrupts():
        async with asyncio.TaskGroup() as group:
            for prompt in prompts:
                for number in range(asked.num_answers):
                    await places.acquire()
                    tasks.append(group.create_task(guarded(prompt, number)))
    answers = [answered for task in tasks if (answered := task.result()) is not None]
    if not answers:
        raise PrlError(f"none of the {len(tasks)} answers of the evaluation could be sampled and judged")
    return await asyncio.to_thread(
        _evaluation, answers, asked, version, num_failed=len(tasks) - len(answers), seconds=clock() - began_at
    )


def _decoding(asked: Asked, prompt: Prompt, number: int) -> Decoding:
    if asked.seed is None:
        return asked.decoding
    return msgspec.structs.replace(asked.decoding, seed=stream_seed(_SEED_DOMAIN, asked.seed, prompt.id, number))


def _answer(prompt: Prompt, completion: Completion, reward: float) -> Answer:
    return Answer(
        prompt_id=prompt.id,
        prompt=prompt.messages[-1]["content"] if prompt.messages else prompt.text,
        completion=completion.text,
        reward=reward,
        expected=str(prompt.fields.get("answer", "")),
        num_tokens=len(completion.token_ids),
        finish=completion.finish,
    )


def _evaluation(answers: list[Answer], asked: Asked, version: int, *, num_failed: int, seconds: float) -> Evaluation:
    rewards: dict[int, list[float]] = {}
    for answered in answers:
        rewards.setdefault(answered.prompt_id, []).append(answered.reward)
    mean = estimate(list(rewards.values()))
    lengths = [answered.num_tokens for answered in answers]
    return Evaluation(
        version=version,
        reward_mean=mean.mean,
        is_accuracy=all(answered.reward in {0.0, 1.0} for answered in answers),
        interval=(mean.low, mean.high),
        pass_at=_pass_at(list(rewards.values()), asked),
        num_prompts=len(rewards),
        num_answers=len(answers),
        num_failed=num_failed,
        length_mean=statistics.fmean(lengths),
        length_max=max(lengths),
        truncated=sum(answered.finish == "length" for answered in answers) / len(answers),
        seconds=seconds,
        answers=answers,
    )


def _pass_at(rewards_by_prompt: Sequence[Sequence[float]], asked: Asked) -> dict[int, Estimate]:
    """pass@k by k; a k that no prompt has answers enough for is left out."""
    found = {}
    for k in asked.pass_at:
        enough = [rewards for rewards in rewards_by_prompt if len(rewards) >= k]
        if enough:
            passed = [sum(reward >= asked.pass_reward for reward in rewards) for rewards in enough]
            found[k] = estimate([[pass_at_k(len(r), c, k)] for r, c in zip(enough, passed, strict=True)])
    return found
