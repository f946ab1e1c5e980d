"""Small values for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from prl.evaluate import Answer, Evaluation
from prl.types import Completion, Group, Prompt, Score


def make_prompt(number: int = 0, *, num_tokens: int = 2, **fields: Any) -> Prompt:
    """Prompt ``number``, of token ids that no other prompt starts with."""
    token_ids = [100 + number, *range(1, num_tokens)]
    return Prompt(id=number, token_ids=token_ids, text=f"prompt {number}", messages=[], fields=fields)


def make_completion(
    token_ids: Sequence[int] = (7, 8, 9),
    *,
    logprobs: Sequence[float] | None = None,
    versions: Sequence[int] | None = None,
    finish: Literal["stop", "length"] = "stop",
) -> Completion:
    """A completion of ``token_ids``; by default version 0 sampled all of them."""
    return Completion(
        token_ids=list(token_ids),
        logprobs=[-0.5] * len(token_ids) if logprobs is None else list(logprobs),
        versions=[0] * len(token_ids) if versions is None else list(versions),
        text=" ".join(map(str, token_ids)),
        finish=finish,
    )


def make_group(number: int, rewards: Sequence[float], completions: Sequence[Completion] | None = None) -> Group:
    """A group of prompt ``number`` with these rewards; member i sampled i + 1 tokens unless completions are given."""
    if completions is None:
        completions = [make_completion(range(10, 11 + member)) for member in range(len(rewards))]
    return Group(
        prompt=make_prompt(number),
        completions=list(completions),
        scores=[Score(reward=reward) for reward in rewards],
    )


def make_answer(
    number: int = 0, *, prompt: str = "", completion: str = "", reward: float = 1.0, expected: str = ""
) -> Answer:
    """An answer of three tokens to held-out prompt ``number``."""
    return Answer(
        prompt_id=number,
        prompt=prompt,
        completion=completion,
        reward=reward,
        expected=expected,
        num_tokens=3,
        finish="stop",
    )


def make_evaluation(*answers: Answer, **changes: Any) -> Evaluation:
    """An evaluation of version 0: 128 prompts, one answer each, half of them right."""
    fields: dict[str, Any] = {
        "version": 0,
        "reward_mean": 0.5,
        "is_accuracy": True,
        "interval": (0.4, 0.6),
        "pass_at": {},
        "num_prompts": 128,
        "num_answers": 128,
        "num_failed": 0,
        "length_mean": 3.0,
        "length_max": 3,
        "truncated": 0.0,
        "seconds": 1.0,
        "answers": list(answers),
    }
    return Evaluation(**{**fields, **changes})
