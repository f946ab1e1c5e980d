"""Verdicts: what is a score, what is a failure, what ends the run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import numpy as np
import pytest

from prl import virtual_time
from prl.config import RewardConfig
from prl.errors import ConfigError, PluginError, RewardError
from prl.rewards import base
from prl.rewards.base import Judged
from prl.rewards.scorer import Scorer
from prl.types import Abstained, Completion, Prompt, Score, ScoringFailed, Verdict
from tests.rewards.samples import completion, prompt

Register = Callable[[str, Callable[..., Any]], None]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Register a reward for one test."""
    monkeypatch.setattr(base.REGISTRY, "_registered", {})
    return lambda name, target: base.reward(name)(target) and None


def gives(value: Any) -> Callable[[Completion, Prompt], Any]:
    """A plain reward that returns ``value``, or raises it."""

    def judge(completion: Completion, prompt: Prompt) -> Any:
        if isinstance(value, BaseException):
            raise value
        return value

    return judge


def gives_async(value: Any) -> Callable[[Completion, Prompt], Awaitable[Any]]:
    """The same as an async reward."""
    judge = gives(value)

    async def judge_async(completion: Completion, prompt: Prompt) -> Any:
        return judge(completion, prompt)

    return judge_async


async def score_once(*rewards: RewardConfig) -> Verdict:
    """The verdict of a scorer of these rewards on one completion."""
    async with Scorer(rewards) as scorer:
        return await scorer.score(completion(), prompt())


@pytest.mark.parametrize("make", [gives, gives_async])
@pytest.mark.parametrize("value", [1, 0.25, True, np.float32(0.5), np.int64(3), np.bool_(True), np.array(2.0)])
async def test_finite_numbers_are_scores(register: Register, make: Callable[[Any], Any], value: Any) -> None:
    """Int, float, bool and scalars of numpy are rewards, from plain and async functions."""
    register("r", make(value))
    assert await score_once(RewardConfig(name="r")) == Score(reward=float(value), parts={"r": float(value)})


@pytest.mark.parametrize("make", [gives, gives_async])
@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 10**400, "1.0", [1.0], [], {}, np.array([1.0]), np.float64("nan"), 1j, object()],
)
async def test_anything_else_is_a_failure(register: Register, make: Callable[[Any], Any], value: Any) -> None:
    """What is no finite number is never a 0: it fails with the reward's name, the value and the prompt's id."""
    register("r", make(value))
    verdict = await score_once(RewardConfig(name="r"))
    assert isinstance(verdict, ScoringFailed)
    assert verdict.reason == "reward_bad_value"
    assert verdict.message.startswith("prompt 7: the reward 'r' gave ")


async def test_none_abstains(register: Register) -> None:
    """None abstains for the whole completion, whatever the other rewards say."""
    register("r", gives(None))
    register("s", gives_async(1.0))
    assert await score_once(RewardConfig(name="r"), RewardConfig(name="s")) == Abstained(reason="reward_abstained")


async def test_failure_goes_before_abstention(register: Register) -> None:
    """When one reward fails and another abstains, the failure is what is reported."""
    register("r", gives(None))
    register("s", gives_async(OSError("down")))
    rewards = [RewardConfig(name="r"), RewardConfig(name="s", max_retries=0)]
    assert isinstance(await score_once(*rewards), ScoringFailed)


async def test_weighted_sum_with_parts_by_name(register: Register) -> None:
    """The score is the weighted sum; parts are before weighting, and a reward used twice has two names."""
    register("a", gives(0.5))
    register("b", gives_async(3))
    rewards = [
        RewardConfig(name="a", weight=2.0),
        RewardConfig(name="b", weight=-1.0),
        RewardConfig(name="b", weight=0.1),
    ]
    verdict = await score_once(*rewards)
    assert isinstance(verdict, Score)
    assert verdict.reward == pytest.approx(-1.7)
    assert verdict.parts == {"a": 0.5, "b": 3.0, "b_2": 3.0}


async def test_sum_that_overflows_is_a_failure(register: Register) -> None:
    """Finite parts whose sum is not finite are no score."""
    register("a", gives(1e308))
    verdict = await score_once(RewardConfig(name="a", weight=1e6))
    assert isinstance(verdict, ScoringFailed)


@pytest.mark.parametrize("make", [gives, gives_async])
@pytest.mark.parametrize(
    "error",
    [OSError("disk"), ConnectionError("refused"), TimeoutError("slow"), RewardError("x"), aiohttp.ClientError("y")],
)
async def test_expected_exception_is_a_failure(
    register: Register, make: Callable[[Any], Any], error: Exception
) -> None:
    """A service that is down is counted and never a 0."""
    register("r", make(error))
    verdict = await score_once(RewardConfig(name="r", max_retries=0))
    assert isinstance(verdict, ScoringFailed)
    assert verdict.reason == "reward_error"
    assert verdict.message == f"prompt 7: the reward 'r' failed: {type(error).__name__}: {error}"


@pytest.mark.parametrize("make", [gives, gives_async])
@pytest.mark.parametrize(
    "error", [TypeError("t"), NameError("n"), AttributeError("a"), ImportError("i"), KeyError("k"), ValueError("v")]
)
@pytest.mark.parametrize("others", [0, 1])
async def test_bug_is_raised_as_it_is(
    register: Register, make: Callable[[Any], Any], error: Exception, others: int
) -> None:
    """A bug leaves score() as the original exception with its traceback, beside other rewards too."""
    register("r", make(error))
    register("fine", gives_async(1.0))
    with pytest.raises(type(error)) as caught:
        await score_once(RewardConfig(name="r"), *[RewardConfig(name="fine")] * others)
    assert caught.value is error
    assert caught.traceback[-1].name == "judge"
    assert "raised by the reward 'r' on prompt 7" in caught.value.__notes__[-1]


async def test_hanging_async_reward_times_out(register: Register) -> None:
    """An async reward past its deadline is cancelled and a failure."""
    cancelled = asyncio.Event()

    async def hang(completion: Completion, prompt: Prompt) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return 1.0

    register("r", hang)
    verdict = await score_once(RewardConfig(name="r", timeout_s=0.01))
    assert isinstance(verdict, ScoringFailed)
    assert (verdict.reason, cancelled.is_set()) == ("reward_timeout", True)
    assert verdict.message == "prompt 7: the reward 'r' took over timeout_s = 0.01"


async def test_hanging_plain_reward_times_out_and_does_not_hold_the_end(register: Register) -> None:
    """A plain reward that hangs is a failure, its thread is counted, and leaving the scorer does not wait for it."""
    release = threading.Event()
    register("r", lambda completion, prompt: release.wait(30) and 1.0)
    async with Scorer([RewardConfig(name="r", timeout_s=0.05)]) as scorer:
        verdict = await scorer.score(completion(), prompt())
        assert isinstance(verdict, ScoringFailed)
        assert scorer.statistics()["r"].stuck_threads == 1
        assert scorer.statistics()["r"].failures == {"reward_timeout": 1}
    release.set()


async def test_hung_threads_are_bounded(register: Register) -> None:
    """When as many calls hang as may run at once, the run ends and says what to do."""
    release = threading.Event()
    register("r", lambda completion, prompt: release.wait(30) and 1.0)
    async with Scorer([RewardConfig(name="r", timeout_s=0.05, concurrency=2)]) as scorer:
        assert isinstance(await scorer.score(completion(), prompt()), ScoringFailed)
        with pytest.raises(RewardError, match="2 calls of the reward 'r' hang and cannot be ended"):
            await scorer.score(completion(), prompt())
    release.set()


async def test_blocking_reward_does_not_hold_the_loop(register: Register) -> None:
    """While a plain reward blocks, the loop goes on: here the loop itself is what ends the wait."""
    started, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block(completion: Completion, prompt: Prompt) -> bool:
        loop.call_soon_threadsafe(started.set)
        return release.wait(10)

    register("r", block)
    async with Scorer([RewardConfig(name="r")]) as scorer:
        call = asyncio.ensure_future(scorer.score(completion(), prompt()))
        await started.wait()
        release.set()
        assert await call == Score(reward=1.0, parts={"r": 1.0})


def test_concurrency_is_bounded_and_waiting_is_not_counted(register: Register) -> None:
    """Never more calls at once than allowed, and the wait for a slot does not use up the deadline of a call."""
    running, most = 0, 0

    async def slow(completion: Completion, prompt: Prompt) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(4.0)
        running -= 1
        return 1.0

    register("r", slow)

    async def score_twenty() -> list[Verdict]:
        async with Scorer([RewardConfig(name="r", concurrency=2, timeout_s=5.0)]) as scorer:
            return await asyncio.gather(*(scorer.score(completion(), prompt()) for _ in range(20)))

    verdicts = virtual_time.run(score_twenty())
    assert most == 2
    assert verdicts == [Score(reward=1.0, parts={"r": 1.0})] * 20


def test_a_group_of_bombs_leaves_the_next_slot_to_others(register: Register) -> None:
    """However many they are: the next group waits for those under way at most, each of which has its limit."""

    async def judge(completion: Completion, prompt: Prompt) -> Judged:
        is_bomb = completion.text == "bomb"
        await asyncio.sleep(6.0 if is_bomb else 0.01)
        return Judged(value=0.0, reason="exhausted_wall" if is_bomb else "judged")

    register("r", judge)

    async def next_group_s() -> float:
        async with Scorer([RewardConfig(name="r", concurrency=2)]) as scorer, asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(scorer.score(completion("bomb"), prompt(prompt_id=1)))
            await asyncio.sleep(1.0)
            asked = asyncio.get_running_loop().time()
            following = [group.create_task(scorer.score(completion(), prompt(prompt_id=2))) for _ in range(8)]
            await asyncio.wait(following)
            return asyncio.get_running_loop().time() - asked

    assert virtual_time.run(next_group_s()) < 6.0


async def test_rewards_of_one_completion_run_side_by_side(register: Register) -> None:
    """Two rewards that wait for each other both end."""
    arrived = [asyncio.Event(), asyncio.Event()]

    def waits(mine: int, other: int) -> Callable[..., Any]:
        async def wait(completion: Completion, prompt: Prompt) -> float:
            arrived[mine].set()
            await arrived[other].wait()
            return 1.0

        return wait

    register("a", waits(0, 1))
    register("b", waits(1, 0))
    assert isinstance(await score_once(RewardConfig(name="a"), RewardConfig(name="b")), Score)


async def test_failure_policy_stop(register: Register) -> None:
    """``on_failure = "stop"`` ends the run at the first failure, and only at a failure."""
    answers: list[Any] = [1.0, None, "no number"]
    register("r", lambda completion, prompt: answers.pop(0))
    async with Scorer([RewardConfig(name="r", on_failure="stop")]) as scorer:
        await scorer.score(completion(), prompt())
        await scorer.score(completion(), prompt())
        with pytest.raises(RewardError, match=r"gave 'no number'.*on_failure is 'stop'"):
            await scorer.score(completion(), prompt())


async def test_only_failures_in_a_row_end_the_run(register: Register) -> None:
    """``max_failures`` counts from the last call that worked; the error names the last failure."""
    answers: list[Any] = ["x", "x", 1.0, "x", "x", None, "x", "x", "last"]
    register("r", lambda completion, prompt: answers.pop(0))
    async with Scorer([RewardConfig(name="r", max_failures=3)]) as scorer:
        for _ in range(8):
            await scorer.score(completion(), prompt())
        with pytest.raises(RewardError, match=r"failed 3 times in a row \(rewards.max_failures = 3\).*gave 'last'"):
            await scorer.score(completion(), prompt())


async def test_cancellation_passes_through(register: Register) -> None:
    """Cancelling score() cancels the reward and is not mistaken for a failure."""
    started = asyncio.Event()

    async def hang(completion: Completion, prompt: Prompt) -> float:
        started.set()
        await asyncio.Event().wait()
        return 1.0

    register("r", hang)
    async with Scorer([RewardConfig(name="r")] * 2) as scorer:
        call = asyncio.ensure_future(scorer.score(completion(), prompt()))
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert scorer.statistics()["r"].calls == 0


async def test_reward_that_cancels_itself_is_a_failure(register: Register) -> None:
    """A CancelledError that nobody asked for does not silently end the rollout."""
    register("r", gives_async(asyncio.CancelledError()))
    verdict = await score_once(RewardConfig(name="r"))
    assert isinstance(verdict, ScoringFailed)
    assert verdict.reason == "reward_error"


async def test_plain_function_may_return_an_awaitable(register: Register) -> None:
    """A lambda around an async function works like the function."""

    def wrapped(completion: Completion, prompt: Prompt) -> Awaitable[Any]:
        return gives_async(0.5)(completion, prompt)

    register("r", wrapped)
    assert await score_once(RewardConfig(name="r")) == Score(reward=0.5, parts={"r": 0.5})


async def test_statistics(register: Register) -> None:
    """Calls, mean, abstentions, failures by reason and latency, per reward."""
    answers: list[Any] = [1.0, 0.0, None, "x", OSError("y")]

    def next_answer(completion: Completion, prompt: Prompt) -> Any:
        return gives(answers.pop(0))(completion, prompt)

    register("r", next_answer)
    async with Scorer([RewardConfig(name="r", max_retries=0)]) as scorer:
        for _ in range(5):
            await scorer.score(completion(), prompt())
        statistics = scorer.statistics()["r"]
    assert (statistics.calls, statistics.mean, statistics.abstained) == (5, 0.5, 1)
    assert statistics.failures == {"reward_bad_value": 1, "reward_error": 1}
    assert 0 < statistics.latency_mean_s <= statistics.latency_max_s


class _Resource:
    """A reward that must be opened and closed."""

    events: list[str]

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails

    async def open(self) -> None:
        if self._fails:
            raise RewardError("no service")
        self.events.append("open")

    async def close(self) -> None:
        self.events.append("close")

    def __call__(self, completion: Completion, prompt: Prompt) -> float:
        return float(len(self.events))


async def test_rewards_are_opened_and_closed(register: Register) -> None:
    """What a reward needs is started on entering and ended on leaving, also when a later one cannot start."""
    _Resource.events = []
    register("r", _Resource)
    assert await score_once(RewardConfig(name="r")) == Score(reward=1.0, parts={"r": 1.0})
    assert _Resource.events == ["open", "close"]
    _Resource.events.clear()
    with pytest.raises(RewardError, match="no service"):
        await score_once(RewardConfig(name="r"), RewardConfig(name="r", options={"fails": True}))
    assert _Resource.events == ["open", "close", "close"]


def test_bad_configuration_is_found_before_anything_starts() -> None:
    """Making a scorer checks names, options and that there is a reward at all."""
    with pytest.raises(ConfigError, match="there is no reward"):
        Scorer([])
    with pytest.raises(PluginError, match="'answer' has no option 'extrct'"):
        Scorer([RewardConfig(name="answer", options={"extrct": "auto"})])
    assert Scorer([RewardConfig(name="answer"), RewardConfig(name="math")]).required_fields == ["answer"]


@pytest.mark.parametrize(
    ("gate", "reward", "parts", "num_calls"),
    [
        (1.0, 2.0 * 1.0 + 3.0 * 0.5, {"gate": 1.0, "other": 0.5}, 1),
        (0.25, 2.0 * 0.25 + 3.0 * 0.5, {"gate": 0.25, "other": 0.5}, 1),
        (0.0, 0.0, {"gate": 0.0}, 0),
        (-1.0, -2.0, {"gate": -1.0}, 0),
    ],
)
async def test_others_count_only_behind_an_open_gate(
    register: Register, gate: float, reward: float, parts: dict[str, float], num_calls: int
) -> None:
    """A gate that gives 0 or less leaves the others unasked, and the score is its own."""
    asked: list[Completion] = []

    async def other(completion: Completion, prompt: Prompt) -> float:
        asked.append(completion)
        return 0.5

    register("gate", gives_async(gate))
    register("other", other)
    assert await score_once(
        RewardConfig(name="other", weight=3.0), RewardConfig(name="gate", weight=2.0, gate=True)
    ) == Score(reward=reward, parts=parts)
    assert len(asked) == num_calls


@pytest.mark.parametrize("value", [None, float("nan")])
async def test_a_gate_that_gives_no_number_is_no_closed_gate(register: Register, value: float | None) -> None:
    """A gate that abstains or fails leaves the completion without a verdict."""
    register("gate", gives_async(value))
    register("other", gives_async(1.0))
    verdict = await score_once(RewardConfig(name="gate", gate=True), RewardConfig(name="other"))
    assert isinstance(verdict, Abstained if value is None else ScoringFailed)


def register_group(name: str, value: Any) -> None:
    """Register a reward of groups that returns ``value``."""
    base.group_reward(name)(gives_async(value))


async def score_three(*rewards: RewardConfig) -> list[Verdict]:
    """The last verdicts on three completions, the middle one of which is ``bad``."""
    completions = [completion(text) for text in ("good", "bad", "good")]
    async with Scorer(rewards) as scorer:
        scores = [await scorer.score(each, prompt()) for each in completions]
        assert all(isinstance(score, Score) for score in scores)
        return await scorer.score_group(completions, scores, prompt())  # type: ignore[arg-type]


async def test_a_reward_of_groups_adds_to_each_score(register: Register) -> None:
    """It gets all completions at once, and its values join those of the rewards of one completion."""
    register("one", gives_async(1.0))
    register_group("rank", (0.5, 0.25, base.Judged(value=0.0, reason="last")))
    verdicts = await score_three(RewardConfig(name="one"), RewardConfig(name="rank", weight=2.0))
    said: list[dict[str, str]] = [{}, {}, {"rank": "last"}]
    assert verdicts == [
        Score(reward=1.0 + 2 * value, parts={"one": 1.0, "rank": value}, messages=messages)
        for value, messages in zip((0.5, 0.25, 0.0), said, strict=True)
    ]


async def test_what_a_reward_says_stands_beside_its_value(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reason and detail, cut to what people read, without the reward's secrets, and writable whatever it is."""
    monkeypatch.setenv("JUDGE_KEY", "s3cret")

    async def strict(completion: Completion, prompt: Prompt, *, api_key: str) -> base.Judged:
        return base.Judged(value=1.0, reason="refused", detail=f"key {api_key} \ud800 " + "x" * 1000)

    register("strict", strict)
    async with Scorer([RewardConfig(name="strict", options={"api_key": "env:JUDGE_KEY"})]) as scorer:
        verdict = await scorer.score(completion("a"), prompt())
    assert isinstance(verdict, Score)
    said = verdict.messages["strict"]
    assert said.startswith("refused: key (hidden) ? xxx")
    assert len(said) < 520


async def test_a_closed_gate_keeps_the_reward_of_the_group_out(register: Register) -> None:
    """A member that did not pass is seen by the group's reward and not paid by it."""

    async def gate(completion: Completion, prompt: Prompt) -> float:
        return float(completion.text == "good")

    register("gate", gate)
    register_group("rank", [1.0, 1.0, 1.0])
    verdicts = await score_three(RewardConfig(name="gate", gate=True), RewardConfig(name="rank"))
    assert [verdict.reward for verdict in verdicts if isinstance(verdict, Score)] == [2.0, 0.0, 2.0]


async def test_what_an_environment_gave_is_not_kept_on_either_side_of_a_gate(register: Register) -> None:
    """It is added to the verdicts of a group anew, so none of them may hold it, passed or not."""
    register("gate", gives_async(1.0))
    register_group("rank", [1.0, 1.0])
    before = [Score(reward=gate + 0.5, parts={"gate": gate, "environment": 0.5}) for gate in (1.0, 0.0)]
    async with Scorer([RewardConfig(name="gate", gate=True), RewardConfig(name="rank")]) as scorer:
        verdicts = await scorer.score_group([completion("a"), completion("b")], before, prompt())
    assert verdicts == [Score(reward=2.0, parts={"gate": 1.0, "rank": 1.0}), Score(reward=0.0, parts={"gate": 0.0})]


@pytest.mark.parametrize("value", [None, 1.0, [1.0], "abc", [1.0, float("nan"), 1.0], RewardError("down")])
async def test_what_is_no_list_of_numbers_fails_for_the_group(register: Register, value: Any) -> None:
    """A value for each completion, or none has a verdict."""
    register_group("rank", value)
    verdicts = await score_three(RewardConfig(name="rank", max_retries=0))
    assert [type(verdict) for verdict in verdicts] == [ScoringFailed] * 3


async def test_a_member_may_be_abstained_from(register: Register) -> None:
    """None for one completion leaves that one out, and no other."""
    register_group("rank", [1.0, None, 0.0])
    verdicts = await score_three(RewardConfig(name="rank"))
    assert [type(verdict) for verdict in verdicts] == [Score, Abstained, Score]


def test_a_reward_of_groups_is_no_gate(register: Register) -> None:
    """What is asked last cannot decide whether others are asked."""
    register_group("rank", [])
    with pytest.raises(ConfigError, match="'rank' judges whole groups and cannot be a gate"):
        Scorer([RewardConfig(name="rank", gate=True)])


async def test_reasons_and_zeros_are_counted_and_a_lap_is_what_came_since(register: Register) -> None:
    """Each reward says how often it gave 0 and why; a lap has the calls since the one before."""
    outcomes = [base.Judged(value=0.0, reason="wrong"), base.Judged(value=1.0), RewardError("down")]

    async def judge(completion: Completion, prompt: Prompt) -> Any:
        outcome = outcomes[prompt.id]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    register("r", judge)
    async with Scorer([RewardConfig(name="r", max_retries=0)]) as scorer:
        for number in range(3):
            await scorer.score(completion(), prompt(prompt_id=number))
        statistics = scorer.statistics()["r"]
        assert (statistics.reasons, statistics.zero_share) == ({"wrong": 1}, 0.5)
        assert set(scorer.lap()["r"]) == {"latency_s", "failed_reward_error"}
        assert scorer.lap() == {"r": {}}
        await scorer.score(completion(), prompt(prompt_id=0))
        assert set(scorer.lap()["r"]) == {"latency_s"}


def test_two_rewards_of_one_name_in_the_metrics_are_refused(register: Register) -> None:
    """A reward named ``a_2`` beside a second ``a``: one of both would be lost."""
    for name in ("a", "a_2"):
        register(name, gives(1.0))
    assert Scorer([RewardConfig(name=name) for name in ("a", "a", "a")]).labels == ["a", "a_2", "a_3"]
    with pytest.raises(ConfigError, match="two have the name 'a_2' in the metrics"):
        Scorer([RewardConfig(name=name) for name in ("a", "a", "a_2")])
