"""How many verdicts a second the reward ``math`` gives on two cores, and what bombs among the answers cost.

    python benchmarks/verdicts.py [--quick] --out FILE.json

Everything is real: the scorer, and two worker processes. Three mixtures, half of the answers right:

- ``ordinary``: integers, decimals and fractions in a box behind a few sentences, eight completions a problem, about
  half of which give the right answer in one of four spellings;
- ``kinds``: once, every row of ``tests/cases/math_kinds.jsonl``: formulas, units, lists, intervals, words ...;
- ``bombs``: a group of answers that hang math-verify, and others meanwhile. ``beside_ms`` (a median) is what formulas
  took that were asked one after the other and need no math-verify, ``next_group_s`` what the last of a group of eight
  waited that do need it and were asked for behind the bombs: the limit of one bomb (``cpu_s``) and the start of a
  worker, never that of all. ``behind_s`` is what the first one waited when all was over, ``loop_lag_ms`` the longest
  that the event loop did not turn (target: 200).

``loop_us`` and ``workers_us`` are the processor time of a verdict in this process and in the workers together, as the
kernel counts it; ``two_cores_per_s`` is what two cores with nothing else to do would give by that. Where it is far
above ``verdicts_per_s`` somebody else had the processor.

Of the ordinary answers nine in ten are short plain numbers, which the reward compares without asking a worker;
``kinds`` says what it costs where they are not.

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

TARGET_PER_S, TARGET_LAG_MS = 2_000, 200
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


def subject(gold: str, answer: str, group: int = 0) -> Subject:
    """A completion that boxes ``answer`` behind some reasoning, and its prompt, whose group it is of."""
    text = f"Let us see. We add what is given and divide by the rest, which gives it. So it is \\boxed{{{answer}}}."
    completion = Completion(token_ids=[1], logprobs=[-1.0], versions=[0], text=text, finish="stop")
    return completion, Prompt(id=group, token_ids=[1], text="q", messages=[], fields={"answer": gold})


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

    async def judged(answer: str, gold: str, group: int, reward: float) -> float:
        asked = time.perf_counter()
        verdict = await scorer.score(*subject(gold, answer, group))
        assert isinstance(verdict, Score), verdict
        assert verdict.reward == reward
        return time.perf_counter() - asked

    async with asyncio.TaskGroup() as watching:
        watching.create_task(watch())
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(judged(answer, "2", 1, 0.0)) for answer in BOMBS]
            await asyncio.sleep(0.05)
            following = [
                group.create_task(judged(rf"\int_0^{{{2 * n}}} x dx", str(2 * n * n), 2, 1.0)) for n in range(1, 9)
            ]
            while not all(task.done() for task in tasks):
                took.append(await judged(f"x + {len(took)}", f"{len(took)} + x", 3, 1.0))  # for a worker, never known
                await asyncio.sleep(0.05)
        bombs_s = time.perf_counter() - start
        behind_s = await judged(r"\frac{2x}{6}", "x/3", 4, 1.0)
        done.set()
    return {
        "bombs": len(BOMBS),
        "bombs_s": bombs_s,
        "beside_ms": statistics.median(took) * 1e3,
        "beside_max_s": max(took),
        "next_group_s": max(task.result() for task in following),
        "behind_s": behind_s,
        "loop_lag_ms": lag * 1e3,
        "lag_target_met": lag * 1e3 < TARGET_LAG_MS,
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
