"""An evaluation speaks of one version, counts what it could not judge, and ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, Never

import msgspec
import pytest

from prl.config_eval import EvalConfig
from prl.engines.base import Decoding
from prl.errors import EngineDeadError, EngineError, PrlError
from prl.evaluate import Asked, Evaluation, evaluate, ks_of
from prl.sampler import Dropped
from prl.types import Abstained, Completion, Prompt, Score, ScoringFailed, Verdict
from tests.factories import make_completion, make_prompt
from tests.virtual import in_virtual_time

GREEDY = Decoding(temperature=0.0, max_tokens=16, stop_token_ids=[0])
ASKED = Asked(decoding=GREEDY, num_answers=1, pass_at=(), pass_reward=1.0, concurrency=64, seed=None)
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


async def run(num_prompts: int = 4, sample: Sample = sample, score: Any = even, **asked: Any) -> Evaluation:
    """Evaluate that many prompts."""
    prompts = [make_prompt(number, answer=number) for number in range(num_prompts)]
    async with asyncio.timeout(TIMEOUT_S):
        return await evaluate(prompts, sample, score, asked=msgspec.structs.replace(ASKED, **asked), version=VERSION)


@in_virtual_time
async def test_the_mean_of_all_answers_in_order() -> None:
    """Every prompt is answered once; answers stand in the prompts' order with what was expected."""

    async def last_first(prompt: Prompt, decoding: Decoding) -> Completion:
        await asyncio.sleep(10 - prompt.id)
        return await sample(prompt, decoding)

    result = await run(5, last_first)
    assert (result.version, result.reward_mean, result.num_prompts, result.num_failed) == (VERSION, 0.6, 5, 0)
    assert result.is_accuracy, "each is 0 or 1"
    assert [(a.prompt, a.completion, a.reward, a.expected) for a in result.answers] == [
        (f"prompt {number}", str(number), float(number % 2 == 0), str(number)) for number in range(5)
    ]


@in_virtual_time
async def test_several_answers_of_a_prompt() -> None:
    """Each prompt is answered n times: its mean weighs as any other's, pass@k counts what passes, lengths are told."""

    async def counted(prompt: Prompt, decoding: Decoding) -> Completion:
        await asyncio.sleep(1)
        number = next(numbers[prompt.id])
        finish: Any = "length" if number == 3 else "stop"
        return make_completion([prompt.id] * (number + 1), versions=[VERSION] * (number + 1), finish=finish)

    async def grade(completion: Completion, prompt: Prompt) -> Verdict:
        """Prompt 0: 1 of 4 reaches 0.5; prompt 1: 3 of 4; prompt 2: one answer is lost, the others pass."""
        if prompt.id == 2 and len(completion.token_ids) == 1:
            return Abstained(reason="reward_abstained")
        return Score(reward=float(len(completion.token_ids) > 3 - 2 * prompt.id) / 2)

    numbers = [itertools.count() for _ in range(3)]
    result = await run(3, counted, grade, num_answers=4, pass_at=(1, 2, 4), pass_reward=0.5)
    assert (result.num_prompts, result.num_answers, result.num_failed) == (3, 11, 1)
    assert (result.reward_mean, result.is_accuracy) == (pytest.approx((0.25 + 0.75 + 1) / 3 / 2), False)
    assert {k: found.mean for k, found in result.pass_at.items()} == {
        1: pytest.approx((1 / 4 + 3 / 4 + 1) / 3),
        2: pytest.approx((1 / 2 + 1 + 1) / 3),
        4: 1.0,
    }
    assert (result.length_max, result.truncated) == (4, 3 / 11)
    assert result.length_mean == pytest.approx((10 + 10 + 9) / 11)
    assert [answer.prompt_id for answer in result.answers] == [0] * 4 + [1] * 4 + [2] * 3


@in_virtual_time
async def test_a_k_that_no_prompt_has_answers_for_is_left_out() -> None:
    """Where failures leave too few answers there is no pass@k, rather than one of fewer answers."""
    attempts = itertools.count()

    async def every_other(prompt: Prompt, decoding: Decoding) -> Completion | Dropped:
        return Dropped(reason="aborted", message="") if next(attempts) % 2 else await sample(prompt, decoding)

    result = await run(3, every_other, num_answers=4, pass_at=(2, 3))
    assert list(result.pass_at) == [2]


@in_virtual_time
async def test_seeds_depend_on_prompt_and_answer_only() -> None:
    """With a seed every stream has one of its own, the same at every evaluation; without one, none."""
    seeds: list[int | None] = []

    async def noted(prompt: Prompt, decoding: Decoding) -> Completion:
        seeds.append(decoding.seed)
        return make_completion([prompt.id], versions=[VERSION])

    await run(4, noted, num_answers=2, seed=7)
    await run(4, noted, num_answers=2, seed=7)
    assert seeds[:8] == seeds[8:]
    assert len(set(seeds)) == 8
    seeds.clear()
    await run(4, noted)
    assert seeds == [None] * 4


def test_which_k_are_asked_for() -> None:
    """Those that are named, once and ascending; else 1 and n where there is more than one answer."""
    assert ks_of(EvalConfig(num_answers=8, pass_at=(4, 1, 4))) == (1, 4)
    assert ks_of(EvalConfig(num_answers=8)) == (1, 8)
    assert ks_of(EvalConfig()) == ()


@in_virtual_time
async def test_the_question_is_shown_as_it_was_asked() -> None:
    """A conversation is shown by its last message, without the template around it."""
    prompt = Prompt(id=0, token_ids=[1], text="<user>2 + 2", messages=[{"role": "user", "content": "2 + 2"}], fields={})
    result = await evaluate([prompt], sample, even, asked=ASKED, version=VERSION)
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
    assert (result.reward_mean, result.num_prompts, result.num_answers, result.num_failed) == (1.0, 3, 3, 3)
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
async def test_a_deadline_of_the_caller_ends_the_streams() -> None:
    """One answer that never comes: the caller's timeout is the caller's, and every stream is ended."""
    ended: list[int] = []

    async def hangs(prompt: Prompt, decoding: Decoding) -> Completion:
        try:
            return await for_ever()
        finally:
            ended.append(prompt.id)

    with pytest.raises(TimeoutError):
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
