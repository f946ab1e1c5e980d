"""Groups into the batch of one optimiser step. Pure: the same groups give the same batch.

Invariants:

- What was sampled is what is trained: token ids are copied, never re-tokenised, and masks come from lengths, never from
  token ids, so a sampled stop token is trained even where it doubles as padding.
- The plan puts every sample into exactly one micro-batch and gives all ranks the same number of micro-batches, so that
  their collectives stay in step; where samples run out, a micro-batch is empty.
- Samples without a gradient (an advantage of exactly 0, where the loss has nothing else) are planned apart and last, at
  the same places on all ranks, so that nobody makes a backward pass for them. One pass is always made: an optimiser
  step whose gradient is 0 is still a step.
- Samples of a group stay on one rank, and there in one micro-batch, where that costs neither balance nor a rank another
  micro-batch: what they begin with in common is computed once there (``trainer/layout.py``). Budgets and loads count it
  with every sample, so neither depends on what is sampled.
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
    made = [
        (sample, family)
        for family, (group, advantages_GT) in enumerate(zip(groups, advantages_BGT, strict=True))
        for completion, advantages_T in zip(group.completions, advantages_GT, strict=True)
        for sample in make_samples(
            group.prompt, completion, advantages_T, trained=not (mask_overlong and completion.finish == "length")
        )
    ]
    samples, families = [sample for sample, _ in made], [family for _, family in made]
    teaching = [index for index, sample in enumerate(samples) if not only_advantages_teach or any(sample.advantages)]
    silent = sorted(set(range(len(samples))) - set(teaching))
    parts = [part for part in (teaching, silent) if part]
    plans = [plan_of(samples, families, part, num_ranks, max_tokens_per_microbatch) for part in parts]
    return Batch(
        step=step,
        samples=samples,
        plan=[[*itertools.chain.from_iterable(of_rank)] for of_rank in zip(*plans, strict=True)],
        num_teaching=len(plans[0][0]) if teaching else 1,
        num_sequences=sum(any(sample.loss_mask) for sample in samples),
        with_logprobs=with_logprobs,
    )


def plan_of(
    samples: Sequence[Sample], families: Sequence[int], indices: Sequence[int], num_ranks: int, max_tokens: int
) -> list[list[list[int]]]:
    """The plan of some of the samples, in their own indices."""
    lengths = [len(samples[index].token_ids) for index in indices]
    plan = make_plan(lengths, num_ranks, max_tokens, [families[index] for index in indices])
    return [[[indices[at] for at in microbatch] for microbatch in microbatches] for microbatches in plan]


def make_plan(
    lengths: Sequence[int], num_ranks: int, max_tokens: int, families: Sequence[int] | None = None
) -> list[list[list[int]]]:
    """Indices of samples by rank and micro-batch.

    Samples of one family (None: each is one of its own) begin alike and cost least in one micro-batch. They stay on one
    rank where that costs no balance, and there in one micro-batch where that takes no more of them. Ties fall to the
    lower index, so the plan is deterministic. The cost is n log n, whatever the number of ranks and micro-batches.
    """
    families = range(len(lengths)) if families is None else families
    plan = [_fill(indices, lengths, families, max_tokens) for indices in _share_out(lengths, families, num_ranks)]
    num_microbatches = max(1, *map(len, plan))
    for microbatches in plan:
        microbatches.extend([] for _ in range(num_microbatches - len(microbatches)))
    return plan


def _share_out(lengths: Sequence[int], families: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Indices by rank, longest first.

    Each sample follows its family while that leaves the rank with no more than its share of all tokens, and goes to the
    rank with the fewest tokens else. So no two ranks are further apart than by the longest sample.
    """
    given: list[list[int]] = [[] for _ in range(num_ranks)]
    tokens, total = [0] * num_ranks, sum(lengths)
    least = [(0, rank) for rank in range(num_ranks)]  # a heap; what a rank had before it got more is out of date
    home: dict[int, int] = {}
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        rank = home.get(families[index])
        if rank is None or (tokens[rank] + lengths[index]) * num_ranks > total:
            while least[0][0] != tokens[least[0][1]]:
                heapq.heappop(least)
            rank = least[0][1]
        home[families[index]] = rank
        tokens[rank] += lengths[index]
        heapq.heappush(least, (tokens[rank], rank))
        given[rank].append(index)
    return given


def _fill(indices: Sequence[int], lengths: Sequence[int], families: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Micro-batches of one rank's samples, which come longest first: by families, or by length where that takes fewer.

    Each sample goes to the one before it if that is of its family and there is room, else into the fullest micro-batch
    that has room for it; a sample above ``max_tokens`` fills one alone.
    """
    place = {family: at for at, family in reversed([*enumerate(families[index] for index in indices)])}
    by_family = sorted(indices, key=lambda index: place[families[index]])
    tries = [_best_fit(order, lengths, families, max_tokens) for order in (by_family, indices)]
    return min(tries, key=len)


def _best_fit(
    order: Sequence[int], lengths: Sequence[int], families: Sequence[int], max_tokens: int
) -> list[list[int]]:
    microbatches: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens, micro-batch), ascending
    last = (0, -1)
    for index in order:
        length = lengths[index]
        together = last[1] >= 0 and families[microbatches[last[1]][-1]] == families[index] and last[0] >= length
        place = bisect_left(room, last if together else (length, 0))
        left, number = room.pop(place) if place < len(room) else (max_tokens, len(microbatches))
        if number == len(microbatches):
            microbatches.append([])
        microbatches[number].append(index)
        last = (left - length, number)
        insort(room, last)
    return microbatches
