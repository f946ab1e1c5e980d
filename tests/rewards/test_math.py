"""The math reward: verdicts, and answers made to hang the verifier."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from prl.config import RewardConfig
from prl.errors import MissingExtraError
from prl.rewards.math import Math
from prl.rewards.scorer import Scorer
from prl.types import Abstained, Score
from tests.rewards.samples import completion, prompt

CASES = Path(__file__).parents[1] / "cases" / "math_verdicts.jsonl"

NOT_YET = {"M09"}
"""Rows that are judged wrongly today: the root of a quotient needs the knowledge that its symbol is positive."""


class Case(msgspec.Struct, frozen=True):
    """One row of the file."""

    id: str
    category: str
    gold: str
    output: str
    expected: str


ROWS = {row.id: row for row in (msgspec.json.decode(line, type=Case) for line in CASES.read_bytes().splitlines())}
BOMBS = [row.id for row in ROWS.values() if row.category.startswith("hang")]


def math(**options: object) -> RewardConfig:
    """The math reward under limits that a busy machine can keep."""
    return RewardConfig(name="math", timeout_s=60.0, options={"cpu_s": 1, "wall_s": 30.0, **options})


async def judge(scorer: Scorer, case: Case) -> str:
    """The verdict in the words of the file, or the type of what is no score."""
    verdict = await scorer.score(completion(case.output), prompt(case.gold))
    return {1.0: "correct", 0.0: "incorrect"}[verdict.reward] if isinstance(verdict, Score) else type(verdict).__name__


async def test_verdicts() -> None:
    """Every row that cannot hang is judged as expected; a gold that cannot be read makes the reward abstain."""
    async with Scorer([math(cpu_s=20)]) as scorer:
        given = {
            i: await judge(scorer, row) for i, row in ROWS.items() if i not in BOMBS and row.category != "paren bomb"
        }
    wrong = {i for i, verdict in given.items() if verdict != ROWS[i].expected and ROWS[i].category != "unparsable gold"}
    assert wrong == NOT_YET
    assert given["M78"] == "Abstained"


async def test_a_group_of_bombs_delays_nobody() -> None:
    """Two workers, every answer that hangs the verifier: all wrong, in bounded time, the next answer unaffected.

    The processes are as many as before and none is a zombie; meanwhile the event loop stays free.
    """
    config = math(num_workers=2)
    reward = Math(**config.options)
    await reward.open()
    gap = await _worst_gap_while(_judge_bombs(reward))
    assert gap < 0.2
    assert len(reward.pool.pids) == 2
    assert _limits_met(reward.statistics()) == len(BOMBS) >= 5
    assert await reward(completion(r"\boxed{0.5}"), prompt(r"\frac{1}{2}")) == 1.0
    await reward.close()


async def _judge_bombs(reward: Math) -> None:
    async with asyncio.timeout(90), asyncio.TaskGroup() as group:
        tasks = [group.create_task(reward(completion(ROWS[i].output), prompt(ROWS[i].gold))) for i in BOMBS]
    assert [task.result() for task in tasks] == [0.0] * len(BOMBS)


async def _worst_gap_while(work: object) -> float:
    """The longest that a task which only yields had to wait for its turn, in seconds."""
    running = asyncio.ensure_future(work)  # type: ignore[arg-type]
    worst, last = 0.0, time.perf_counter()
    while not running.done():
        await asyncio.sleep(0.002)
        now = time.perf_counter()
        worst, last = max(worst, now - last), now
    await running
    return worst


def _limits_met(statistics: Mapping[str, float]) -> float:
    return sum(count for reason, count in statistics.items() if reason.startswith("exhausted_"))


async def test_deep_nesting_is_wrong_and_no_failure() -> None:
    """Thousands of parentheses end in a verdict."""
    async with Scorer([math()]) as scorer:
        (row,) = (row for row in ROWS.values() if row.category == "paren bomb")
        assert await judge(scorer, row) == "incorrect"
        assert await judge(scorer, ROWS["M02"]) == "correct"


async def test_what_is_not_asked_of_a_worker() -> None:
    """No answer and an answer beyond the length cap are wrong without a process, and counted."""
    reward = Math()
    assert await reward(completion("I do not know"), prompt("1")) == 0.0
    assert await reward(completion(r"\boxed{" + "1+" * 4000 + "1}"), prompt("1")) == 0.0
    assert reward.statistics() == {"no_answer": 1, "answer_too_long": 1}


@pytest.mark.parametrize("gold", [" ", r"\frac{", "$$"])
async def test_gold_that_cannot_be_read_never_pays(gold: str) -> None:
    """An answer is not right because the right one cannot be read."""
    async with Scorer([math()]) as scorer:
        assert await scorer.score(completion(r"\boxed{5}"), prompt(gold)) == Abstained(reason="reward_abstained")
        assert scorer.statistics()["math"].details == {"gold_unparsable": 1}


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without math-verify the reward says what to install, before anything starts."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"the reward 'math' needs .*'prl-train\[math\]'"):
        Scorer([RewardConfig(name="math")])
