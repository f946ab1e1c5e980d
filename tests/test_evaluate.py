"""An evaluation speaks of one version, counts what it could not judge, and ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, Never

import pytest

from prl.engines.base import Decoding
from prl.errors import EngineDeadError, EngineError, PrlError
from prl.evaluate import Evaluation, evaluate
from prl.rollout import Dropped
from prl.types import Abstained, Completion, Prompt, Score, ScoringFailed, Verdict
from tests.factories import make_completion, make_prompt
from tests.virtual import in_virtual_time

GREEDY = Decoding(temperature=0.0, max_tokens=16, stop_token_ids=[0])
TIMEOUT_S = 100.0
VERSION = 3

Sample = Callable[[Prompt, Decoding], Awaitable[Completion | Dropped]]


async def for_ever() -> Never:
    """Wait without end."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nothing sets this future")


async def sample(prompt: Prompt, decoding: Decoding) -> Completion:
    """Answer in a second with the prompt's number."""
    assert decoding is GREEDY
    await asyncio.sleep(1)
    return make_completion([prompt.id], versions=[VERSION])


async def even(completion: Completion, prompt: Prompt) -> Verdict:
    """1 for an even number."""
    return Score(reward=float(completion.token_ids[0] % 2 == 0))


async def run(num_prompts: int = 4, sample: Sample = sample, score: Any = even, *, concurrency: int = 64) -> Evaluation:
    """Evaluate that many prompts."""
    prompts = [make_prompt(number, answer=number) for number in range(num_prompts)]
    return await evaluate(
        prompts, sample, score, decoding=GREEDY, version=VERSION, concurrency=concurrency, timeout_s=TIMEOUT_S
    )


@in_virtual_time
async def test_the_mean_of_all_answers_in_order() -> None:
    """Every prompt is answered once; answers stand in the prompts' order with what was expected."""

    async def last_first(prompt: Prompt, decoding: Decoding) -> Completion:
        await asyncio.sleep(10 - prompt.id)
        return await sample(prompt, decoding)

    result = await run(5, last_first)
    assert (result.version, result.reward_mean, result.num_samples, result.num_failed) == (VERSION, 0.6, 5, 0)
    assert [(a.prompt, a.completion, a.reward, a.expected) for a in result.answers] == [
        (f"prompt {number}", str(number), float(number % 2 == 0), str(number)) for number in range(5)
    ]


@in_virtual_time
async def test_the_interval_is_that_of_a_mean() -> None:
    """The half width is 1.96 standard errors; answers that all agree leave none."""
    assert (await run(100)).interval == pytest.approx(1.96 * 0.5 / math.sqrt(100))

    async def right(completion: Completion, prompt: Prompt) -> Verdict:
        return Score(reward=1.0)

    assert (await run(100, score=right)).interval == 0


@in_virtual_time
async def test_the_question_is_shown_as_it_was_asked() -> None:
    """A conversation is shown by its last message, without the template around it."""
    prompt = Prompt(id=0, token_ids=[1], text="<user>2 + 2", messages=[{"role": "user", "content": "2 + 2"}], fields={})
    result = await evaluate(
        [prompt], sample, even, decoding=GREEDY, version=VERSION, concurrency=1, timeout_s=TIMEOUT_S
    )
    assert [(answer.prompt, answer.expected) for answer in result.answers] == [("2 + 2", "")]


# ---- what could not be judged ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_failures_are_counted_and_no_reward_of_0() -> None:
    """Field notes A, failed members: an answer that was dropped, abstained from or not scored leaves the mean."""

    async def drops_5(prompt: Prompt, decoding: Decoding) -> Completion | Dropped:
        return Dropped(reason="aborted", message="") if prompt.id == 5 else await sample(prompt, decoding)

    async def scores(completion: Completion, prompt: Prompt) -> Verdict:
        verdicts: dict[int, Verdict] = {
            1: Abstained(reason="reward_abstained"),
            3: ScoringFailed(reason="reward_timeout", message=""),
        }
        return verdicts.get(prompt.id, Score(reward=1.0))

    result = await run(6, drops_5, scores)
    assert (result.reward_mean, result.num_samples, result.num_failed) == (1.0, 3, 3)
    assert [answer.expected for answer in result.answers] == ["0", "2", "4"]


@in_virtual_time
async def test_nothing_judged_is_an_error() -> None:
    """An evaluation without one answer has no mean, so it is an error and not 0."""

    async def drops(prompt: Prompt, decoding: Decoding) -> Dropped:
        return Dropped(reason="aborted", message="")

    with pytest.raises(PrlError, match="none of the 4 answers of the evaluation could be sampled and judged"):
        await run(4, drops)


@pytest.mark.parametrize("versions", [[VERSION, VERSION + 1], [VERSION - 1], [VERSION - 1, VERSION]])
@in_virtual_time
async def test_versions_are_never_mixed(versions: list[int]) -> None:
    """An answer with a token of another version, older or newer, is refused; no score is made of it."""
    scored: list[int] = []

    async def mixed(prompt: Prompt, decoding: Decoding) -> Completion:
        return make_completion([2] * len(versions), versions=versions)

    async def score(completion: Completion, prompt: Prompt) -> Verdict:
        scored.append(prompt.id)
        return Score(reward=1.0)

    with pytest.raises(EngineError, match=f"an evaluation of version {VERSION} was answered by versions"):
        await run(4, mixed, score)
    assert scored == []


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 3, 64])
@in_virtual_time
async def test_no_more_streams_than_allowed(concurrency: int) -> None:
    """Streams are bounded, and the bound is used; scoring holds no place."""
    num_open = most_open = 0

    async def counted(prompt: Prompt, decoding: Decoding) -> Completion:
        nonlocal num_open, most_open
        num_open += 1
        most_open = max(most_open, num_open)
        completion = await sample(prompt, decoding)
        num_open -= 1
        return completion

    async def slow(completion: Completion, prompt: Prompt) -> Verdict:
        await asyncio.sleep(50)
        return Score(reward=1.0)

    await run(12, counted, slow, concurrency=concurrency)
    assert most_open == min(12, concurrency)
    assert asyncio.get_running_loop().time() == -(-12 // concurrency) + 50


@in_virtual_time
async def test_an_evaluation_has_a_deadline() -> None:
    """One answer that never comes ends the evaluation at its deadline, whose config key is named; streams are ended."""
    ended: list[int] = []

    async def hangs(prompt: Prompt, decoding: Decoding) -> Completion:
        try:
            return await for_ever()
        finally:
            ended.append(prompt.id)

    with pytest.raises(PrlError, match=r"the evaluation of 4 prompts took longer than eval.timeout_s = 100 s"):
        await run(4, hangs, concurrency=2)
    assert asyncio.get_running_loop().time() == TIMEOUT_S
    assert sorted(ended) == [0, 1]


@pytest.mark.parametrize(
    "error", [TypeError("a bug"), EngineDeadError("engine-0 is dead"), TimeoutError("the socket's own")]
)
@pytest.mark.parametrize("place", ["sample", "score"])
@in_virtual_time
async def test_an_error_leaves_as_it_was_at_once(place: str, error: Exception) -> None:
    """A bug, a death, or another's TimeoutError is raised itself, in no group, and the rest is not waited for."""

    async def fails(*_: object) -> Never:
        raise error

    async def hangs_but_for_one(prompt: Prompt, decoding: Decoding) -> Completion:
        if prompt.id == 2:
            return await fails() if place == "sample" else await sample(prompt, decoding)
        return await for_ever()

    with pytest.raises(type(error)) as raised:
        await run(4, hangs_but_for_one, fails)
    assert raised.value is error
    assert asyncio.get_running_loop().time() <= 1


@in_virtual_time
async def test_an_answer_that_is_cancelled_from_within_is_an_error() -> None:
    """A CancelledError that nobody asked for is an error of that prompt, and not the end of the evaluation's task."""

    async def cancels(prompt: Prompt, decoding: Decoding) -> Completion:
        raise asyncio.CancelledError

    with pytest.raises(PrlError, match="the evaluation of prompt 0 was cancelled from within"):
        await run(1, cancels)


@in_virtual_time
async def test_a_cancelled_evaluation_ends_its_streams() -> None:
    """A cancellation goes through to every stream and out again."""
    ended: list[int] = []

    async def hangs(prompt: Prompt, decoding: Decoding) -> Completion:
        try:
            return await for_ever()
        finally:
            ended.append(prompt.id)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run(3, hangs))
        await asyncio.sleep(1)
        task.cancel()
    assert task.cancelled()
    assert sorted(ended) == [0, 1, 2]
