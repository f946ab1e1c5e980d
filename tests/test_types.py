"""The invariants of the sentence's types: a value that exists is complete and right."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from prl.types import Batch, Completion, Group, Prompt, Sample, Score, TokenChunk
from tests.factories import make_completion, make_group, make_prompt


def test_a_chunk_has_a_logprob_for_each_token() -> None:
    """A chunk whose lists differ in length is refused, with both lengths in the message."""
    with pytest.raises(ValueError, match="2 tokens and 1 log-probabilities"):
        TokenChunk(token_ids=[1, 2], logprobs=[-0.5], version=0)


def test_a_chunk_may_be_empty() -> None:
    """A stream may end with a chunk that brings nothing but its finish."""
    assert TokenChunk(token_ids=[], logprobs=[], version=0, finish="abort").finish == "abort"


@pytest.mark.parametrize(
    ("token_ids", "logprobs", "versions"),
    [
        ([], [], []),
        ([1, 2], [-0.5], [0, 0]),
        ([1, 2], [-0.5, -0.5], [0]),
        ([1], [-0.5, -0.5], [0, 0]),
    ],
)
def test_a_completion_has_three_lists_of_one_length(
    token_ids: list[int], logprobs: list[float], versions: list[int]
) -> None:
    """Field notes C, re-tokenised text: ids, log-probabilities and versions speak of the same tokens, at least one."""
    with pytest.raises(ValueError, match="three lists of one length"):
        Completion(token_ids=token_ids, logprobs=logprobs, versions=versions, text="", finish="stop")


def test_the_versions_of_a_completion_never_decrease() -> None:
    """Weights only move forward, so a version below its predecessor is a wrong stamp."""
    assert make_completion([1, 2, 3], versions=[0, 2, 2]).versions == [0, 2, 2]
    with pytest.raises(ValueError, match=r"decrease: \[1, 0\]"):
        make_completion([1, 2], versions=[1, 0])


@pytest.mark.parametrize("logprob", [math.nan, -math.inf, math.inf, 0.1])
@pytest.mark.parametrize("position", [0, 1])
def test_a_completion_refuses_a_logprob_that_is_none(logprob: float, position: int) -> None:
    """Field notes D, None / NaN / -inf: no such log-probability enters the system, wherever it stands."""
    logprobs = [-0.5, -0.5]
    logprobs[position] = logprob
    with pytest.raises(ValueError, match="not finite or is above 0"):
        make_completion([1, 2], logprobs=logprobs)


def test_a_completion_takes_rounding_above_0() -> None:
    """A certain token's log-probability may come out a rounding error above 0."""
    assert make_completion([1], logprobs=[1e-6]).logprobs == [1e-6]


def test_only_stop_and_length_make_a_completion() -> None:
    """Field notes B, partial tokens that look like an answer: an abort is no finish of a completion, by its type."""
    aborted = msgspec.structs.asdict(make_completion()) | {"finish": "abort"}
    with pytest.raises(msgspec.ValidationError, match="abort"):
        msgspec.convert(aborted, Completion)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_score_is_finite(reward: float) -> None:
    """Field notes E, reward exceptions and None: a score is a number one can learn from."""
    with pytest.raises(ValueError, match="must be finite"):
        Score(reward=reward)


@pytest.mark.parametrize(("num_completions", "num_scores"), [(0, 0), (1, 2), (2, 1)])
def test_a_group_scores_each_completion(num_completions: int, num_scores: int) -> None:
    """A group has as many scores as completions, and at least one."""
    with pytest.raises(ValueError, match=f"{num_scores}, {num_completions}"):
        Group(
            prompt=make_prompt(),
            completions=[make_completion()] * num_completions,
            scores=[Score(reward=0.0)] * num_scores,
        )


@pytest.mark.parametrize("short", ["token_ids", "loss_mask", "logprobs", "versions", "advantages"])
def test_a_sample_has_five_lists_of_one_length(short: str) -> None:
    """Whichever list of a sample is shorter than the others, it is refused."""
    lists: dict[str, list[Any]] = {
        "token_ids": [1, 2],
        "loss_mask": [0, 1],
        "logprobs": [0.0, -0.5],
        "versions": [-1, 0],
        "advantages": [0.0, 1.0],
    }
    Sample(**lists)
    with pytest.raises(ValueError, match=r"one length, got \[1, 2\]"):
        Sample(**{**lists, short: lists[short][:1]})


@pytest.mark.parametrize("advantage", [1.0, -1e-9, math.nan])
def test_a_sample_has_no_advantage_where_it_is_masked(advantage: float) -> None:
    """Field notes D, numerator and denominator use different masks: an advantage under mask 0 cannot exist."""
    with pytest.raises(ValueError, match="where its mask is 0"):
        Sample(token_ids=[1], loss_mask=[0], logprobs=[0.0], versions=[-1], advantages=[advantage])


@pytest.mark.parametrize("value", [make_prompt(answer="7"), make_completion(), make_group(0, [1.0, 0.0])])
def test_values_are_frozen_and_survive_the_wire(value: Any) -> None:
    """A value never changes after it was checked, and comes back equal from msgpack."""
    with pytest.raises(AttributeError):
        setattr(value, value.__struct_fields__[0], None)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type(value)) == value


def test_checks_hold_for_decoded_values_too() -> None:
    """What arrives over the wire is checked as what is made here is."""
    batch = {"step": 0, "plan": [[[0]]], "num_sequences": 1}
    sample = {"token_ids": [1, 2], "loss_mask": [1], "logprobs": [-1.0], "versions": [0], "advantages": [0.0]}
    with pytest.raises(msgspec.ValidationError, match=r"one length.*samples\[0\]"):
        msgspec.convert({**batch, "samples": [sample]}, Batch)


def test_a_prompt_keeps_the_fields_of_its_row() -> None:
    """Fields that prl does not read reach the rewards as they are, nested ones too."""
    prompt = make_prompt(3, answer="12", meta={"level": [1, 2]})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(prompt), type=Prompt).fields == {
        "answer": "12",
        "meta": {"level": [1, 2]},
    }
