"""How many verdicts a second the reward ``math`` gives on two cores, and what bombs among the answers cost.

    python benchmarks/verdicts.py [--quick] --out FILE.json

Everything is real: the scorer, and two worker processes. Three mixtures, half of the answers right:

- ``ordinary``: integers, decimals and fractions in a box behind a few sentences, eight completions a problem, about
  half of which give the right answer in one of four spellings;
- ``kinds``: once, every row of ``tests/cases/math_kinds.jsonl``: formulas, units, lists, intervals, words ...;
- ``bombs``: answers that hang math-verify, beside ordinary ones that are asked one after the other meanwhile:
  ``beside_ms`` is what those took (a median), ``behind_s`` what the first ordinary one behind the bombs waited, and
  ``loop_lag_ms`` the longest that the event loop did not turn.

``loop_us`` and ``workers_us`` are the processor time of a verdict in this process and in the workers together, as the
kernel counts it; ``two_cores_per_s`` is what two cores with nothing else to do would give by that. Where it is far
above ``verdicts_per_s`` somebody else had the processor.

Headline: ``ordinary`` verdicts a second. Target: 2,000.
"""

from __future__ import annotations

import asyncio
import random
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import harness
import msgspec
import psutil
import uvloop

from prl.config import RewardConfig
from prl.rewards.scorer import Scorer
from prl.types import Completion, Prompt, Score

TARGET_PER_S = 2_000
NUM_WORKERS, NUM_CORES = 2, 2
IN_FLIGHT = 64
KINDS = Path(__file__).parents[1] / "tests" / "cases" / "math_kinds.jsonl"
BOMBS = (
    r"\int_0^1 \sin(x)^{100000} dx",
    r"\sum_{k=1}^{10^9} \frac{1}{k^{3}+k+1}",
    r"\int_0^1 \frac{x^{50}}{(x^{31}+x+1)^{7}} dx",
    r"\prod_{k=1}^{10^7} (k^2+1)",
)
Subject = tuple[Completion, Prompt]


def subject(gold: str, answer: str) -> Subject:
    """A completion that boxes ``answer`` behind some reasoning, and its prompt."""
    text = f"Let us see. We add what is given and divide by the rest, which gives it. So it is \\boxed{{{answer}}}."
    completion = Completion(token_ids=[1], logprobs=[-1.0], versions=[0], text=text, finish="stop")
    return completion, Prompt(id=0, token_ids=[1], text="q", messages=[], fields={"answer": gold})


def ordinary(num: int, seed: int) -> list[Subject]:
    """Numbers as answers: eight to a problem, half of them right, written in one of several ways."""
    rng = random.Random(seed)
    subjects = []
    for _ in range(num // 8):
        value, below = rng.randrange(2, 100_000), rng.choice((1, 1, 2, 4, 5, 8))
        gold = str(value) if below == 1 else rf"\frac{{{value}}}{{{below}}}"
        for _ in range(8):
            given = value if rng.randrange(2) else value + rng.randrange(1, 50)
            answers = (
                f"{given / below:g}",
                f"{given}/{below}",
                rf"\frac{{{given}}}{{{below}}}",
                f"{given / below:,.4f}",
            )
            subjects.append(
                subject(gold, rng.choice(answers if below > 1 else (str(given), f"{given:,}", f"x = {given}")))
            )
    return subjects


def kinds() -> list[Subject]:
    """The rows of the file."""
    rows = [msgspec.json.decode(line) for line in KINDS.read_bytes().splitlines()]
    return [subject(row["gold"], row["answer"]) for row in rows]


def cpu_s() -> tuple[float, float]:
    """Seconds of CPU so far: of this process, and of its workers, those that were reaped included."""
    own, reaped = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    alive = sum(sum(worker.cpu_times()[:2]) for worker in psutil.Process().children())
    return own.ru_utime + own.ru_stime, alive + reaped.ru_utime + reaped.ru_stime


async def rate(scorer: Scorer, subjects: list[Subject]) -> dict[str, float]:
    """Verdicts a second, with ``IN_FLIGHT`` asked for at once, and the CPU that each cost on either side."""
    waiting, before = iter(subjects), cpu_s()

    async def ask() -> None:
        for completion, prompt in waiting:
            await scorer.score(completion, prompt)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(ask())
    wall_s, after, num = time.perf_counter() - start, cpu_s(), len(subjects)
    loop_us, workers_us = ((b - a) / num * 1e6 for a, b in zip(before, after, strict=True))
    two_cores = min(1e6 / loop_us, NUM_CORES * 1e6 / (loop_us + workers_us))
    return {
        "verdicts_per_s": num / wall_s, "loop_us": loop_us, "workers_us": workers_us, "two_cores_per_s": two_cores,
    }  # fmt: skip


async def beside_bombs(scorer: Scorer) -> dict[str, Any]:
    """What a group of bombs costs those beside and behind it."""
    done, lag, took = asyncio.Event(), 0.0, []

    async def watch() -> None:
        nonlocal lag
        while not done.is_set():
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            lag = max(lag, time.perf_counter() - before - 0.005)

    async def bomb(answer: str) -> None:
        verdict = await scorer.score(*subject("2", answer))
        assert isinstance(verdict, Score), verdict
        assert verdict.reward == 0.0

    async with asyncio.TaskGroup() as watching:
        watching.create_task(watch())
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(bomb(answer)) for answer in BOMBS]
            while not all(task.done() for task in tasks):
                asked = time.perf_counter()
                await scorer.score(*subject(f"{len(took)} + x", f"x + {len(took)}"))  # for a worker, and never known
                took.append(time.perf_counter() - asked)
                await asyncio.sleep(0.05)
        bombs_s, behind = time.perf_counter() - start, time.perf_counter()
        await scorer.score(*subject("x/3", r"\frac{2x}{6}"))
        behind_s = time.perf_counter() - behind
        done.set()
    return {
        "bombs": len(BOMBS),
        "bombs_s": bombs_s,
        "beside_ms": statistics.median(took) * 1e3,
        "beside_max_s": max(took),
        "behind_s": behind_s,
        "loop_lag_ms": lag * 1e3,
    }


async def measure_all(quick: bool) -> dict[str, Any]:
    """Every figure."""
    num, repeats = (8_000, 5) if quick else (20_000, 9)
    config = RewardConfig(
        name="math", timeout_s=120.0, concurrency=IN_FLIGHT, options={"num_workers": NUM_WORKERS, "wall_s": 60.0}
    )
    async with Scorer([config]) as scorer:
        await scorer.score(*subject("2", r"\int_0^2 x dx"))  # every process is up
        of_numbers = [await rate(scorer, ordinary(num, seed)) for seed in range(repeats)]
        of_kinds = [await rate(scorer, kinds())]
        bombs = await beside_bombs(scorer)
    rows = [
        {"mixture": name} | {column: harness.spread([each[column] for each in found]) for column in found[0]}
        for name, found in (("ordinary", of_numbers), ("kinds", of_kinds))
    ]
    headline = rows[0]["verdicts_per_s"]
    return {
        "headline": headline,
        "target": TARGET_PER_S,
        "target_met": headline["median"] >= TARGET_PER_S,
        "num_workers": NUM_WORKERS,
        "rates": rows,
        "bombs": [bombs],
    }


def measure(quick: bool) -> dict[str, Any]:
    """On the loop that the command line uses."""
    return uvloop.run(measure_all(quick))


if __name__ == "__main__":
    harness.main(__doc__ or "", measure, tables=("rates", "bombs"))
