"""Groups into the batch of one optimiser step. Pure: the same groups give the same batch.

Invariants:

- What was sampled is what is trained: token ids are copied, never re-tokenised, and masks come from lengths, never from
  token ids, so a sampled stop token is trained even where it doubles as padding.
- The plan puts every sample into exactly one micro-batch and gives all ranks the same number of micro-batches, so that
  their collectives stay in step; where samples run out, a micro-batch is empty.
- Samples without a gradient (an advantage of exactly 0, where the loss has nothing else) are planned apart and last, at
  the same places on all ranks, so that nobody makes a backward pass for them. One pass is always made: an optimiser
  step whose gradient is 0 is still a step.
- An episode becomes a sample for each of its token sequences: what was sampled in any turn is trained, and what stood
  before it (a prompt, a user's answer, a tool's result) never is. ``credit.py`` says which advantage a turn has.
- ``num_sequences`` is counted over the whole batch after masking, so the loss does not depend on the plan.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections.abc import Sequence

from prl.advantage import Advantage
from prl.credit import Credit, advantages_of
from prl.shaping import Shaping, plain
from prl.types import Batch, Completion, Group, Prompt, Sample

PROMPT_VERSION = -1
"""The version of a token that was not sampled."""


def make_sample(prompt: Prompt, completion: Completion, advantage: float, *, trained: bool = True) -> Sample:
    """Join prompt and completion; every sampled token carries the completion's advantage, or none is trained."""
    num_prompt, num_sampled = len(prompt.token_ids), len(completion.token_ids)
    mask = int(trained)
    return Sample(
        token_ids=[*prompt.token_ids, *completion.token_ids],
        loss_mask=[0] * num_prompt + [mask] * num_sampled,
        logprobs=[0.0] * num_prompt + completion.logprobs,
        versions=[PROMPT_VERSION] * num_prompt + completion.versions,
        advantages=[0.0] * num_prompt + [advantage if trained else 0.0] * num_sampled,
    )


def make_samples(
    prompt: Prompt, completion: Completion, advantages: Sequence[float], *, trained: bool = True
) -> list[Sample]:
    """The samples of a completion: one, but for an episode with turns that do not extend what was before them.

    There is an advantage for each turn, and one where there are none.
    """
    if not completion.turns:
        (advantage,) = advantages
        return [make_sample(prompt, completion, advantage, trained=trained)]
    samples = [Sample(token_ids=[], loss_mask=[], logprobs=[], versions=[], advantages=[])] * (
        1 + max(turn.sample for turn in completion.turns)
    )
    mask, at = int(trained), 0
    for turn, advantage in zip(completion.turns, advantages, strict=True):
        value = advantage if trained else 0.0
        before, num_context, end = samples[turn.sample], len(turn.context), at + turn.num_sampled
        samples[turn.sample] = Sample(
            token_ids=[*before.token_ids, *turn.context, *completion.token_ids[at:end]],
            loss_mask=[*before.loss_mask] + [0] * num_context + [mask] * turn.num_sampled,
            logprobs=[*before.logprobs, *[0.0] * num_context, *completion.logprobs[at:end]],
            versions=[*before.versions, *[PROMPT_VERSION] * num_context, *completion.versions[at:end]],
            advantages=[*before.advantages] + [0.0] * num_context + [value] * turn.num_sampled,
        )
        at = end
    return samples


def make_batch(
    step: int,
    groups: Sequence[Group],
    *,
    advantage: Advantage,
    credit: Credit = "episode",
    num_ranks: int,
    max_tokens_per_microbatch: int,
    rewards_of: Shaping = plain,
    mask_overlong: bool = False,
    only_advantages_teach: bool = False,
    with_logprobs: bool = False,
) -> Batch:
    """Shape and compare rewards, join, mask, and plan. Order of samples: groups as given, members as requested.

    A completion masked as overlong (``mask_overlong``: all that ended at a length limit) still counts in its group's
    statistics, and no longer in the loss's denominator. ``only_advantages_teach`` says that the loss has a gradient
    only where an advantage is not 0.
    """
    advantages_BGT = advantages_of(groups, [rewards_of(group) for group in groups], advantage, credit)
    samples = [
        sample
        for group, advantages_GT in zip(groups, advantages_BGT, strict=True)
        for completion, advantages_T in zip(group.completions, advantages_GT, strict=True)
        for sample in make_samples(
            group.prompt, completion, advantages_T, trained=not (mask_overlong and completion.finish == "length")
        )
    ]
    teaching = [index for index, sample in enumerate(samples) if not only_advantages_teach or any(sample.advantages)]
    silent = sorted(set(range(len(samples))) - set(teaching))
    parts = [part for part in (teaching, silent) if part]
    plans = [plan_of(samples, part, num_ranks, max_tokens_per_microbatch) for part in parts]
    return Batch(
        step=step,
        samples=samples,
        plan=[[*itertools.chain.from_iterable(of_rank)] for of_rank in zip(*plans, strict=True)],
        num_teaching=len(plans[0][0]) if teaching else 1,
        num_sequences=sum(any(sample.loss_mask) for sample in samples),
        with_logprobs=with_logprobs,
    )


def plan_of(
    samples: Sequence[Sample], indices: Sequence[int], num_ranks: int, max_tokens: int
) -> list[list[list[int]]]:
    """The plan of some of the samples, in their own indices."""
    plan = make_plan([len(samples[index].token_ids) for index in indices], num_ranks, max_tokens)
    return [[[indices[at] for at in microbatch] for microbatch in microbatches] for microbatches in plan]


def make_plan(lengths: Sequence[int], num_ranks: int, max_tokens: int) -> list[list[list[int]]]:
    """Indices of samples by rank and micro-batch.

    Longest first, each sample goes to the rank with the fewest tokens so far, and there into the fullest micro-batch
    that has room for it; a sample above ``max_tokens`` fills one alone. Ties fall to the lower index, so the plan is
    deterministic. The cost is n log n, whatever the number of ranks and micro-batches.
    """
    plan: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    room: list[list[tuple[int, int]]] = [[] for _ in range(num_ranks)]  # (tokens, micro-batch), ascending
    load = [(0, rank) for rank in range(num_ranks)]  # a heap of (tokens, rank)
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        tokens, rank = load[0]
        heapq.heapreplace(load, (tokens + length, rank))
        place = bisect_left(room[rank], (length, 0))
        if place == len(room[rank]):
            left, microbatch = max_tokens, len(plan[rank])
            plan[rank].append([])
        else:
            left, microbatch = room[rank].pop(place)
        plan[rank][microbatch].append(index)
        insort(room[rank], (left - length, microbatch))
    num_microbatches = max(1, *map(len, plan))
    for microbatches in plan:
        microbatches.extend([] for _ in range(num_microbatches - len(microbatches)))
    return plan
