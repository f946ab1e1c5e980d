"""The math reward: verdicts, and answers made to hang the verifier."""

from __future__ import annotations

import asyncio
import importlib.util
import time
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


class Case(msgspec.Struct, frozen=True):
    """One row of the file."""

    id: str
    category: str
    gold: str
    output: str
    expected: str


ROWS = {row.id: row for row in (msgspec.json.decode(line, type=Case) for line in CASES.read_bytes().splitlines())}
BOMBS = [
    r"\int_0^1 \sin(x)^{100000} dx",
    r"\sum_{k=1}^{10^9} \frac{1}{k^{3}+k+1}",
    r"\int_0^1 \frac{x^{50}}{(x^{31}+x+1)^{7}} dx",
    r"\prod_{k=1}^{10^7} (k^2+1)",
]
"""Answers on which math-verify works for minutes."""


def math(**options: object) -> RewardConfig:
    """The math reward under limits that a busy machine can keep."""
    return RewardConfig(name="math", timeout_s=60.0, options={"cpu_s": 1, "wall_s": 30.0, **options})


async def judge(scorer: Scorer, case: Case) -> str:
    """The verdict in the words of the file, or the type of what is no score."""
    verdict = await scorer.score(completion(case.output), prompt(case.gold))
    return {1.0: "correct", 0.0: "incorrect"}[verdict.reward] if isinstance(verdict, Score) else type(verdict).__name__


async def test_verdicts() -> None:
    """Every row is judged as expected."""
    async with Scorer([math()]) as scorer:
        given = {i: await judge(scorer, row) for i, row in ROWS.items()}
    assert given == {i: row.expected for i, row in ROWS.items()}


async def test_a_group_of_bombs_delays_nobody() -> None:
    """Answers that hang the verifier are wrong, in bounded time; others are judged beside them, and behind them.

    Of the next group's formulas, which need the same workers, every verdict is right and none waits for all bombs. The
    processes are as many as before and none is a zombie; meanwhile the event loop stays free.
    """
    reward = Math(**math(num_workers=2).options)
    await reward.open()
    gap = await _worst_gap_while(_judge_bombs(reward))
    assert gap < 0.2
    assert (len(reward.rules.pids), len(reward.symbolic.pids)) == (2, 2)
    assert (await reward(completion(r"\boxed{x + 1}"), prompt("1 + x"))).value == 1.0
    assert (await reward(completion(r"\boxed{\int_0^2 x dx}"), prompt("2"))).value == 1.0
    await reward.close()


async def _judge_bombs(reward: Math) -> None:
    async with asyncio.timeout(90), asyncio.TaskGroup() as group:
        tasks = [group.create_task(reward(completion(rf"\boxed{{{bomb}}}"), prompt("2"))) for bomb in BOMBS]
        beside = await reward(completion(r"\boxed{x + 2}"), prompt("2 + x"))
        assert not any(task.done() for task in tasks)
        assert beside.value == 1.0
        behind = [
            group.create_task(
                reward(completion(rf"\boxed{{\int_0^{top} x dx}}"), prompt(str(top * top // 2), prompt_id=8))
            )
            for top in (2, 4, 6)
        ]
        await asyncio.wait(behind)
        assert sum(task.done() for task in tasks) <= 2, "they wait for the two that are under way, and for no other"
        assert [task.result().value for task in behind] == [1.0] * len(behind)
    assert [task.result().value for task in tasks] == [0.0] * len(BOMBS)
    reasons = {task.result().reason for task in tasks}
    assert reasons <= {"exhausted_cpu", "exhausted_wall"}, "the latter where the machine has no time for them"


async def _worst_gap_while(work: object) -> float:
    """The longest that the loop's thread worked between two turns of a task which only yields, in seconds of CPU.

    Of the clock a busy machine would take its share.
    """
    running = asyncio.ensure_future(work)  # type: ignore[arg-type]
    worst, last = 0.0, time.thread_time()
    while not running.done():
        await asyncio.sleep(0.002)
        now = time.thread_time()
        worst, last = max(worst, now - last), now
    await running
    return worst


@pytest.mark.parametrize(
    ("gold", "answer", "value"),
    [
        ("2", r"\int_0^2 x dx", 1.0),
        (r"\sum_{k=1}^{3} k", "6", 1.0),
        ("5", r"\int_0^2 x dx", 0.0),
        (r"\foo{5}", "5", 0.0),
        ("5", r"\foo{5}", 0.0),
        (r"\foo(3, 5)", r"\foo(4, 5)", 0.0),
        (r"\foo{5}", r"\foo{5}", 1.0),
    ],
)
async def test_formulas_that_the_rules_do_not_know(gold: str, answer: str, value: float) -> None:
    """Integrals and sums are left to math-verify, as a whole: a number in what cannot be read is no answer."""
    async with Scorer([math(num_workers=1)]) as scorer:
        verdict = await scorer.score(completion(rf"\boxed{{{answer}}}"), prompt(gold))
        assert isinstance(verdict, Score)
        assert (verdict.reward, verdict.parts) == (value, {"math": value})


@pytest.mark.parametrize(
    ("gold", "problem"),
    [
        (r"\frac{1}{2}", None),
        (r"\text{no solution}", None),
        ("7 or 8", None),
        (r"\{1, 2\}", None),
        (r"\frac{1}{2", "a brace is never closed"),
        ("1}{2", "a brace closes that was never opened"),
        ("$$", "nothing stands in it"),
        ("(1,2", "a parenthesis is never closed"),
        ("<think>5", "nothing stands in it"),
        ("1+" * 3000, "over 5000 are never right"),
        ("10:30 is 5", "'10:30 is 5' cannot be read ("),
        ("12,345", None),
        (r"\foo{5}", None),
        ("the red one", None),
    ],
)
def test_a_right_answer_that_never_pays_is_found(gold: str, problem: str | None) -> None:
    """The reward says of a row's fields why no answer could be right."""
    found = Math().check_row({"answer": gold})
    assert found is None if problem is None else problem in str(found)
    assert Math(unreadable_gold="text").check_row({"answer": "10:30 is 5"}) is None


async def test_a_known_answer_is_not_judged_again() -> None:
    """The members of a group that give one answer cost one question; another right answer makes it another one."""
    reward = Math(num_workers=1)
    await reward.open()
    first = await reward(completion(r"so \boxed{x + 1}"), prompt("1 + x"))
    await reward.rules.close()
    assert await reward(completion(r"or \boxed{x + 1}"), prompt("1 + x")) == first
    await reward.close()


async def test_a_plain_number_needs_no_worker() -> None:
    """Most answers are one: compared where they are found, with the reason that a worker would give."""
    reward = Math()  # and no process was started
    judged = [await reward(completion(rf"\boxed{{{answer}}}"), prompt("1,000")) for answer in ("1000", "1000.0", "999")]
    assert [(each.value, each.reason) for each in judged] == [
        (1.0, "same_text"),
        (1.0, "same_value"),
        (0.0, "other_value"),
    ]


async def test_deep_nesting_is_wrong_and_no_failure() -> None:
    """Thousands of parentheses end in a verdict."""
    async with Scorer([math()]) as scorer:
        (row,) = (row for row in ROWS.values() if row.category == "paren bomb")
        assert await judge(scorer, row) == "incorrect"
        assert await judge(scorer, ROWS["M02"]) == "correct"


async def test_what_is_not_asked_of_a_worker() -> None:
    """No answer and an answer beyond the length cap are wrong without a process, and counted."""
    reward = Math()
    for text, reason in [("I do not know", "no_answer"), (r"\boxed{" + "1+" * 4000 + "1}", "answer_too_long")]:
        judged = await reward(completion(text), prompt("1"))
        assert (judged.value, judged.reason) == (0.0, reason)


@pytest.mark.parametrize("gold", [r"\frac{", "$$"])
async def test_gold_that_cannot_be_read_never_pays(gold: str) -> None:
    """An answer is not right because the right one cannot be read."""
    async with Scorer([math()]) as scorer:
        assert await scorer.score(completion(r"\boxed{5}"), prompt(gold)) == Abstained(reason="reward_abstained")
        assert scorer.statistics()["math"].reasons == {"gold_unparsable": 1}


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without math-verify the reward says what to install, before anything starts."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"the reward 'math' needs .*'prl-train\[math\]'"):
        Scorer([RewardConfig(name="math")])
