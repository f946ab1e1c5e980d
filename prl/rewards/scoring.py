"""Scoring rows of a file with one reward: what ``prl score`` does.

- A row has ``completion`` (a string), and whatever fields the reward reads of a prompt, such as ``answer``. ``prompt``
  and ``finish`` are optional. Every row is checked before the first is scored.
- Each row is judged as a run would judge it, under the same limits, and its verdict keeps the reward's reason.
- A reward of groups sees the rows that share a ``group`` together.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Literal

import msgspec

from prl.errors import DataError
from prl.failure import FirstFailure, failures_to
from prl.rewards.opinions import Opinion
from prl.rewards.scorer import Explained, Scorer
from prl.types import Abstained, Completion, Prompt, Score, ScoringFailed, Verdict

MAX_SHOWN = 20
"""Faults of a file that are listed; there may be a million."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that are not the reward's alone."""

    completion: str
    prompt: str = ""
    finish: Literal["stop", "length"] = "stop"
    group: str | int | None = None


class ScoredRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the output."""

    line: int
    reward: float | None
    """None where the reward abstained or failed."""
    reason: str = ""
    """The key that the reward counts this verdict by, ``abstained``, or the kind of failure."""
    detail: str = ""
    parts: dict[str, float] = {}
    failed: bool = False


class Rows:
    """The rows of a file, each with its line; made only where all of them are good."""

    def __init__(self, name: str, lines: Iterable[bytes], scorer: Scorer) -> None:
        """Raises DataError with each faulty line, as ``name:line: what``."""
        self.subjects: list[tuple[int, Completion, Prompt, str | int | None]] = []
        faults: list[str] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                self.subjects.append((number, *_subject(number, line, scorer)))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
                faults.append(f"{name}:{number}: {error}")
        if faults:
            more = [f"and {len(faults) - MAX_SHOWN} more lines"] if len(faults) > MAX_SHOWN else []
            raise DataError("\n".join([*faults[:MAX_SHOWN], *more]))
        if not self.subjects:
            raise DataError(f"{name}: there is no row in this file")


def _subject(number: int, line: bytes, scorer: Scorer) -> tuple[Completion, Prompt, str | int | None]:
    fields = msgspec.json.decode(line, type=dict[str, Any])
    row = msgspec.convert(fields, Row)
    for field in scorer.required_fields:
        if fields.get(field) is None:
            raise ValueError(f"field {field!r} is missing, and the reward needs it")
    own = {name: value for name, value in fields.items() if name not in ("completion", "prompt", "finish", "group")}
    if problem := scorer.check_row(own):
        raise ValueError(problem)
    num_tokens = max(1, len(row.completion.split()))  # rewards that look at tokens need some; words will do
    completion = Completion(
        token_ids=[0] * num_tokens,
        logprobs=[0.0] * num_tokens,
        versions=[0] * num_tokens,
        text=row.completion,
        finish=row.finish,
    )
    messages = [{"role": "user", "content": row.prompt}] if row.prompt else []
    return completion, Prompt(id=number, token_ids=[0], text=row.prompt, messages=messages, fields=own), row.group


async def score_rows(rows: Rows, scorer: Scorer) -> AsyncIterator[ScoredRow]:
    """Each row's verdict, in their order; as many are under way as the reward's ``concurrency`` lets through.

    Raises:
        Exception: what the reward raised that is no failure of a call, a bug for one, as it was.
    """
    if scorer.of_groups:
        for scored in await _score_groups(rows, scorer):
            yield scored
        return
    first = FirstFailure()
    with first.interrupts():
        async with asyncio.TaskGroup() as group:
            tasks = [
                (line, group.create_task(_explained(scorer, completion, prompt, first)))
                for line, completion, prompt, _ in rows.subjects
            ]
            for line, task in tasks:
                if (explained := await task) is not None:
                    yield _scored(line, explained.verdict, list(explained.opinions.values()))


async def _explained(scorer: Scorer, completion: Completion, prompt: Prompt, first: FirstFailure) -> Explained | None:
    """A verdict with its reasons; None where something else happened, which ``first`` is told."""
    with failures_to(first.set, "a row's scoring"):
        return await scorer.explain(completion, prompt)
    return None


async def _score_groups(rows: Rows, scorer: Scorer) -> list[ScoredRow]:
    by_group: dict[str | int | None, list[tuple[int, Completion, Prompt]]] = defaultdict(list)
    for line, completion, prompt, group in rows.subjects:
        by_group[group].append((line, completion, prompt))
    found = []
    for members in by_group.values():
        completions = [completion for _, completion, _ in members]
        none_yet = [Score(reward=0.0, parts={})] * len(members)
        verdicts = await scorer.score_group(completions, none_yet, members[0][2])
        found += [_scored(line, verdict, []) for (line, _, _), verdict in zip(members, verdicts, strict=True)]
    return sorted(found, key=lambda scored: scored.line)


def _scored(line: int, verdict: Verdict, opinions: Sequence[Opinion]) -> ScoredRow:
    reason = ", ".join(opinion.reason for opinion in opinions if opinion.reason)
    detail = "; ".join(opinion.detail for opinion in opinions if opinion.detail)
    match verdict:
        case Score(reward=reward, parts=parts):
            return ScoredRow(line=line, reward=reward, reason=reason, detail=detail, parts=parts)
        case Abstained():
            return ScoredRow(line=line, reward=None, reason=reason or "abstained", detail=detail)
        case ScoringFailed(reason=kind, message=message):
            return ScoredRow(line=line, reward=None, reason=kind, detail=message, failed=True)
