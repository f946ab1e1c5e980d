"""One completion to one verdict: every reward asked, each under its own limits, their results weighed and added.

- A verdict is a Score, an Abstained or a ScoringFailed. A reward that fails is never a 0.
- A bug in a reward (any exception that is no expected failure, see ``base.py``) leaves ``score`` as it was raised.
- Waiting for a free slot of a reward (``concurrency``) is not counted against its ``timeout_s``; its call is, with all
  that is tried again and the pauses before.
- A failure that may pass is tried again ``max_retries`` times; one that would come back (a bug, no number) never.
- Hung plain functions cost a thread each and are bounded: as many as ``concurrency``, then the run ends.
- ``max_failures`` failed calls in a row, without one that worked, pause the reward or end the run (``breaker.py``): the
  reward is broken, not the answers.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import numbers
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

import msgspec

from prl.config import RewardConfig
from prl.deadlines import Deadlines
from prl.errors import ConfigError, RewardError
from prl.hidden import cleared, secrets_of
from prl.rewards.base import Reward, make_reward
from prl.rewards.breaker import FIRST_PAUSE_S, Breaker, is_failure, may_pass
from prl.rewards.threads import Threads
from prl.types import Abstained, Completion, Prompt, Score, ScoringFailed, Verdict

OPEN_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 10.0


class RewardStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What one reward did so far."""

    calls: int
    """Calls that ended, whichever way."""
    mean: float
    """Mean of the values it gave, before weighting; 0 before the first."""
    abstained: int
    failures: dict[str, int]
    """Failed calls by reason."""
    retries: int
    """Tries after the first of a call."""
    pauses: int
    """Times that the reward was paused because all its calls failed."""
    latency_mean_s: float
    latency_max_s: float
    stuck_threads: int
    details: dict[str, float]
    """The reward's own counters."""


class Scorer:
    """The rewards of a run. Making it finds and checks them; entering it starts what they need."""

    def __init__(self, rewards: Sequence[RewardConfig]) -> None:
        """Raises PluginError or MissingExtraError where a reward cannot be found, made or used here."""
        if not rewards:
            raise ConfigError('there is no reward: add a [[rewards]] table, such as name = "answer"')
        seen: Counter[str] = Counter()
        self._judges: list[_Judge] = []
        for config in rewards:
            seen[config.name] += 1
            label = config.name if seen[config.name] == 1 else f"{config.name}_{seen[config.name]}"
            self._judges.append(_Judge(label, config, make_reward(config.name, config.options)))
        self._exits = AsyncExitStack()

    @property
    def required_fields(self) -> list[str]:
        """Fields that every prompt must have for these rewards, sorted."""
        return sorted({field for judge in self._judges for field in judge.reward.required_fields})

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exits:
            for judge in self._judges:
                exits.push_async_callback(judge.close)
                await judge.open()
            self._exits = exits.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exits.aclose()

    async def score(self, completion: Completion, prompt: Prompt) -> Verdict:
        """Judge one completion. Raises RewardError where the configuration says a failure ends the run."""
        if len(self._judges) == 1:
            outcomes = [await self._judges[0].judge(completion, prompt)]
        else:
            # The members return what went wrong as a value: on Python 3.11 and 3.12 a task group that closes on a
            # failure can lose a cancellation that arrives meanwhile.
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(judge.judge(completion, prompt)) for judge in self._judges]
            outcomes = [task.result() for task in tasks]
        return self._weigh(outcomes, prompt)

    def _weigh(self, outcomes: list[_Outcome], prompt: Prompt) -> Verdict:
        for outcome in outcomes:
            if isinstance(outcome, _Raised):
                raise outcome.error
        for kind in (ScoringFailed, Abstained):
            for outcome in outcomes:
                if isinstance(outcome, kind):
                    return outcome
        values = [outcome for outcome in outcomes if isinstance(outcome, float)]
        parts = {judge.label: value for judge, value in zip(self._judges, values, strict=True)}
        total = math.fsum(judge.config.weight * parts[judge.label] for judge in self._judges)
        if not math.isfinite(total):
            return ScoringFailed(
                reason="reward_bad_value", message=f"the weighted sum for prompt {prompt.id} is {total}: {parts}"
            )
        return Score(reward=total, parts=parts)

    def hold_while_paused(self, deadlines: Deadlines) -> None:
        """Deadlines that stand still while a reward is paused."""
        for judge in self._judges:
            judge.breaker.hold_while_open(deadlines)

    @property
    def paused(self) -> list[str]:
        """The rewards that are paused now, since all their calls fail."""
        return [judge.label for judge in self._judges if judge.breaker.is_open]

    @property
    def num_retries(self) -> int:
        """Tries after the first, of all calls so far."""
        return sum(judge.num_retries for judge in self._judges)

    def statistics(self) -> dict[str, RewardStatistics]:
        """Per reward, by the name that also stands in ``Score.parts``."""
        return {judge.label: judge.statistics() for judge in self._judges}


class _Raised(msgspec.Struct, frozen=True):
    """An exception that ends the run, carried as a value to the place that raises it."""

    error: BaseException


class _Failed(msgspec.Struct, frozen=True):
    """A failed call, and whether the same call may work a moment later."""

    outcome: ScoringFailed
    passes: bool


_Outcome = float | Abstained | ScoringFailed | _Raised


class _Judge:
    """One reward with its limits and its counters."""

    def __init__(self, label: str, config: RewardConfig, reward: Reward) -> None:
        self.label, self.config, self.reward = label, config, reward
        self._width = min(config.concurrency, reward.concurrency or config.concurrency)
        self._secrets = secrets_of(config.options)
        self._threads = Threads(f"prl-reward-{label}")
        self._values = 0
        self._sum = 0.0
        self._abstained = 0
        self._failures: Counter[str] = Counter()
        self.num_retries = 0
        self.breaker = Breaker(label, config)
        self._latency_sum_s = 0.0
        self._latency_max_s = 0.0

    async def open(self) -> None:
        self._slots = asyncio.Semaphore(self._width)
        if self.reward.open is not None:
            try:
                async with asyncio.timeout(OPEN_TIMEOUT_S) as deadline:
                    await self.reward.open()
            except TimeoutError as error:
                if not deadline.expired():
                    raise
                raise RewardError(f"the reward {self.label!r} was not ready after {OPEN_TIMEOUT_S:g} s") from error

    async def close(self) -> None:
        self._threads.close()
        if self.reward.close is not None:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.reward.close()

    async def judge(self, completion: Completion, prompt: Prompt) -> _Outcome:
        while True:
            async with self.breaker.turn(), self._slots:
                start = time.perf_counter()
                outcome = await self._call(completion, prompt)
                self._count(outcome, time.perf_counter() - start)
                if not isinstance(outcome, _Failed):
                    self.breaker.worked()
                    return outcome
                end = self._end_of_run(outcome) or self.breaker.failed(outcome.outcome.message, passes=outcome.passes)
            if end is not None:
                return _Raised(end)
            if not self.breaker.is_open:
                return outcome.outcome

    async def _call(self, completion: Completion, prompt: Prompt) -> float | Abstained | _Failed | _Raised:
        """One call, tried again where that may help, under its deadline. Only a cancellation from outside is raised."""
        try:
            async with asyncio.timeout(self.config.timeout_s) as deadline:
                value = await self._value_with_retries(completion, prompt)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return self._failed("reward_error", "cancelled itself", prompt, passes=False)
        except Exception as error:  # noqa: BLE001  (sorted right here into failures and bugs)
            if deadline.expired():
                late = f"took over timeout_s = {self.config.timeout_s:g}"
                return self._failed("reward_timeout", late, prompt, passes=True)
            if is_failure(error):
                return self._failed("reward_error", f"failed: {_said(error)}", prompt, passes=may_pass(error))
            error.add_note(f"raised by the reward {self.label!r} on prompt {prompt.id}: {completion.text[-200:]!r}")
            return _Raised(error)
        if value is None:
            return Abstained(reason="reward_abstained")
        bad_value = f"gave {value!r:.80}, no finite number and not None"
        number = _finite(value)
        return self._failed("reward_bad_value", bad_value, prompt, passes=False) if number is None else number

    async def _value_with_retries(self, completion: Completion, prompt: Prompt) -> Any:
        pause_s = FIRST_PAUSE_S
        for _ in range(self.config.max_retries):
            try:
                return await self._value(completion, prompt)
            except Exception as error:
                if not may_pass(error):
                    raise
            await asyncio.sleep(pause_s)
            pause_s *= 2
            self.num_retries += 1
        return await self._value(completion, prompt)

    async def _value(self, completion: Completion, prompt: Prompt) -> Any:
        if self.reward.is_async:
            return await self.reward.call(completion, prompt)
        value = await self._threads.run(self.reward.call, completion, prompt)
        return await value if inspect.isawaitable(value) else value

    def _failed(self, reason: str, what: str, prompt: Prompt, *, passes: bool) -> _Failed:
        message = cleared(f"prompt {prompt.id}: the reward {self.label!r} {what}", self._secrets)
        return _Failed(ScoringFailed(reason=reason, message=message), passes)

    def _count(self, outcome: float | Abstained | _Failed | _Raised, latency_s: float) -> None:
        self._latency_sum_s += latency_s
        self._latency_max_s = max(self._latency_max_s, latency_s)
        if isinstance(outcome, _Failed):
            self._failures[outcome.outcome.reason] += 1
        elif isinstance(outcome, Abstained):
            self._abstained += 1
        elif isinstance(outcome, float):
            self._values += 1
            self._sum += outcome

    def _end_of_run(self, failed: _Failed) -> RewardError | None:
        """What a failure means that ends the run at once."""
        if self.config.on_failure == "stop":
            return RewardError(f"{failed.outcome.message}; rewards.on_failure is 'stop'")
        if self._threads.num_stuck >= self._width:
            return RewardError(
                f"{self._threads.num_stuck} calls of the reward {self.label!r} hang and cannot be ended: make it async,"
                f" or give what it waits for a deadline below timeout_s = {self.config.timeout_s:g}"
            )
        return None

    def statistics(self) -> RewardStatistics:
        failures = dict(self._failures)
        calls = self._values + self._abstained + sum(failures.values())
        return RewardStatistics(
            calls=calls,
            mean=self._sum / self._values if self._values else 0.0,
            abstained=self._abstained,
            failures=failures,
            retries=self.num_retries,
            pauses=self.breaker.num_opened,
            latency_mean_s=self._latency_sum_s / calls if calls else 0.0,
            latency_max_s=self._latency_max_s,
            stuck_threads=self._threads.num_stuck,
            details=dict(self.reward.statistics()) if self.reward.statistics is not None else {},
        )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _finite(value: Any) -> float | None:
    """``value`` as a float where it is a finite number: int, float, bool, or a scalar of numpy or torch."""
    if not isinstance(value, numbers.Real) and getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
