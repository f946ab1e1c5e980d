"""What a run would see of its data: rows by source, lengths, what is left out and why, and some prompts as they are.

The prompts are those that the run would admit first, in its order; lengths are counted over the first epoch, or over
``MOST_MEASURED`` prompts of it. No engine and no trainer is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from prl.config import Config
from prl.data.source import MixedPrompts, Opened
from prl.tokenizer import Tokenizer
from prl.types import Prompt

MOST_MEASURED = 20_000
NUM_BINS = 12


class SourceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One source."""

    key: str
    name: str
    share: float
    """Of the prompts."""
    num_rows: int
    """Trained on in one epoch of the source, but for those that are too long or filtered by length."""
    num_held_out: int
    num_bad: int


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts of ``low`` to ``high`` tokens, both included."""

    low: int
    high: int
    count: int


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """How long the prompts are, in tokens."""

    num_prompts: int
    shortest: int
    median: float
    longest: int
    most: int
    """What the context leaves for a prompt."""
    bins: list[Bin]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt as engine, trainer and rewards see it."""

    id: int
    where: str
    text: str
    token_ids: list[int]
    tokens: list[str]
    """The text of each id."""
    answer: str | None
    fields: dict[str, Any]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``prl data`` says."""

    sources: list[SourceRow]
    lengths: Lengths
    left_out: dict[str, int]
    """Prompts that are not trained on, by reason, as far as they were met."""
    is_complete: bool
    """Whether a whole epoch was looked at."""
    repeated: int
    """Prompts of the first epoch that say the same as one before."""
    leaked: int
    """Prompts of the first epoch that say the same as a held-out one."""
    prompts: list[Shown]
    warnings: list[str]
    fingerprint: dict[str, str]


def report(config: Config, tokenizer: Tokenizer, source: MixedPrompts, num_shown: int) -> Report:
    """Look at the first epoch. Raises what the source raises."""
    held_out = {prompt.text for prompt in source.held_out(config.eval.num_samples)}
    num_rows = sum(len(each.train) for each in source.sources)
    end = min(num_rows, MOST_MEASURED)
    lengths, left_out, seen = list[int](), Counter[str](), Counter[str]()
    shown: list[Prompt] = []
    while len(shown) < num_shown or source.cursor < end:
        prompt = source.next()
        left_out.update(reason for number, reason in source.passed_over() if number < end)
        if len(shown) < num_shown:
            shown.append(prompt)
        if prompt.id < end:
            lengths.append(len(prompt.token_ids))
            seen[prompt.text] += 1
    statistics = source.statistics()
    for each in source.sources:
        left_out.update({**each.filtered, **({"bad_row": each.num_bad} if each.num_bad else {})})
    return Report(
        sources=_rows(source),
        lengths=_lengths(lengths or [len(prompt.token_ids) for prompt in shown], source.room.for_prompt),
        left_out=dict(left_out),
        is_complete=end == num_rows,
        repeated=seen.total() - len(seen),
        leaked=sum(count for text, count in seen.items() if text in held_out),
        prompts=[_shown(tokenizer, source, prompt) for prompt in shown],
        warnings=statistics.warnings,
        fingerprint=source.fingerprint(),
    )


def _rows(source: MixedPrompts) -> list[SourceRow]:
    counts = source.mix.counts

    def row(each: Opened, count: int) -> SourceRow:
        return SourceRow(
            key=each.key,
            name=each.name,
            share=count / sum(counts),
            num_rows=len(each.train),
            num_held_out=len(each.held_out),
            num_bad=each.num_bad,
        )

    return [row(each, count) for each, count in zip(source.sources, counts, strict=True)]


def _lengths(lengths: Sequence[int], most: int) -> Lengths:
    low, high = min(lengths), max(lengths)
    width = -(-(high - low + 1) // NUM_BINS)
    counts = Counter((length - low) // width for length in lengths)
    bins = [
        Bin(low=low + number * width, high=min(high, low + (number + 1) * width - 1), count=counts[number])
        for number in range((high - low) // width + 1)
    ]
    return Lengths(num_prompts=len(lengths), shortest=low, median=median(lengths), longest=high, most=most, bins=bins)


def _shown(tokenizer: Tokenizer, source: MixedPrompts, prompt: Prompt) -> Shown:
    answer = prompt.fields.get("answer")
    return Shown(
        id=prompt.id,
        where=source.where(prompt.id),
        text=prompt.text,
        token_ids=prompt.token_ids,
        tokens=tokenizer.pieces(prompt.token_ids),
        answer=None if answer is None else str(answer),
        fields={name: value for name, value in prompt.fields.items() if name != "answer"},
    )
