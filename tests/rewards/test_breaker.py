"""Failures of rewards that may pass: tried again, and where all calls fail the reward is paused instead of the run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from prl.config import RewardConfig
from prl.deadlines import Deadlines
from prl.errors import RewardError
from prl.rewards import base
from prl.rewards.pool import Limits, WorkerPool
from prl.rewards.scorer import Scorer
from prl.rewards.worker import Question, Reply
from prl.types import Completion, Prompt, Score, ScoringFailed, Verdict
from tests.rewards.samples import completion, prompt
from tests.virtual import in_virtual_time

ONE = Score(reward=1.0, parts={"r": 1.0})


def refused(status: int) -> aiohttp.ClientResponseError:
    """The answer of a server that does not like the request."""
    info = aiohttp.RequestInfo(URL("http://judge"), "POST", headers=None, real_url=URL("http://judge"))  # type: ignore[arg-type]
    return aiohttp.ClientResponseError(info, (), status=status)


class Scripted:
    """A reward that does what each prompt's own script says, then gives 1; counts the calls."""

    def __init__(self, scripts: dict[int, list[Any]], *, call_s: float = 0.0) -> None:
        self.scripts, self.call_s, self.at = scripts, call_s, Counter[int]()

    async def __call__(self, prompt_id: int) -> float:
        """One call."""
        await asyncio.sleep(self.call_s)
        script, call = self.scripts.get(prompt_id, []), self.at[prompt_id]
        self.at[prompt_id] += 1
        now = script[call] if call < len(script) else 1.0
        if isinstance(now, BaseException):
            raise now
        return float(now)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], Any]], None]:
    """Register a reward ``r`` that asks a function of the prompt's id."""
    monkeypatch.setattr(base.REGISTRY, "_registered", {})

    def put(ask: Callable[[int], Any]) -> None:
        async def judge(completion: Completion, prompt: Prompt) -> float:
            value: float = await ask(prompt.id)
            return value

        base.reward("r")(judge)

    return put


async def score_all(scorer: Scorer, numbers: range) -> list[Verdict]:
    """The verdicts on one completion of each prompt, asked for at once."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(scorer.score(completion(), prompt(prompt_id=number))) for number in numbers]
    return [task.result() for task in tasks]


@pytest.mark.parametrize(
    "error", [ConnectionError("a"), TimeoutError("b"), OSError("c"), RewardError("d"), refused(503), refused(429)]
)
@in_virtual_time
async def test_what_may_pass_is_tried_again_with_growing_pauses(register: Any, error: Exception) -> None:
    """Field notes E, reward exceptions: a service that is down for a moment costs time and no completion."""
    register(Scripted({7: [error, error]}))
    began = asyncio.get_running_loop().time()
    async with Scorer([RewardConfig(name="r")]) as scorer:
        assert await scorer.score(completion(), prompt()) == ONE
        statistics = scorer.statistics()["r"]
    assert (statistics.calls, statistics.retries, statistics.failures) == (1, 2, {})
    assert asyncio.get_running_loop().time() - began == 0.5 + 1.0


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "reward_bad_value"),
        (FileNotFoundError("gold.txt"), "reward_error"),
        (PermissionError("gold.txt"), "reward_error"),
        (refused(401), "reward_error"),
    ],
)
@in_virtual_time
async def test_what_would_come_back_is_not_tried_again(register: Any, value: Any, reason: str) -> None:
    """No number, a missing file and a refused request are one call and one failure."""
    scripted = Scripted({7: [value] * 9})
    register(scripted)
    async with Scorer([RewardConfig(name="r")]) as scorer:
        verdict = await scorer.score(completion(), prompt())
        assert (scorer.num_retries, scripted.at[7]) == (0, 1)
    assert isinstance(verdict, ScoringFailed)
    assert verdict.reason == reason


@in_virtual_time
async def test_a_bug_is_not_tried_again(register: Any) -> None:
    """A TypeError ends the run from the first call."""
    scripted = Scripted({7: [TypeError("a bug")]})
    register(scripted)
    async with Scorer([RewardConfig(name="r")]) as scorer:
        with pytest.raises(TypeError, match="a bug"):
            await scorer.score(completion(), prompt())
    assert scripted.at[7] == 1


@in_virtual_time
async def test_the_deadline_of_a_call_is_that_of_all_its_tries(register: Any) -> None:
    """``timeout_s`` bounds the call with its retries and pauses; how often it was tried does not lengthen it."""
    register(Scripted({7: [OSError("down")] * 99}, call_s=1.0))
    began = asyncio.get_running_loop().time()
    async with Scorer([RewardConfig(name="r", timeout_s=5.0, max_retries=50)]) as scorer:
        verdict = await scorer.score(completion(), prompt())
    assert isinstance(verdict, ScoringFailed)
    assert (verdict.reason, asyncio.get_running_loop().time() - began) == ("reward_timeout", 5.0)


@in_virtual_time
async def test_an_outage_pauses_the_reward_and_loses_no_completion(register: Any) -> None:
    """Where all calls fail they wait, one at a time is a probe, and after the outage every one has its verdict."""
    loop = asyncio.get_running_loop()
    up_at, asked_at, deadlines = loop.time() + 60.0, list[float](), Deadlines()

    async def ask(_: int) -> float:
        asked_at.append(loop.time())
        if loop.time() < up_at:
            raise ConnectionError("refused")
        return 1.0

    register(ask)
    async with Scorer([RewardConfig(name="r", max_retries=0, max_failures=10)]) as scorer:
        scorer.hold_while_paused(deadlines)
        async with asyncio.TaskGroup() as group:
            scoring = group.create_task(score_all(scorer, range(40)))
            await asyncio.sleep(30.0)
            assert scorer.paused == ["r"]
            async with deadlines.timeout(5.0):  # stands still while the reward is paused
                verdicts = await scoring
        assert scorer.paused == []
        statistics = scorer.statistics()["r"]
    assert [verdict for verdict in verdicts if verdict == ONE] == [ONE] * (40 - 9)  # 9 failed before it opened
    assert (statistics.pauses, statistics.abstained) == (1, 0)
    probes = [when for when in asked_at if asked_at[0] < when < up_at]
    assert len(probes) < 10
    assert loop.time() - up_at <= 15.0


@in_virtual_time
async def test_an_outage_that_lasts_ends_the_run_with_one_message(register: Any) -> None:
    """Which reward, how often, for how long, the last cause, and what to do."""
    register(Scripted({number: [ConnectionError("refused")] * 999 for number in range(40)}))
    config = RewardConfig(name="r", max_retries=0, max_failures=10, recovery_timeout_s=100.0)
    began = asyncio.get_running_loop().time()
    async with Scorer([config]) as scorer:
        with pytest.raises(ExceptionGroup) as caught:
            await score_all(scorer, range(40))
    first = caught.value.exceptions[0]
    assert isinstance(first, RewardError)
    assert str(first).startswith("the reward 'r' failed 5")
    for part in (
        "times in a row (rewards.max_failures = 10)",
        "while it was paused (rewards.recovery_timeout_s = 100)",
        "the reward 'r' failed: ConnectionError: refused",
        "See whether what it needs is up, then go on with --resume, which keeps what was sampled",
    ):
        assert part in str(first)
    assert 100.0 <= asyncio.get_running_loop().time() - began <= 115.0


@in_virtual_time
async def test_one_bad_answer_does_not_keep_the_others_waiting(register: Any) -> None:
    """A completion that fails its probe goes to the end of the line; one that works closes the breaker for all."""
    register(Scripted({0: [ConnectionError("it kills the judge")] * 99, **{n: [OSError("down")] for n in range(1, 9)}}))
    config = RewardConfig(name="r", max_retries=0, max_failures=9)
    async with Scorer([config]) as scorer:
        verdicts = await score_all(scorer, range(9))
        assert (scorer.paused, scorer.statistics()["r"].pauses) == ([], 1)
        assert await scorer.score(completion(), prompt(prompt_id=50)) == ONE
    assert verdicts[8] == ONE  # it opened the breaker, and waited for its turn


@in_virtual_time
async def test_failures_that_would_come_back_do_not_pause_the_reward(register: Any) -> None:
    """A reward that never gives a number is broken: that ends the run at once."""
    register(Scripted({n: [float("nan")] for n in range(10)}))
    began = asyncio.get_running_loop().time()
    async with Scorer([RewardConfig(name="r", max_failures=10)]) as scorer:
        with pytest.raises(ExceptionGroup) as caught:
            await score_all(scorer, range(10))
    assert "failed 10 times in a row (rewards.max_failures = 10); the last time:" in str(caught.value.exceptions[0])
    assert asyncio.get_running_loop().time() == began


@in_virtual_time
async def test_a_paused_reward_can_be_cancelled(register: Any) -> None:
    """Whoever waits for its turn or sleeps before its probe is cancelled at once."""
    register(Scripted({n: [OSError("down")] * 99 for n in range(4)}))
    async with Scorer([RewardConfig(name="r", max_retries=0, max_failures=1)]) as scorer:
        scoring = asyncio.ensure_future(score_all(scorer, range(4)))
        await asyncio.sleep(20.0)
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring
        assert asyncio.all_tasks() == {asyncio.current_task()}


class Workers:
    """A reward in real worker processes, which answer, or die, as the script says."""

    script: list[str]

    def __init__(self) -> None:
        self.pool = WorkerPool("tests.rewards.scripted_worker", 1, Limits(cpu_s=1, wall_s=30.0, memory_mib=512))
        self.open, self.close = self.pool.open, self.pool.close

    async def __call__(self, completion: Completion, prompt: Prompt) -> float:
        """One question."""
        reply = await self.pool.ask(Question(text=completion.text, reference=self.script.pop(0)))
        assert isinstance(reply, Reply)
        return reply.value


async def test_a_worker_that_is_killed_costs_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field notes E, timed-out pool workers: a process that dies is replaced, and the question asked of the next."""
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(base.REGISTRY, "_registered", {})
    Workers.script = ["die", "echo", "die", "die", "die", "echo"]
    base.reward("r")(Workers)
    async with Scorer([RewardConfig(name="r", timeout_s=60.0)]) as scorer:
        assert await scorer.score(completion("1.0"), prompt()) == ONE
        failed = await scorer.score(completion("1.0"), prompt())
        assert isinstance(failed, ScoringFailed)
        assert "died: exit status 3; it printed: the last words" in failed.message
        assert await scorer.score(completion("1.0"), prompt()) == ONE
        assert scorer.num_retries == 1 + 2
