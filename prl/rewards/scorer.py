"""One completion to one verdict: every reward asked, each under its own limits (``asking.py``), their results added.

- A verdict is a Score, an Abstained or a ScoringFailed. A reward that fails is never a 0.
- A bug in a reward (any exception that is no expected failure, see ``base.py``) leaves ``score`` as it was raised.
- Gates are asked first. Where one gives 0 or less the others are not asked and do not count: the score is the gates'.
- Rewards of a whole group are asked once all its completions have a score, and add to it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

import msgspec

from prl.config import RewardConfig
from prl.deadlines import Deadlines
from prl.errors import ConfigError
from prl.rewards.asking import Asked, Raised
from prl.rewards.base import make_reward
from prl.rewards.opinions import Opinion, RewardStatistics
from prl.types import Abstained, Completion, Prompt, Score, ScoringFailed, Verdict


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict, and what each reward that was asked thought."""

    verdict: Verdict
    opinions: dict[str, Opinion]


class Scorer:
    """The rewards of a run. Making it finds and checks them; entering it starts what they need."""

    def __init__(self, rewards: Sequence[RewardConfig], *, needed: bool = True) -> None:
        """Raises PluginError or MissingExtraError where a reward cannot be found, made or used here.

        Without ``needed`` there may be none, where an environment judges.
        """
        if needed and not rewards:
            raise ConfigError('there is no reward: add a [[rewards]] table, such as name = "answer"')
        self._judges: list[Asked] = []
        for label, config in zip(labels_of(rewards), rewards, strict=True):
            judge = Asked(label, config, make_reward(config.name, config.options))
            if config.gate and judge.reward.per_group:
                raise ConfigError(f"the reward {label!r} judges whole groups and cannot be a gate: leave gate away")
            self._judges.append(judge)
        self._by_label = {judge.label: judge for judge in self._judges}
        singles = [judge for judge in self._judges if not judge.reward.per_group]
        self._gates = [judge for judge in singles if judge.config.gate]
        self._others = [judge for judge in singles if not judge.config.gate]
        self._of_groups = [judge for judge in self._judges if judge.reward.per_group]
        self._exits = AsyncExitStack()

    @property
    def required_fields(self) -> list[str]:
        """Fields that every prompt must have for these rewards, sorted."""
        return sorted({field for judge in self._judges for field in judge.reward.required_fields})

    @property
    def reads_all_fields(self) -> bool:
        """Whether a reward looks at whatever fields a prompt has."""
        return any(judge.reward.reads_all_fields for judge in self._judges)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exits:
            for judge in self._judges:
                exits.push_async_callback(judge.close)
                await judge.open()
            self._exits = exits.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exits.aclose()

    @property
    def labels(self) -> list[str]:
        """The names of the rewards in ``Score.parts``."""
        return list(self._by_label)

    @property
    def of_groups(self) -> list[str]:
        """The rewards that judge whole groups."""
        return [judge.label for judge in self._of_groups]

    @property
    def notes(self) -> list[str]:
        """What the rewards found out about this machine."""
        return [f"{judge.label}: {note}" for judge in self._judges for note in judge.reward.notes]

    def check_row(self, fields: Mapping[str, Any]) -> str | None:
        """What makes a row useless to a reward, if anything does."""
        checks = (judge.reward.check_row for judge in self._judges)
        return next((problem for check in checks if check and (problem := check(fields))), None)

    async def score(self, completion: Completion, prompt: Prompt) -> Verdict:
        """Judge one completion. Raises RewardError where the configuration says a failure ends the run."""
        return (await self.explain(completion, prompt)).verdict

    async def explain(self, completion: Completion, prompt: Prompt) -> Explained:
        """As ``score``, with the reasons."""
        outcomes = await _ask_all(self._gates, completion, prompt)
        if all(isinstance(outcome, Opinion) and (outcome.value or 0) > 0 for outcome in outcomes.values()):
            outcomes |= await _ask_all(self._others, completion, prompt)
        opinions = {label: outcome for label, outcome in outcomes.items() if isinstance(outcome, Opinion)}
        for outcome in outcomes.values():
            if isinstance(outcome, ScoringFailed):
                return Explained(verdict=outcome, opinions=opinions)
        return Explained(verdict=self._weigh(opinions, Score(reward=0.0, parts={}), prompt), opinions=opinions)

    async def score_group(
        self, completions: Sequence[Completion], scores: Sequence[Score], prompt: Prompt
    ) -> list[Verdict]:
        """The verdicts on a prompt's completions, with the rewards of groups added to the scores that they have."""
        opinions: list[dict[str, Opinion]] = [{} for _ in completions]
        for judge in self._of_groups:
            outcome = await judge.ask_group(completions, prompt)
            if isinstance(outcome, Raised):
                raise outcome.error
            if isinstance(outcome, ScoringFailed):
                return [outcome] * len(completions)
            for of_one, opinion in zip(opinions, outcome, strict=True):
                of_one[judge.label] = opinion
        return [  # without what an environment gave: it is added to either kind
            self._weigh(of_one if self._passed(score) else {}, score, prompt)
            for of_one, score in zip(opinions, scores, strict=True)
        ]

    def _passed(self, score: Score) -> bool:
        return all(score.parts[gate.label] > 0 for gate in self._gates)

    def _weigh(self, opinions: Mapping[str, Opinion], score: Score, prompt: Prompt) -> Verdict:
        """``score`` and what the rewards add to it."""
        parts, messages = dict(score.parts), dict(score.messages)
        for label, opinion in opinions.items():
            if opinion.value is None:
                return Abstained(reason="reward_abstained")
            parts[label] = opinion.value
            if said := self._by_label[label].said(opinion):
                messages[label] = said
        ordered = {judge.label: parts[judge.label] for judge in self._judges if judge.label in parts}
        weights = {judge.label: judge.config.weight for judge in self._judges}
        total = math.fsum(weights[label] * value for label, value in ordered.items())
        if not math.isfinite(total):
            return ScoringFailed(
                reason="reward_bad_value", message=f"the weighted sum for prompt {prompt.id} is {total}: {ordered}"
            )
        return Score(reward=total, parts=ordered, messages=messages)

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

    def lap(self) -> dict[str, dict[str, float]]:
        """Per reward, since the last lap: ``latency_s`` of its calls (a mean) and ``failed_<kind>``."""
        return {judge.label: judge.lap() for judge in self._judges}

    def statistics(self) -> dict[str, RewardStatistics]:
        """Per reward, by the name that also stands in ``Score.parts``."""
        return {judge.label: judge.statistics() for judge in self._judges}


def labels_of(rewards: Sequence[RewardConfig]) -> list[str]:
    """The name of each in ``Score.parts``: its own, the second of one name with ``_2`` behind it.

    Raises ConfigError where two would be one.
    """
    seen: Counter[str] = Counter()
    labels: list[str] = []
    for config in rewards:
        seen[config.name] += 1
        label = config.name if seen[config.name] == 1 else f"{config.name}_{seen[config.name]}"
        if label in labels:
            raise ConfigError(
                f"rewards: two have the name {label!r} in the metrics, since the second {config.name!r} is called"
                f" {config.name}_2, the third {config.name}_3: name the reward {label!r} otherwise"
            )
        labels.append(label)
    return labels


async def _ask_all(
    judges: Sequence[Asked], completion: Completion, prompt: Prompt
) -> dict[str, Opinion | ScoringFailed]:
    """What each says, by name. Raises what ends the run."""
    if len(judges) == 1:
        outcomes = [await judges[0].ask(completion, prompt)]
    else:
        # The members return what went wrong as a value: on Python 3.11 and 3.12 a task group that closes on a failure
        # can lose a cancellation that arrives meanwhile.
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(judge.ask(completion, prompt)) for judge in judges]
        outcomes = [task.result() for task in tasks]
    named: dict[str, Opinion | ScoringFailed] = {}
    for judge, outcome in zip(judges, outcomes, strict=True):
        if isinstance(outcome, Raised):
            raise outcome.error
        named[judge.label] = outcome
    return named
