"""Evaluations beside training: never longer in the way than stated, complete or said to be incomplete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from prl.config_eval import EvalConfig
from prl.deadlines import Deadlines
from prl.errors import PrlError
from prl.evaluate import Evaluation
from prl.evaluator import Evaluator
from prl.failure import FirstFailure
from tests.factories import make_evaluation
from tests.virtual import in_virtual_time

Evaluate = Callable[[int, Callable[[], None]], Awaitable[Evaluation]]


def now() -> float:
    """Virtual time."""
    return asyncio.get_running_loop().time()


def taking(seconds: float, ended: list[int] | None = None) -> Evaluate:
    """An evaluation that gives an answer a second and is done after ``seconds``."""

    async def evaluate(version: int, on_answer: Callable[[], None]) -> Evaluation:
        try:
            for _ in range(int(seconds)):
                await asyncio.sleep(1)
                on_answer()
            return make_evaluation(version=version)
        finally:
            if ended is not None:
                ended.append(version)

    return evaluate


class Run:
    """An evaluator and what it recorded."""

    def __init__(self, evaluate: Evaluate, **config: Any) -> None:
        self.failure = FirstFailure()
        self.recorded: list[dict[str, Any]] = []
        self.deadlines = Deadlines()
        self.evaluator = Evaluator(
            evaluate,
            config=EvalConfig(**config),
            record=self.record,
            failure=self.failure,
            deadlines=self.deadlines,
        )

    async def record(self, line: dict[str, Any]) -> None:
        """Keep it."""
        self.recorded.append(line)

    def told(self, *keys: str) -> list[tuple[Any, ...]]:
        """These keys of every line."""
        return [tuple(line[key] for key in keys) for line in self.recorded]


@asynccontextmanager
async def running(evaluate: Evaluate, **config: Any) -> AsyncIterator[Run]:
    """An open evaluator."""
    run = Run(evaluate, **config)
    async with run.evaluator.open():
        yield run


# ---- beside training -------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_training_goes_on_while_it_runs() -> None:
    """Nothing waits until the next push; one that is done by then has blocked nothing."""
    async with running(taking(10), every=2) as run:
        run.evaluator.pushed(1)
        assert await run.evaluator.before_push() == 0
        run.evaluator.pushed(2)
        assert now() == 0
        await asyncio.sleep(12)
        assert await run.evaluator.before_push() == 0
        assert now() == 12
        assert run.evaluator.latest == make_evaluation(version=2)
    assert run.told("step", "version", "complete", "block_s") == [(2, 2, True, 0.0)]


@in_virtual_time
async def test_the_push_waits_for_it_and_says_how_long() -> None:
    """What is left of it when the push is due is waited for, and is its ``block_s``."""
    async with running(taking(10), every=1, max_block_s=60) as run:
        run.evaluator.pushed(1)
        await asyncio.sleep(7)
        assert await run.evaluator.before_push() == 0
        assert now() == 10
    assert run.told("version", "complete", "block_s") == [(1, True, 3.0)]


@in_virtual_time
async def test_past_the_bound_it_is_given_up() -> None:
    """The push goes ahead at the bound; the streams end; no mean is made of what was there, and it is counted once."""
    ended: list[int] = []
    async with running(taking(10, ended), every=1, max_block_s=2) as run:
        run.evaluator.pushed(1)
        await asyncio.sleep(5.5)
        assert await run.evaluator.before_push() == 1
        assert now() == 7.5
        assert run.evaluator.latest is None
        run.evaluator.pushed(2)
        await asyncio.sleep(0)
        assert ended == [1], "before anything of the next version is answered"
        await asyncio.sleep(11)
        assert await run.evaluator.before_push() == 0
    keys = ("version", "complete", "seconds", "block_s")
    assert run.told(*keys) == [(1, False, 7.5, 2.0), (2, True, 1.0, 0.0)]
    assert run.recorded[0]["num_answers"] == 7
    assert run.recorded[0]["reason"] == "eval.max_block_s = 2 s"
    assert "reward_mean" not in run.recorded[0]


@in_virtual_time
async def test_its_own_deadline_does_not_end_the_run() -> None:
    """Beside training, one that takes longer than eval.timeout_s is incomplete, and the next push hears of it."""
    async with running(taking(10), every=1, timeout_s=4) as run:
        run.evaluator.pushed(1)
        await asyncio.sleep(9)
        assert await run.evaluator.before_push() == 1
        assert await run.evaluator.before_push() == 0
    assert run.told("complete", "reason", "seconds") == [(False, "eval.timeout_s = 4 s", 4.0)]
    assert run.failure.error is None


@in_virtual_time
async def test_every_n_steps_are_counted_by_what_is_pushed() -> None:
    """Versions that a round passes over are not evaluated; the push that passes a multiple of n is."""
    async with running(taking(1), every=3) as run:
        for version in (2, 4, 6, 7, 8, 12, 20):
            run.evaluator.pushed(version)
            await asyncio.sleep(2)
        assert run.told("version") == [(4,), (6,), (12,), (20,)]
    async with running(taking(1)) as run:
        run.evaluator.pushed(8)
        await asyncio.sleep(2)
        assert run.recorded == []


@pytest.mark.parametrize(
    ("version", "is_recorded", "evaluated"), [(4, False, [(4,)]), (4, True, []), (5, False, []), (0, False, [])]
)
@in_virtual_time
async def test_a_resumed_run_makes_up_for_what_was_cut_off(
    version: int, is_recorded: bool, evaluated: list[tuple[int]]
) -> None:
    """The version it goes on from is evaluated if that was due and its line is not there."""
    async with running(taking(1), every=2) as run:
        run.evaluator.resumed(version, is_recorded=is_recorded)
        await asyncio.sleep(2)
        assert run.told("version") == evaluated


@in_virtual_time
async def test_a_failure_is_the_runs_and_stays_as_it_was() -> None:
    """It ends a wait for the next push at once, and is raised by every wait after."""
    bug = TypeError("a bug in a reward")

    async def fails(version: int, _: Callable[[], None]) -> Evaluation:
        await asyncio.sleep(3)
        raise bug

    async with running(fails, every=1) as run:
        run.evaluator.pushed(1)
        with pytest.raises(TypeError) as raised, run.failure.interrupts():
            await run.evaluator.before_push()
        assert raised.value is bug
        assert now() == 3
        with pytest.raises(TypeError), run.failure.interrupts():
            await asyncio.sleep(1)
    assert run.recorded == []


@in_virtual_time
async def test_leaving_ends_what_is_under_way() -> None:
    """A run that fails or is stopped waits for no evaluation."""
    ended: list[int] = []
    async with running(taking(100, ended), every=1) as run:
        run.evaluator.pushed(1)
        await asyncio.sleep(5)
    assert (ended, now(), run.recorded) == ([1], 5, [])


# ---- awaited ---------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_it_may_be_awaited() -> None:
    """The result comes back, all of its time was waited for, and one under way is not started a second time."""
    async with running(taking(10), every=2) as run:
        assert (await run.evaluator.evaluate(0)).version == 0
        run.evaluator.pushed(2)
        await asyncio.sleep(4)
        found = await run.evaluator.evaluate(2)
        assert now() == 20
        assert found is run.evaluator.latest
    assert run.told("version", "block_s") == [(0, 10.0), (2, 6.0)]


@in_virtual_time
async def test_awaiting_has_a_deadline() -> None:
    """The config key and its value are named; the run itself goes on."""
    async with running(taking(10), timeout_s=4) as run:
        message = r"the evaluation of version 0 took longer than eval.timeout_s = 4 s; 3 answers were there"
        with pytest.raises(PrlError, match=message):
            await run.evaluator.evaluate(0)
        assert now() == 4
    assert run.failure.error is None


@in_virtual_time
async def test_the_last_one_completes() -> None:
    """Field notes A, final evaluation: one under way is waited for, and one that is there is not repeated."""
    async with running(taking(10), every=2, max_block_s=1) as run:
        run.evaluator.pushed(4)
        await asyncio.sleep(1)
        assert (await run.evaluator.last(4)) == make_evaluation(version=4, block_s=9.0)
        assert now() == 10
        await run.evaluator.last(4)
        assert now() == 10
        assert (await run.evaluator.last(5)) == make_evaluation(version=5, block_s=10.0)


@in_virtual_time
async def test_the_last_one_that_runs_out_of_time_is_none() -> None:
    """The end of a run is not lost for an evaluation: it is incomplete and counted."""
    async with running(taking(10), timeout_s=4) as run:
        assert await run.evaluator.last(4) is None
        assert run.evaluator.take_incomplete() == 1
        assert run.told("version", "complete") == [(4, False)]


@in_virtual_time
async def test_an_evaluation_has_its_time_while_the_trainer_is_mended() -> None:
    """``eval.timeout_s`` counts seconds in which answers can come."""
    resumed = asyncio.Event()

    async def held_up(version: int, on_answer: Callable[[], None]) -> Evaluation:
        await resumed.wait()
        return await taking(3)(version, on_answer)

    async with running(held_up, timeout_s=4) as run:
        evaluating = asyncio.ensure_future(run.evaluator.evaluate(0))
        run.deadlines.hold("a mend")
        await asyncio.sleep(600)
        run.deadlines.go_on("a mend")
        resumed.set()
        assert (await evaluating).version == 0
