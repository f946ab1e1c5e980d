r"""Make the model whose answers have a long tail: ``python -m prl.models.make_tiny_remainder --out DIR``.

Architecture and tokenizer are those of ``tiny-math``; it is taught the remainders of level 6, worked by taking the
divisor away until less than it is left: ``23 % 5`` is answered ``18, 13, 8, 3 \boxed{3}``. Every step is easy, so
whether an answer is right depends on how many there are: a short one mostly is, one of a hundred steps hardly ever.
What reinforcement learning finds is care: the steps stay the same and fewer go wrong. Lengths hence keep their tail
from the first step of a run to the last, which is what a comparison of schedules needs.

Invariants: the same ``--seed`` makes the same texts on every machine and, on one machine with one thread, the same
weights; no evaluation problem is in the warm-up.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from prl.arithmetic import Problem, problem
from prl.models import BUILTIN_MODELS
from prl.models.make_tiny_math import as_tensors, encode_lesson, make_model, make_tokenizer, save, warm_up

LEVEL = 6
NUM_STEPS = 700
NUM_SORTED = 512
"""Lessons that are drawn together and batched by length, so that short ones are not padded to the longest."""
MAX_TOKENS = 2048
"""Of one batch, padding included: a batch holds many short lessons or a few long ones."""


def by_subtraction(made: Problem) -> str:
    """The answer with every difference on the way to the remainder."""
    dividend, _, divisor = made.question.split()[:3]
    left, step = int(dividend), int(divisor)
    return ", ".join(map(str, range(left - step, -1, -step))) + f" \\boxed{{{made.answer}}}"


def batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless (token ids, labels), each [lessons, longest]; labels only where the assistant speaks."""
    index, shuffle = 0, random.Random(f"batches/{seed}").shuffle  # noqa: S311 - not for secrets
    while True:
        made = [problem(LEVEL, index + offset, seed, "train") for offset in range(NUM_SORTED)]
        index += NUM_SORTED
        lessons = sorted((encode_lesson(tokenizer, each, by_subtraction(each)) for each in made), key=_length)
        drawn: list[list[tuple[list[int], int]]] = [[]]
        for lesson in lessons:
            if (len(drawn[-1]) + 1) * _length(lesson) > MAX_TOKENS:
                drawn.append([])
            drawn[-1].append(lesson)
        shuffle(drawn)
        for rows in drawn:
            yield as_tensors(tokenizer, rows)


def _length(lesson: tuple[list[int], int]) -> int:
    return len(lesson[0])


def main() -> None:
    """Make the tokenizer and the model, teach it, and save both in one folder."""
    parser = argparse.ArgumentParser(description="Make the small model with the long-tailed answers.")
    parser.add_argument("--out", type=Path, default=BUILTIN_MODELS["tiny-remainder"], help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-steps", type=int, default=NUM_STEPS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, arguments.seed)
    warm_up(model, batches(tokenizer, arguments.seed), arguments.num_steps)
    save(model, tokenizer, arguments.out)


if __name__ == "__main__":
    main()
