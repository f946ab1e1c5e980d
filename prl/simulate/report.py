"""What a simulated run comes to, over its steps after the warm-up. Pure.

Invariants:

- Shares of the trainer's time sum to 1, and so do those of the engines': whatever is not work has a cause.
- Tokens are real ones: simulated tokens times ``grain``. Times are in the unit of ``[simulate]``, seconds by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from prl.config import Config
from prl.parts import make_pacing
from prl.simulate.costs import Costs
from prl.simulate.run import Course, Taken

BYTES_PER_TOKEN = 76
"""Of a finished completion in the controller: three lists' places, a token id and a log-probability as objects."""


class TrainerTime(msgspec.Struct, frozen=True, kw_only=True):
    """Where the trainer's time went, as shares of 1."""

    training: float
    waits_for_batch: float
    """Nothing to train on."""
    updates: float
    """Sends weights, or is between two steps (``simulate.train.between_s``): it trains nothing beside either."""
    restarts: float
    """Was started again, and did steps once more."""


class EngineTime(msgspec.Struct, frozen=True, kw_only=True):
    """Where the engines' time went, as shares of 1, means over the engines."""

    decoding: float
    updates: float
    """Stood still for weights."""
    no_sequences: float
    """Had nothing to sample: the slots were held by what waits for the trainer, or the engine was started again."""


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """Of trained tokens, in optimiser steps."""

    mean: float
    p50: int
    p90: int
    p99: int
    max: int
    """Of the oldest token of any sample."""
    histogram: dict[int, float]
    """Share of the trained tokens by lag."""


class Queues(msgspec.Struct, frozen=True, kw_only=True):
    """What is held where, the most at any step's end unless said otherwise."""

    groups_finished: int
    groups_taken: int
    sequences_in_flight: float
    """A mean over time, of all engines."""
    batch_bytes: int
    """The controller's, of one batch."""
    finished_bytes: int
    """Of the finished groups, at the batches' mean size."""
    kv_tokens: int
    """Most that one engine's KV cache held: prompts, and what was sampled behind them."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated run."""

    steps: int
    """After the warm-up."""
    seconds: float
    step_s: float
    samples_per_s: float
    trained_tokens_per_s: float
    generated_tokens_per_s: float
    sample_goodput: float
    """Samples trained / samples whose sampling came to an end, trained or dropped, from the first step on. One that is
    tried again, since its stream failed half-way, counts half a sample more."""
    ess: float
    """As ``simulate.drift`` has it."""
    lag: Lag
    trainer: TrainerTime
    engines: EngineTime
    queues: Queues
    dropped: dict[str, int]
    engine_restarts: int
    trainer_restarts: int


def report_of(config: Config, costs: Costs, course: Course) -> Report:
    """Sum up a course."""
    skipped = warmup_of(config)
    steps, before = course.steps[skipped:], course.steps[:skipped]
    begun_s = before[-1].at_s if before else 0.0
    seconds = steps[-1].at_s - begun_s
    reports = [step.report for step in steps]
    trained = sum(report.tokens_trained for report in reports)
    generated = sum(report.tokens_generated for report in reports)
    dropped: Counter[str] = Counter()
    for step in course.steps:
        dropped.update(step.report.dropped)
    return Report(
        steps=len(steps),
        seconds=seconds,
        step_s=seconds / len(steps),
        samples_per_s=sum(report.samples for report in reports) / seconds,
        trained_tokens_per_s=trained * costs.grain / seconds,
        generated_tokens_per_s=generated * costs.grain / seconds,
        sample_goodput=_sample_goodput(config, course),
        ess=sum(report.ess for report in reports) / len(reports),
        lag=_lag(steps),
        trainer=_trainer_time(steps, seconds, course, skipped),
        engines=_engine_time(steps, seconds),
        queues=_queues(config, costs, course, steps, seconds),
        dropped=dict(dropped),
        engine_restarts=sum(step.report.engine_restarts for step in course.steps),
        trainer_restarts=course.trainer_restarts,
    )


def warmup_of(config: Config) -> int:
    """Steps that the report leaves out: whole rounds, and at least one step is left."""
    size, num_steps = make_pacing(config).steps_per_round, config.run.num_steps
    wanted = num_steps // 4 if config.simulate.warmup_steps is None else config.simulate.warmup_steps
    return min(wanted, num_steps - 1) // size * size


def _sample_goodput(config: Config, course: Course) -> float:
    """What was sampled and neither trained nor under way any more was lost."""
    lost_members = sum(sum(step.report.dropped.values()) for step in course.steps)
    trained_members = sum(step.report.samples for step in course.steps)
    retried = config.simulate.faults.failed_streams / 2  # of one stream that fails half-way, half a stream is lost
    return trained_members / (trained_members + lost_members + retried * trained_members)


def _lag(steps: Sequence[Taken]) -> Lag:
    lags: Counter[int] = Counter()
    for step in steps:
        lags.update(step.lags)
    total = lags.total()
    return Lag(
        mean=sum(lag * count for lag, count in lags.items()) / total,
        p50=_percentile(lags, 0.5),
        p90=_percentile(lags, 0.9),
        p99=_percentile(lags, 0.99),
        max=max(lags),
        histogram={lag: round(lags[lag] / total, 6) for lag in sorted(lags)},
    )


def _percentile(counts: Counter[int], share: float) -> int:
    reached, wanted = 0, share * counts.total()
    for value in sorted(counts):
        reached += counts[value]
        if reached >= wanted:
            return value
    return max(counts)


def _trainer_time(steps: Sequence[Taken], seconds: float, course: Course, skipped: int) -> TrainerTime:
    busy = min(1.0, sum(step.report.trainer_busy * step.report.time_s for step in steps) / seconds)
    waits = sum(step.report.wait_batch_s for step in steps) / seconds
    restarts = course.trainer_lost_s / course.steps[-1].at_s if course.trainer_restarts else 0.0
    restarts = min(restarts, busy) if skipped < len(course.steps) else 0.0
    return TrainerTime(
        training=busy - restarts,
        waits_for_batch=waits,
        updates=max(0.0, 1 - busy - waits),
        restarts=restarts,
    )


def _engine_time(steps: Sequence[Taken], seconds: float) -> EngineTime:
    decoding = min(1.0, sum(step.report.engine_busy * step.report.time_s for step in steps) / seconds)
    updates = min(1.0 - decoding, sum(step.report.pause_s for step in steps) / seconds)
    return EngineTime(decoding=decoding, updates=updates, no_sequences=1 - decoding - updates)


def _queues(config: Config, costs: Costs, course: Course, steps: Sequence[Taken], seconds: float) -> Queues:
    per_batch = max(step.held_tokens for step in steps) * costs.grain
    finished = max(step.slots.finished for step in steps)
    return Queues(
        groups_finished=finished,
        groups_taken=max(step.slots.taken for step in steps) or config.pipeline.groups_per_step,
        sequences_in_flight=sum(step.report.in_flight * step.report.time_s for step in steps) / seconds,
        batch_bytes=per_batch * BYTES_PER_TOKEN,
        finished_bytes=round(per_batch * finished / config.pipeline.groups_per_step) * BYTES_PER_TOKEN,
        kv_tokens=round(course.most_held * costs.grain) + costs.prompt_tokens * config.engine.max_num_seqs,
    )
