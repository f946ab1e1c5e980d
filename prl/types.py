"""The sentence of prl as seven frozen types, one per stage of a token's life.

    Prompt -> TokenChunk* -> Completion -> Score -> Group -> Batch -> WeightUpdate

Each stage has a type of its own and no field waits to be filled by a later one, so a value that exists is complete.
The checks in ``__post_init__`` are the invariants the rest of the code relies on without looking again:

- a chunk holds tokens of one weight version; a completion's lists have one length and its versions never decrease
  within a stream;
- an episode of several turns is one completion: its lists hold what was sampled, turn after turn, and its ``turns`` say
  what stood before each of them, so that every sampled token is in exactly one sample;
- a score is a finite number, and neither an abstention nor a failure is ever a score;
- a group has as many scores as completions;
- a sample's five lists have one length, and its advantage is 0 wherever its mask is.

Versions count optimiser steps: version v is what the weights are after v steps, and the batch of step v is trained on
version v and makes version v + 1.
"""

from __future__ import annotations

import math
from itertools import accumulate, compress
from operator import not_
from typing import Any, Literal, TypeVar

import msgspec

T = TypeVar("T")
BUCKET_BYTES = 64 << 20
"""What a weight transfer sends at once, where nothing else is said."""
Finish = Literal["stop", "length", "abort"]
"""Why a stream ended: a stop token, a length limit, or an abort. Only the first two may reach scoring."""


def are_logprobs(values: list[float]) -> bool:
    """Whether each is finite and not above 0, but for rounding. Every sampled token passes here."""
    return all(map(math.isfinite, values)) and max(values, default=0.0) <= 1e-3  # noqa: PLR2004


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the data, rendered to token ids once. Ids increase in admission order."""

    id: int
    """Position in the order of admission; also the data cursor."""
    token_ids: list[int]
    """The prompt exactly as the engine and the trainer see it, chat template applied, at most one BOS."""
    text: str
    """What ``token_ids`` says, for rewards and people."""
    messages: list[dict[str, str]]
    """The conversation the text was rendered from; empty for a plain prompt."""
    fields: dict[str, Any]
    """The row's other fields (``answer`` among them), for rewards."""


class TokenChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Some tokens of one stream, all sampled by one weight version."""

    token_ids: list[int]
    logprobs: list[float]
    """Natural log-probability of each token under the distribution it was sampled from (after temperature)."""
    version: int
    finish: Finish | None = None
    """None while the stream goes on; exactly the last chunk of a stream has one."""

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            msg = f"a chunk has {len(self.token_ids)} tokens and {len(self.logprobs)} log-probabilities"
            raise ValueError(msg)


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of an episode: what stood before it, and how many of the completion's tokens it sampled."""

    sample: int
    """The sample that it is in, counted from 0 in the order in which they begin."""
    context: list[int]
    """The token ids before it, none of which is trained: behind the sample's last turn what came in between (a user's
    answer, a tool's result), and in a sample's first turn everything."""
    num_sampled: int
    finish: Literal["stop", "length"]
    earned: float = 0.0
    """What the environment had given the episode when this turn was asked for, so not by what was sampled in it."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a group: what was sampled, by which versions, and how it reads.

    Mostly that is one finished stream behind the prompt. An episode has several; its ``turns`` divide the lists.
    """

    token_ids: list[int]
    """Length T >= 1, every sampled stop token included."""
    logprobs: list[float]
    """Length T, finite and <= 0 up to rounding."""
    versions: list[int]
    """Length T, never decreasing within a stream."""
    text: str
    """The tokens decoded without special tokens, an episode's those of its last turn; for rewards and people, never for
    training."""
    finish: Literal["stop", "length"]
    """How the last stream ended."""
    turns: list[Turn] = []
    """The streams of an episode, in the order in which they ended; empty for one stream behind the prompt."""
    rewards: dict[str, float] = {}
    """What the environment gave the episode, by part."""
    messages: list[dict[str, Any]] = []
    """The conversation that an episode ended with, its last answer included, for people; see ``transcript.py``."""
    noted: dict[str, float] = {}
    """What it noted beside them, worth nothing."""

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.logprobs) == len(self.versions) >= 1:
            lengths = (len(self.token_ids), len(self.logprobs), len(self.versions))
            msg = f"a completion needs three lists of one length >= 1 (tokens, logprobs, versions): {lengths}"
            raise ValueError(msg)
        if self.turns:
            _check_turns(self.turns, len(self.token_ids))
        for versions in by_turn(self.turns, self.versions):
            if versions != sorted(versions):
                msg = f"the versions of a completion decrease: {versions}"
                raise ValueError(msg)
        if not are_logprobs(self.logprobs):
            msg = "a completion holds a log-probability that is not finite or is above 0"
            raise ValueError(msg)


def by_turn(turns: list[Turn], values: list[T]) -> list[list[T]]:
    """A list of a completion divided by its turns; whole where it has none."""
    if not turns:
        return [values]
    ends = list(accumulate(turn.num_sampled for turn in turns))
    return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _check_turns(turns: list[Turn], num_tokens: int) -> None:
    """Raise ValueError unless every token is in one turn, and every sample begins with a context."""
    if sum(turn.num_sampled for turn in turns) != num_tokens or any(turn.num_sampled < 1 for turn in turns):
        msg = f"{num_tokens} tokens are not those of the turns: {[turn.num_sampled for turn in turns]}"
        raise ValueError(msg)
    num_samples = 0
    for turn in turns:
        if not 0 <= turn.sample <= num_samples or (turn.sample == num_samples and not turn.context):
            msg = f"a turn of sample {turn.sample} where {num_samples} have begun, behind {len(turn.context)} tokens"
            raise ValueError(msg)
        num_samples = max(num_samples, turn.sample + 1)


class Score(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The judgement of one completion: the weighted sum of its parts."""

    reward: float
    parts: dict[str, float] = {}
    """Reward by name, before weighting."""
    messages: dict[str, str] = {}
    """What a reward said about it, by name, for people."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward):
            msg = f"a score must be finite, got {self.reward}"
            raise ValueError(msg)


class Abstained(msgspec.Struct, frozen=True, kw_only=True):
    """A reward declined to judge; the completion leaves its group's statistics."""

    reason: str


class ScoringFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A reward failed or timed out: an infrastructure failure, never a reward of 0."""

    reason: str
    """A short key that names the counter, such as ``reward_timeout``."""
    message: str
    """One line for people: which reward, what happened."""


Verdict = Score | Abstained | ScoringFailed


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt with its scored completions, in the order they were requested."""

    prompt: Prompt
    completions: list[Completion]
    scores: list[Score]

    def __post_init__(self) -> None:
        if not len(self.completions) == len(self.scores) >= 1:
            msg = (
                f"a group needs as many scores as completions, at least 1: {len(self.scores)}, {len(self.completions)}"
            )
            raise ValueError(msg)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to train on: prompt and completion, five lists of one length L.

    Position t speaks of token t: its mask says whether it was sampled, its log-probability, version and advantage are
    those of sampling it. Prompt positions carry mask 0, log-probability 0, version -1 and advantage 0.
    """

    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    versions: list[int]
    advantages: list[float]

    def __post_init__(self) -> None:
        lengths = {
            len(self.token_ids),
            len(self.loss_mask),
            len(self.logprobs),
            len(self.versions),
            len(self.advantages),
        }
        if len(lengths) != 1:
            msg = f"the five lists of a sample must have one length, got {sorted(lengths)}"
            raise ValueError(msg)
        if any(compress(self.advantages, map(not_, self.loss_mask))):
            msg = "a sample has an advantage where its mask is 0"
            raise ValueError(msg)


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one optimiser step and the plan that every trainer rank follows.

    ``plan[rank][microbatch]`` lists indices into ``samples``. All ranks have the same number of micro-batches, so
    their collectives stay in step; each sample appears in exactly one of them; a micro-batch may be empty.
    """

    step: int
    """The step this batch is for: trained on version ``step``, making version ``step + 1``."""
    samples: list[Sample]
    plan: list[list[list[int]]]
    num_teaching: int | None = None
    """Micro-batches of each rank, the first ones, whose samples have a gradient; None: all. That of the others is 0 to
    the bit, so they are looked at for their numbers and no backward pass is made."""
    num_sequences: int
    """B, the loss's denominator: sequences with at least one unmasked token, over all ranks."""
    with_logprobs: bool = False
    """Whether the trainer reports the log-probability of every trained token, too."""


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a weight transfer, in the names and dtypes of a Hugging Face checkpoint."""

    name: str
    dtype: str
    """A torch dtype without its prefix, such as ``float32``."""
    shape: list[int]


class WeightUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A new version of the weights on its way into the engines. Versions increase by one."""

    version: int
    transport: str
    manifest: list[TensorSpec]
    """What is sent, in sending order, in the dtypes in which it travels: one canonical name per tensor, tied names
    once. Or adapters alone, as two tensors for each of their weights (see ``adapters.py``)."""
    part: int = 0
    """Which of the weight groups it is sent to."""


class WeightGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Where the trainer (rank 0) and every engine worker meet to transfer weights."""

    transport: str
    address: str
    port: int
    world_size: int
    """1 for the sending trainer rank plus every worker of every engine in it."""
    timeout_s: float
    """Deadline of the meeting, and of each transfer."""
    bucket_bytes: int = BUCKET_BYTES
    """Payload of one message; the same on all ranks."""
    part: int = 0
    """Which it is of the groups that the trainer is in at once: engines that receive one after another are in groups of
    their own."""
    num_parts: int = 1
