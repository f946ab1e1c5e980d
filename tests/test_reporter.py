"""What a step's report says of the time since the report before."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from prl.lag import Lag
from prl.reporter import Reporter
from prl.trainer.base import TrainReport
from prl.types import Completion, Group, Prompt, Score

LAG = Lag(max=0, mean=0.0, num_versions_max=1)
GROUPS = [
    Group(
        prompt=Prompt(id=0, token_ids=[1], text="", messages=[], fields={}),
        completions=[Completion(token_ids=[0], logprobs=[-1.0], versions=[0], text="", finish="stop")],
        scores=[Score(reward=1.0)],
    )
]


def trained(step: int) -> TrainReport:
    """What a trainer reports."""
    return TrainReport(
        step=step,
        tokens_trained=1,
        loss=0.0,
        grad_norm=1.0,
        lr=1e-3,
        entropy=1.0,
        ess=1.0,
        kl_behaviour=0.0,
        clip_frac=0.0,
        skipped=False,
        train_s=1.0,
    )


class Run:
    """Parts that count, and the reporter over them."""

    def __init__(self) -> None:
        self.now, self.tokens, self.num_laps = 0.0, 0, 0
        self.num_retries = 0
        seats = SimpleNamespace(num_restarts=0)
        self.engines: Any = SimpleNamespace(
            seats=seats, statistics=lambda: SimpleNamespace(tokens_generated=self.tokens, busy_s=self.now, stream_s=0.0)
        )
        self.trainer: Any = SimpleNamespace(restarts=0, statistics=lambda: {"restarts": self.trainer.restarts})
        self.rollout: Any = SimpleNamespace(
            sampler=SimpleNamespace(num_moved=0, num_handed_over=0), members_dropped=Counter()
        )
        self.reporter = Reporter(
            lambda: self.now, engines=self.engines, trainer=self.trainer, rollout=self.rollout, judges=self
        )

    def lap(self) -> dict[str, dict[str, float]]:
        """One reward, which counts how often it was asked for."""
        self.num_laps += 1
        return {"short": {"latency_s": float(self.num_laps)}}

    def goes_on(self) -> None:
        """Something of everything happens."""
        self.now, self.tokens = self.now + 2.0, self.tokens + 10
        self.num_retries += 1
        self.engines.seats.num_restarts += 2
        self.trainer.restarts += 3
        self.rollout.sampler.num_moved += 4
        self.rollout.sampler.num_handed_over += 5
        self.rollout.members_dropped["timeout"] += 6


def counted(report: Any) -> tuple[object, ...]:
    """The numbers of a report that are counted since the one before."""
    return (
        report.time_s,
        report.tokens_generated,
        report.reward_retries,
        report.engine_restarts,
        report.trainer_restarts,
        report.streams_moved,
        report.streams_handed_over,
        report.dropped,
    )


def test_everything_is_in_exactly_one_report() -> None:
    """Parts count from their start; a report has what came since the one before, the last is for the summary."""
    run = Run()
    run.goes_on()
    first = run.reporter.of_step(GROUPS, LAG, trained(0), None)
    assert counted(first) == (2.0, 10, 1, 2, 3, 4, 5, {"timeout": 6})
    run.goes_on()
    run.goes_on()
    second = run.reporter.of_step(GROUPS, LAG, trained(1), None)
    assert counted(second) == (4.0, 20, 2, 4, 6, 8, 10, {"timeout": 12})
    assert counted(run.reporter.of_step(GROUPS, LAG, trained(2), None))[1:] == (0, 0, 0, 0, 0, 0, {})
    run.goes_on()
    assert run.reporter.mended().trainer_restarts == 3


def test_a_step_that_is_done_again_leaves_the_drops_and_calls_to_the_next() -> None:
    """Nothing was rolled out for it."""
    run = Run()
    run.goes_on()
    again = run.reporter.of_step_again(GROUPS, LAG, trained(0))
    assert (again.dropped, run.num_laps, again.engine_restarts) == ({}, 0, 2)
    following = run.reporter.of_step(GROUPS, LAG, trained(1), None)
    assert (following.dropped, following.engine_restarts, following.rewards["short_latency_s"]) == (
        {"timeout": 6},
        0,
        1.0,
    )
