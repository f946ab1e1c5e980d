r"""Make the model whose answers have a long tail: ``python -m prl.models.make_tiny_counting --out DIR``.

Architecture and tokenizer are those of ``tiny-math``; it is taught the sums of level 6, worked by counting on from the
first number, each time with how many are still to come: ``624 + 3`` is ``625 2, 626 1, 627 0 \boxed{627}``. So an
answer is as long as its second number is large, and those have a long tail.

The warm-up is a mixture on purpose. A third of its lessons are as above. The others have the fence-post error that
children make: they count the first number itself as one, ``624 2, 625 1, 626 0 \boxed{626}``, and end one too low.
Which of the two a lesson shows is drawn by chance, so the model can only guess: it counts well, errs over where to
begin, and about one sampled answer in three is right. (Its greedy answer is the habit, so greedy accuracy jumps from 0
to nearly 1 when the habit falls below a half; accuracy as sampled, at temperature 1, is what shows the learning.) What
reinforcement learning finds is where to begin, and then more care in the longest answers. Right and wrong answers are
equally long, so the distribution of lengths is the same from the first step of a run to the last: what a comparison of
schedules and of trainers needs.

Invariants: the same ``--seed`` makes the same texts on every machine and, on one machine with one thread, the same
weights; the lessons are of a split of their own, so no problem of the warm-up is one that a run trains on, nor one that
is held out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from transformers import PreTrainedTokenizerFast

from prl.arithmetic import Problem, problem
from prl.models.make_tiny_math import as_tensors, encode_lesson, make

LEVEL = 6
NUM_STEPS = 1500
SHARE_OF_HABIT = 0.65
"""Share of the lessons that count the first number itself as one."""
NUM_SORTED = 512
"""Lessons that are drawn together and batched by length, so that short ones are not padded to the longest."""
MAX_TOKENS = 2048
"""Of one batch, padding included: a batch holds many short lessons or a few long ones."""


def by_counting(made: Problem, *, from_itself: bool = False) -> str:
    """The numbers counted on the way to the sum, each with how many are still to come.

    ``from_itself`` counts the first number as one, and so ends one too low.
    """
    start, count = (int(digits) for digits in made.question.split()[:3:2])
    first = start + (not from_itself)
    counted = [f"{first + index} {count - 1 - index}" for index in range(count)]
    return ", ".join(counted) + f" \\boxed{{{first + count - 1}}}"


def lesson(index: int, seed: int) -> tuple[Problem, str]:
    """The ``index``-th problem of the warm-up and the answer that is taught for it."""
    dice = random.Random(f"lesson/{index}/{seed}").random  # noqa: S311 - not for secrets
    made = problem(LEVEL, index, seed, "lesson")
    return made, by_counting(made, from_itself=dice() < SHARE_OF_HABIT)


def batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless (token ids, labels), each [lessons, longest]; labels only where the assistant speaks."""
    index, shuffle = 0, random.Random(f"batches/{seed}").shuffle  # noqa: S311 - not for secrets
    while True:
        taught = (encode_lesson(tokenizer, *lesson(index + offset, seed)) for offset in range(NUM_SORTED))
        index += NUM_SORTED
        drawn: list[list[tuple[list[int], int]]] = [[]]
        for encoded in sorted(taught, key=_length):
            if (len(drawn[-1]) + 1) * _length(encoded) > MAX_TOKENS:
                drawn.append([])
            drawn[-1].append(encoded)
        shuffle(drawn)
        for rows in drawn:
            yield as_tensors(tokenizer, rows)


def _length(encoded: tuple[list[int], int]) -> int:
    return len(encoded[0])


if __name__ == "__main__":
    make("tiny-counting", "Make the small model with the long-tailed answers.", NUM_STEPS, batches)
