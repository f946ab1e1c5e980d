"""One reward with its limits: a call of it, tried again where that helps, as a value and never as an exception.

- What a call gives is an Opinion, a ScoringFailed, or what ends the run (Raised). A failure is never a 0.
- Waiting for a free slot of a reward (``concurrency``) is not counted against its ``timeout_s``; its call is, with all
  that is tried again and the pauses before. Slots are given in turns (``turns.py``): a group of answers that exhaust
  limits, however many, leaves the next slot to others.
- A failure that may pass is tried again ``max_retries`` times; one that would come back (a bug, no number) never.
- Hung plain functions cost a thread each and are bounded: as many as ``concurrency``, then the run ends.
- ``max_failures`` failed calls in a row, without one that worked, pause the reward or end the run (``breaker.py``): the
  reward is broken, not the answers.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from prl.config import RewardConfig
from prl.deadlines import awake_timeout
from prl.errors import RewardError
from prl.hidden import cleared, secrets_of
from prl.rewards.base import Reward
from prl.rewards.breaker import FIRST_PAUSE_S, Breaker, is_failure, may_pass
from prl.rewards.opinions import BadValueError, Opinion, RewardStatistics, opinion_of, opinions_of
from prl.rewards.threads import Threads
from prl.rewards.turns import Turns
from prl.types import Completion, Prompt, ScoringFailed
from prl.waits import waiting

OPEN_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 10.0
MAX_MESSAGE = 500
"""Characters of what a reward says about one completion that are kept."""

T = TypeVar("T")


class Raised(msgspec.Struct, frozen=True):
    """An exception that ends the run, carried as a value to the place that raises it."""

    error: BaseException


class _Failed(msgspec.Struct, frozen=True):
    """A failed call, and whether the same call may work a moment later."""

    outcome: ScoringFailed
    passes: bool


class _Gave(msgspec.Struct, Generic[T], frozen=True):
    """A call that worked."""

    value: T


class Asked:
    """One reward with its limits and its counters."""

    def __init__(self, label: str, config: RewardConfig, reward: Reward) -> None:
        self.label, self.config, self.reward = label, config, reward
        self._width = min(config.concurrency, reward.concurrency or config.concurrency)
        self._secrets = secrets_of(config.options)
        self._threads = Threads(f"prl-reward-{label}")
        self._values = self._zeros = 0
        self._sum = 0.0
        self._calls = 0
        self._reasons: Counter[str] = Counter()
        self._abstained = 0
        self._failures: Counter[str] = Counter()
        self.num_retries = 0
        self.breaker = Breaker(label, config)
        self._latency_sum_s = 0.0
        self._latency_max_s = 0.0
        self._lap: tuple[int, float, Counter[str]] = (0, 0.0, Counter())

    async def open(self) -> None:
        """Start what the reward needs. Raises RewardError where that takes too long."""
        self._slots = Turns(self._width, states_waits=False)
        if self.reward.open is not None:
            try:
                async with asyncio.timeout(OPEN_TIMEOUT_S) as deadline:
                    with waiting(f"reward {self.label}", "starts", limit_s=OPEN_TIMEOUT_S):
                        await self.reward.open()
            except TimeoutError as error:
                if not deadline.expired():
                    raise
                raise RewardError(f"the reward {self.label!r} was not ready after {OPEN_TIMEOUT_S:g} s") from error

    async def close(self) -> None:
        """End it."""
        self._threads.close()
        if self.reward.close is not None:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                with waiting(f"reward {self.label}", "ends", limit_s=CLOSE_TIMEOUT_S):
                    await self.reward.close()

    async def ask(self, completion: Completion, prompt: Prompt) -> Opinion | ScoringFailed | Raised:
        """Judge one completion."""
        return await self._ask(completion, prompt, opinion_of)

    async def ask_group(
        self, completions: Sequence[Completion], prompt: Prompt
    ) -> list[Opinion] | ScoringFailed | Raised:
        """Judge all completions of a prompt together, by a reward that does (``per_group``)."""
        return await self._ask(completions, prompt, lambda value: opinions_of(value, len(completions)))

    async def _ask(self, subject: Any, prompt: Prompt, read: Callable[[Any], T]) -> T | ScoringFailed | Raised:
        with waiting(f"reward {self.label}", self._state, alive_at=self._alive_at):
            return await self._asked(subject, prompt, read)

    def _state(self) -> str:
        return "is paused, all its calls fail" if self.breaker.is_open else f"{self._width} other calls are under way"

    def _alive_at(self) -> float:
        """A pause has a deadline of its own."""
        return asyncio.get_running_loop().time() if self.breaker.is_open else -math.inf

    async def _asked(self, subject: Any, prompt: Prompt, read: Callable[[Any], T]) -> T | ScoringFailed | Raised:
        while True:
            async with self._slots.turn(prompt.id) as standing, self.breaker.turn():  # a pause may have begun meanwhile
                start = time.perf_counter()
                outcome = await self._call(subject, prompt, read)
                self._count(outcome, time.perf_counter() - start)
                standing.num_exhausted += _exhausted(outcome)
                if isinstance(outcome, Raised):
                    return outcome
                if not isinstance(outcome, _Failed):
                    self.breaker.worked()
                    return outcome.value
                end = self._end_of_run(outcome) or self.breaker.failed(outcome.outcome.message, passes=outcome.passes)
            if end is not None:
                return Raised(end)
            if not self.breaker.is_open:
                return outcome.outcome

    async def _call(self, subject: Any, prompt: Prompt, read: Callable[[Any], T]) -> _Gave[T] | _Failed | Raised:
        """One call, tried again where that may help, under its deadline. Only a cancellation from outside is raised."""
        try:
            async with awake_timeout(self.config.timeout_s) as deadline:
                with waiting(f"reward {self.label}", limit_s=self.config.timeout_s):
                    return _Gave(read(await self._value_with_retries(subject, prompt)))
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return self._failed("reward_error", "cancelled itself", prompt, passes=False)
        except BadValueError as error:
            return self._failed("reward_bad_value", str(error), prompt, passes=False)
        except Exception as error:  # noqa: BLE001  (sorted right here into failures and bugs)
            if deadline.expired():
                late = f"took over timeout_s = {self.config.timeout_s:g}"
                return self._failed("reward_timeout", late, prompt, passes=True)
            if is_failure(error):
                return self._failed("reward_error", f"failed: {_said(error)}", prompt, passes=may_pass(error))
            said = subject.text[-200:] if isinstance(subject, Completion) else f"{len(subject)} completions"
            error.add_note(f"raised by the reward {self.label!r} on prompt {prompt.id}: {said!r}")
            return Raised(error)

    async def _value_with_retries(self, subject: Any, prompt: Prompt) -> Any:
        pause_s = FIRST_PAUSE_S
        for _ in range(self.config.max_retries):
            try:
                return await self._value(subject, prompt)
            except Exception as error:
                if not may_pass(error):
                    raise
            await asyncio.sleep(pause_s)
            pause_s *= 2
            self.num_retries += 1
        return await self._value(subject, prompt)

    async def _value(self, subject: Any, prompt: Prompt) -> Any:
        if self.reward.is_async:
            return await self.reward.call(subject, prompt)
        value = await self._threads.run(self.reward.call, subject, prompt)
        return await value if inspect.isawaitable(value) else value

    def said(self, opinion: Opinion) -> str:
        """What the reward said with its value, in a line for people that can be written anywhere."""
        text = cleared(": ".join(part for part in (opinion.reason, opinion.detail) if part), self._secrets)
        return text[:MAX_MESSAGE].encode(errors="replace").decode()  # cut last, or the beginning of a secret would pass

    def _failed(self, reason: str, what: str, prompt: Prompt, *, passes: bool) -> _Failed:
        message = cleared(f"prompt {prompt.id}: the reward {self.label!r} {what}", self._secrets)
        return _Failed(ScoringFailed(reason=reason, message=message), passes)

    def _count(self, outcome: _Gave[Any] | _Failed | Raised, latency_s: float) -> None:
        self._calls += not isinstance(outcome, Raised)
        self._latency_sum_s += latency_s
        self._latency_max_s = max(self._latency_max_s, latency_s)
        if isinstance(outcome, _Failed):
            self._failures[outcome.outcome.reason] += 1
        elif isinstance(outcome, _Gave):
            for opinion in outcome.value if isinstance(outcome.value, list) else [outcome.value]:
                if opinion.reason:
                    self._reasons[opinion.reason] += 1
                if opinion.value is None:
                    self._abstained += 1
                else:
                    self._values += 1
                    self._zeros += opinion.value == 0
                    self._sum += opinion.value

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

    def lap(self) -> dict[str, float]:
        """The mean latency of the calls that ended since the last lap, and their failures by kind."""
        calls, latency_s, failures = self._calls, self._latency_sum_s, Counter(self._failures)
        before_calls, before_s, before_failures = self._lap
        self._lap = calls, latency_s, failures
        found = {f"failed_{reason}": float(count) for reason, count in (failures - before_failures).items()}
        if calls > before_calls:
            found["latency_s"] = (latency_s - before_s) / (calls - before_calls)
        return found

    def statistics(self) -> RewardStatistics:
        """See ``RewardStatistics``."""
        calls = self._calls
        return RewardStatistics(
            calls=calls,
            mean=self._sum / self._values if self._values else 0.0,
            zero_share=self._zeros / self._values if self._values else 0.0,
            abstained=self._abstained,
            failures=dict(self._failures),
            retries=self.num_retries,
            pauses=self.breaker.num_opened,
            latency_mean_s=self._latency_sum_s / calls if calls else 0.0,
            latency_max_s=self._latency_max_s,
            stuck_threads=self._threads.num_stuck,
            reasons=dict(self._reasons),
            details=dict(self.reward.statistics()) if self.reward.statistics is not None else {},
        )


def _exhausted(outcome: Any) -> bool:
    """Whether a call gave the verdict that its answer used up a limit, or was late."""
    if isinstance(outcome, _Failed):
        return outcome.outcome.reason == "reward_timeout"
    opinion = outcome.value if isinstance(outcome, _Gave) else None
    return isinstance(opinion, Opinion) and opinion.reason.startswith("exhausted")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
