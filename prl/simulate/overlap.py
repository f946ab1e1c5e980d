"""When engines and ranks were at work together, step by step, and what each did meanwhile. Pure.

Invariants:

- Work is in seconds alone: a second in which others are at work on the same accelerators counts as the equal part of
  them that is left (``machine.speed_of``), so it is what the same work takes where nobody else is.
- Where the run left a timeline that is what is read. Without one, each stage is taken to be at work at any moment of a
  step as likely as at any other, and all engines at the same moments; in conventional mode they take turns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from prl.config import Config
from prl.simulate.machine import speed_of

Change = tuple[float, int, int]
"""When engines and ranks began to be at work, or ended, and how many of each."""


class Span(msgspec.Struct, frozen=True):
    """What is read of a line of ``timeline.jsonl``."""

    lane: str
    state: str
    start: float
    end: float


class StepTimes(NamedTuple):
    """From when to when a step was, and which share of it the stages were busy."""

    start: float
    end: float
    engine_busy: float
    trainer_busy: float


class Work(NamedTuple):
    """Seconds alone of the engines (a mean over them) and the ranks, while the other side was at rest, or at work."""

    decode_apart_s: float
    decode_both_s: float
    train_apart_s: float
    train_both_s: float


def works_of(config: Config, steps: Sequence[StepTimes], spans: Sequence[Span]) -> list[Work]:
    """Of every step, in the order of their ends; ``simulate.num_accelerators`` absent: nobody slows anybody down."""
    decoding = [span for span in spans if span.lane.startswith("engine") and span.state == "generating"]
    training = [span for span in spans if span.lane == "trainer rank 0" and span.state == "training"]
    if config.simulate.num_accelerators is None or not decoding or not training:
        return [_likely(config, step) for step in steps]
    changes: list[list[Change]] = [[] for _ in steps]
    ends = [step.end for step in steps]
    for sort, (engines, trainers) in ((decoding, (1, 0)), (training, (0, 1))):
        for span in sort:
            for at in range(bisect_right(ends, span.start), len(steps)):
                start, end = max(span.start, steps[at].start), min(span.end, steps[at].end)
                if start >= end:
                    break
                changes[at] += [(start, engines, trainers), (end, -engines, -trainers)]
    return [_told(config, step, changed) for step, changed in zip(steps, changes, strict=True)]


def _told(config: Config, step: StepTimes, changes: Sequence[Change]) -> Work:
    """By the timeline: between two changes of who is at work nothing changes."""
    works, at, num_engines, trains = [0.0] * 4, step.start, 0, 0
    for when, engines, trainers in sorted(changes):
        apart, both = _work(config, when - at, num_engines, trains)
        works = [before + more for before, more in zip(works, (*apart, *both), strict=True)]
        at, num_engines, trains = when, num_engines + engines, trains + trainers
    return Work(works[0], works[2], works[1], works[3])


def _work(config: Config, seconds: float, num_engines: int, trains: int) -> tuple[tuple[float, float], ...]:
    """Of engines and ranks, apart and at work together, in seconds in which nothing changes."""
    decoding, training = num_engines * config.engine.tensor_parallel_size, min(1, trains) * config.trainer.num_ranks
    speed = speed_of(config.simulate.num_accelerators or 1, decoding=decoding, training=training, sharing=1.0)
    done = seconds * speed * num_engines / config.engine.num_engines, seconds * speed * min(1, trains)
    return ((0.0, 0.0), done) if decoding and training else (done, (0.0, 0.0))


def _likely(config: Config, step: StepTimes) -> Work:
    """By the shares of the step alone."""
    seconds, decoding, training = step.end - step.start, step.engine_busy, step.trainer_busy
    if config.simulate.num_accelerators is None:
        return Work(decoding * seconds, 0.0, training * seconds, 0.0)
    likely = 0.0 if config.pipeline.mode == "conventional" else decoding * training
    both = min(max(likely, decoding + training - 1), decoding, training)
    engines = config.engine.num_engines
    (_, train_apart), _ = _work(config, (training - both) * seconds, 0, 1)
    (decode_apart, _), _ = _work(config, (decoding - both) * seconds, engines, 0)
    _, (decode_both, train_both) = _work(config, both * seconds, engines, 1)
    return Work(decode_apart, decode_both, train_apart, train_both)
