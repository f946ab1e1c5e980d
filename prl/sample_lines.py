"""The lines of ``samples.jsonl``: each completion of a step, with what the trainer made of each of its tokens.

Invariants:

- What a line says of a token is about that token: a batch's samples are those of its groups' completions in order, an
  episode's tokens go to its samples turn by turn (``batch.py``), and both are taken apart the same way here.
- A completion that was not trained (masked as overlong) has neither an advantage nor the trainer's log-probabilities;
  one whose advantage is 0 has both, since the trainer looks at it, too.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple

from prl.trainer.base import LOGPROB_BYTES
from prl.types import Batch, Completion, Group

DIGITS = 6


class Learned(NamedTuple):
    """What the trainer made of one completion."""

    advantages: float | list[float] | None = None
    """Of all of its tokens, or of each where turns differ; None: it was not trained."""
    logprobs: list[float] | None = None
    """Of each of its tokens, under the weights that were trained; None: not known."""


def sample_lines(
    step: int, groups: Sequence[Group], batch: Batch | None = None, logprobs: Sequence[bytes] = ()
) -> Iterable[dict[str, Any]]:
    """One object for each completion of ``groups``: text for people; ids and numbers for the page and for checks.

    ``batch`` was made of the groups, and ``logprobs`` is what the trainer said of its samples (``TrainReport``). An
    episode has its ``turns``, too (the ids before each, and how many of ``token_ids`` it sampled), and its
    ``messages``.
    """
    learned = iter(()) if batch is None else _learned(groups, batch, logprobs)
    for group in groups:
        for member, (completion, score) in enumerate(zip(group.completions, group.scores, strict=True)):
            advantages, trained = next(learned, Learned())
            line = {
                "step": step,
                "group": group.prompt.id,
                "member": member,
                "prompt_id": group.prompt.id,
                "prompt": group.prompt.text,
                "completion": completion.text,
                "finish": completion.finish,
                "reward": score.reward,
                "parts": score.parts,
                "part_messages": score.messages,
                "prompt_token_ids": group.prompt.token_ids,
                "token_ids": completion.token_ids,
                "versions": completion.versions,
                "logprobs": [round(value, DIGITS) for value in completion.logprobs],
                "trained_logprobs": None if trained is None else [round(value, DIGITS) for value in trained],
                "advantages": _rounded(advantages),
            }
            yield {**line, "turns": completion.turns, "messages": completion.messages} if completion.turns else line


def _learned(groups: Sequence[Group], batch: Batch, logprobs: Sequence[bytes]) -> Iterator[Learned]:
    """What the trainer made of each completion, in order."""
    at = 0
    for group in groups:
        for completion in group.completions:
            end = at + (1 + max(turn.sample for turn in completion.turns) if completion.turns else 1)
            samples, of_samples = batch.samples[at:end], [_floats(data) for data in logprobs[at:end]]
            at = end
            if not any(any(sample.loss_mask) for sample in samples):
                yield Learned()
                continue
            trained = [list(compress(sample.advantages, sample.loss_mask)) for sample in samples]
            advantages = _by_token(completion, trained)
            is_one = advantages.count(advantages[0]) == len(advantages)
            yield Learned(
                advantages[0] if is_one else advantages, _by_token(completion, of_samples) if of_samples else None
            )


def _by_token(completion: Completion, of_samples: Sequence[Sequence[float]]) -> list[float]:
    """What is known of the sampled tokens of each sample, in the order of the completion's tokens."""
    if not completion.turns:
        return list(of_samples[0])
    left = [iter(of_sample) for of_sample in of_samples]
    return [next(left[turn.sample]) for turn in completion.turns for _ in range(turn.num_sampled)]


def _rounded(values: float | list[float] | None) -> float | list[float] | None:
    if isinstance(values, list):
        return [round(value, DIGITS) for value in values]
    return None if values is None else round(values, DIGITS)


def _floats(data: bytes) -> array[float]:
    """Little-endian float32, as the trainer sends it."""
    values = array("f", data)
    assert values.itemsize == LOGPROB_BYTES
    if sys.byteorder == "big":
        values.byteswap()
    return values
