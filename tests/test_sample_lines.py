"""The lines of samples.jsonl: each number stands beside the token that it is of."""

from __future__ import annotations

import random
from array import array
from itertools import accumulate, compress
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.advantage import ADVANTAGES
from prl.batch import make_batch
from prl.sample_lines import sample_lines
from prl.types import Batch, Completion, Group, Score, Turn
from tests.factories import make_completion, make_group, make_prompt


def batch_of(groups: list[Group], **options: Any) -> Batch:
    """What is trained of these groups."""
    sizes = {"num_ranks": 2, "max_tokens_per_microbatch": 40}
    return make_batch(6, groups, advantage=ADVANTAGES["leave_one_out"], **{**sizes, **options})


def ids_as_logprobs(batch: Batch) -> list[bytes]:
    """As a trainer would say that the log-probability of each token were its id."""
    return [array("f", compress(sample.token_ids, sample.loss_mask)).tobytes() for sample in batch.samples]


def lines_of(groups: list[Group], **options: Any) -> list[dict[str, Any]]:
    """The lines of a step on these groups, whose trainer says ids."""
    batch = batch_of(groups, **options)
    return list(sample_lines(7, groups, batch, ids_as_logprobs(batch)))


def draw_completion(draw: random.Random) -> Completion:
    """One stream, or an episode whose turns go on with any sample of it, each id another."""
    ids = iter(draw.sample(range(1000, 9000), 200))
    if draw.random() < 0.3:
        return make_completion([next(ids) for _ in range(draw.randint(1, 6))])
    turns: list[Turn] = []
    for _ in range(draw.randint(1, 6)):
        num_samples = 1 + max((turn.sample for turn in turns), default=-1)
        context = [next(ids) for _ in range(draw.randint(1, 3))]
        sizes = {"num_sampled": draw.randint(1, 4), "context": context}
        turns.append(Turn(sample=draw.randint(0, num_samples), finish="stop", **sizes))
    completion = make_completion([next(ids) for _ in range(sum(turn.num_sampled for turn in turns))])
    return msgspec.structs.replace(completion, turns=turns, messages=[{"role": "user", "content": "go"}])


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 100_000))
def test_each_number_is_of_its_token(seed: int) -> None:
    """However many samples an episode becomes, and however the batch is planned."""
    draw = random.Random(seed)
    sizes = [draw.randint(1, 3) for _ in range(draw.randint(1, 4))]
    groups = [
        make_group(number, [draw.choice([0.0, 1.0]) for _ in range(size)], [draw_completion(draw) for _ in range(size)])
        for number, size in enumerate(sizes)
    ]
    lines = lines_of(groups, only_advantages_teach=draw.random() < 0.5)
    completions = [completion for group in groups for completion in group.completions]
    assert [line["trained_logprobs"] for line in lines] == [completion.token_ids for completion in completions]
    advantages = ADVANTAGES["leave_one_out"]([[score.reward for score in group.scores] for group in groups])
    assert [line["advantages"] for line in lines] == [round(value, 6) for of_group in advantages for value in of_group]
    assert [(line["group"], line["member"]) for line in lines] == [
        (number, member) for number, size in enumerate(sizes) for member in range(size)
    ]


def test_what_is_not_trained_has_no_numbers() -> None:
    """Masked as overlong: null, not 0. An advantage of 0 is one, and the trainer looked at those tokens."""
    cut, whole = make_completion([7, 8], finish="length"), make_completion([9])
    groups = [make_group(0, [1.0, 0.0], [cut, whole]), make_group(1, [1.0, 1.0], [whole, whole])]
    lines = lines_of(groups, mask_overlong=True, only_advantages_teach=True)
    assert [(line["advantages"], line["trained_logprobs"]) for line in lines] == [
        (None, None),
        (-1.0, [9.0]),
        (0.0, [9.0]),
        (0.0, [9.0]),
    ]


def test_a_trainer_that_was_not_asked() -> None:
    """Without its log-probabilities a line still says what the advantage was."""
    groups = [make_group(0, [1.0, 0.0])]
    assert [(line["advantages"], line["trained_logprobs"]) for line in sample_lines(7, groups, batch_of(groups))] == [
        (1.0, None),
        (-1.0, None),
    ]


def test_an_episode_is_told() -> None:
    """Its turns divide its tokens, its messages tell it to people, and the rewards' words stand beside their values."""
    turns = [Turn(sample=0, context=[1, 2], num_sampled=1, finish="stop")]
    messages = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "5"}]
    episode = msgspec.structs.replace(make_completion([7]), turns=turns, messages=messages)
    score = Score(reward=0.0, parts={"math": 0.0}, messages={"math": "wrong: 5, expected 4"})
    group = Group(prompt=make_prompt(3), completions=[episode], scores=[score])
    (line,) = lines_of([group])
    assert (line["turns"], line["messages"]) == (turns, messages)
    assert (line["parts"], line["part_messages"]) == ({"math": 0.0}, {"math": "wrong: 5, expected 4"})
    assert list(accumulate(turn.num_sampled for turn in line["turns"])) == [len(line["token_ids"])]
