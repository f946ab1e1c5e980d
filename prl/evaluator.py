"""The evaluations of a run: beside training, one version at a time, each either complete or reported as incomplete.

Invariants:

- An evaluation of version v begins after v was pushed and ends before the next push: ``before_push`` waits for it, at
  most ``eval.max_block_s``, and then gives it up. So training never waits longer for one, and no answer mixes versions.
- One that was given up, or took longer than ``eval.timeout_s``, has no mean: that of the answers that were quick would
  flatter short ones. It is warned of, counted, and has its line in ``evaluations.jsonl``.
- Every evaluation is a task of one group. What fails in it is the run's failure, raised from ``step()`` as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from prl.config_eval import EvalConfig
from prl.deadlines import Deadlines
from prl.errors import PrlError
from prl.evaluate import Evaluation
from prl.failure import FirstFailure, failures_to
from prl.log import get_logger
from prl.waits import Wait, loop, waiting

log = get_logger(__name__)

Evaluate = Callable[[int, Callable[[], None]], Awaitable[Evaluation]]
"""Evaluates a version, and calls its second argument at every answer."""


class Incomplete(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation that ran out of time."""

    version: int
    reason: str
    """The key of the limit, and its value."""
    num_answers: int
    """Answers that were there by then."""
    seconds: float
    block_s: float
    """How much of that training waited for."""

    def line(self) -> dict[str, Any]:
        """The object written to ``evaluations.jsonl``."""
        return {"step": self.version, "complete": False, **msgspec.structs.asdict(self)}


class _UnderWay:
    """One evaluation that has begun."""

    def __init__(self, version: int, now: float) -> None:
        self.version, self.began_at = version, now
        self.num_answers = 0
        self.blocks_since: float | None = None
        """When training, or whoever asked for it, began to wait."""
        self.outcome: Evaluation | Incomplete | None = None
        self.task: asyncio.Task[None]
        self.wait: Wait | None = None

    def count(self) -> None:
        """One more answer."""
        self.num_answers += 1

    def block_s(self, now: float) -> float:
        """Seconds that it was waited for."""
        return 0.0 if self.blocks_since is None else now - self.blocks_since

    def given_up(self, reason: str, now: float) -> Incomplete:
        """What is left of it."""
        return Incomplete(
            version=self.version,
            reason=reason,
            num_answers=self.num_answers,
            seconds=now - self.began_at,
            block_s=self.block_s(now),
        )


class Evaluator:
    """See the module. Use it within ``open``.

    Args:
        evaluate: see ``Evaluate``.
        config: ``[eval]``.
        record: keeps the line of an evaluation.
        failure: of the run.
        deadlines: stand still while no answer can come, since the trainer or a reward is being mended.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        *,
        config: EvalConfig,
        record: Callable[[dict[str, Any]], Awaitable[None]],
        failure: FirstFailure,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._evaluate, self._config, self._record, self._failure = evaluate, config, record, failure
        self._deadlines = deadlines or Deadlines()
        self.latest: Evaluation | None = None
        """The latest that is complete."""
        self._num_incomplete = 0
        self._pushed = 0
        self._begun: _UnderWay | None = None
        self._clock = asyncio.get_running_loop().time

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Evaluations may run until this is left, which ends them."""
        async with asyncio.TaskGroup() as self._group:
            try:
                yield
            finally:
                if self._begun is not None:
                    self._begun.task.cancel()

    # ---- beside training ---------------------------------------------------------------------------------------------

    def pushed(self, version: int) -> None:
        """The engines serve ``version``: evaluate it if it is due, beside what follows."""
        every = self._config.every
        if every and version // every > self._pushed // every:
            self._start(version)
        self._pushed = version

    def resumed(self, version: int, *, is_recorded: bool) -> None:
        """A run goes on from ``version``, whose evaluation the end of the run before may have cut off."""
        self._pushed = version if is_recorded else max(0, version - 1)
        self.pushed(version)

    async def before_push(self) -> int:
        """Wait for the evaluation under way, at most ``eval.max_block_s``, then give it up.

        Returns:
            How many evaluations were incomplete since the last call.
        """
        if (under_way := self._under_way) is not None:
            limit_s = self._config.max_block_s
            await self._wait(under_way, limit_s)
            if under_way.outcome is None:
                under_way.task.cancel()
                await self._end(under_way, under_way.given_up(f"eval.max_block_s = {limit_s:g} s", self._clock()))
        return self.take_incomplete()

    def take_incomplete(self) -> int:
        """How many evaluations were incomplete since the last call."""
        num_incomplete, self._num_incomplete = self._num_incomplete, 0
        return num_incomplete

    # ---- awaited -----------------------------------------------------------------------------------------------------

    async def evaluate(self, version: int) -> Evaluation:
        """Evaluate ``version``, which the engines serve, or wait for its evaluation where that is under way.

        Raises:
            PrlError: it took too long.
            Exception: the run's failure, as it was.
        """
        outcome = await self._outcome(version)
        if isinstance(outcome, Incomplete):
            raise PrlError(
                f"the evaluation of version {version} took longer than {outcome.reason};"
                f" {outcome.num_answers} answers were there"
            )
        return outcome

    async def last(self, version: int) -> Evaluation | None:
        """The evaluation of a run's last version, made unless it is there; None where its time ran out."""
        if self.latest is not None and self.latest.version == version:
            return self.latest
        outcome = await self._outcome(version)
        return outcome if isinstance(outcome, Evaluation) else None

    async def _outcome(self, version: int) -> Evaluation | Incomplete:
        under_way = self._under_way or self._start(version)
        with self._failure.interrupts():
            await self._wait(under_way, None)
        if under_way.outcome is None:
            raise PrlError(f"the evaluation of version {version} was ended with the run")
        return under_way.outcome

    # ---- one evaluation ----------------------------------------------------------------------------------------------

    @property
    def _under_way(self) -> _UnderWay | None:
        """The evaluation that has begun and has not ended."""
        return self._begun if self._begun is not None and not self._begun.task.done() else None

    async def _wait(self, under_way: _UnderWay, timeout_s: float | None) -> None:
        """Wait for its task, which ``eval.timeout_s`` ends, or for less."""
        if under_way.blocks_since is None:
            under_way.blocks_since = self._clock()
        what, limit_s = f"evaluation of version {under_way.version}", timeout_s or self._config.timeout_s
        with waiting(what, limit_s=limit_s, on=lambda: [under_way.wait]):
            await asyncio.wait([under_way.task], timeout=timeout_s)

    def _start(self, version: int) -> _UnderWay:
        self._begun = _UnderWay(version, self._clock())
        self._begun.task = self._group.create_task(self._run(self._begun))
        return self._begun

    async def _run(self, under_way: _UnderWay) -> None:
        what = f"evaluation of version {under_way.version}"
        with failures_to(self._failure.set, f"the {what}"), loop(what) as under_way.wait:
            await self._end(under_way, await self._within_timeout(under_way))

    async def _within_timeout(self, under_way: _UnderWay) -> Evaluation | Incomplete:
        timeout_s = self._config.timeout_s
        try:
            async with self._deadlines.timeout(timeout_s) as deadline:
                evaluation = await self._evaluate(under_way.version, under_way.count)
        except TimeoutError:
            if not deadline.expired():
                raise
            return under_way.given_up(f"eval.timeout_s = {timeout_s:g} s", self._clock())
        return msgspec.structs.replace(evaluation, block_s=under_way.block_s(self._clock()))

    async def _end(self, under_way: _UnderWay, outcome: Evaluation | Incomplete) -> None:
        """Keep and report how it ended."""
        under_way.outcome = outcome
        if isinstance(outcome, Evaluation):
            self.latest = outcome
            log.info("evaluated", **{key: value for key, value in outcome.line().items() if key != "step"})
        else:
            self._num_incomplete += 1
            log.warning("evaluation incomplete", **msgspec.structs.asdict(outcome))
        await self._record(outcome.line())
