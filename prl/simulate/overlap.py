"""When engines and ranks were at work together, step by step, and what each did meanwhile. Pure.

Invariants:

- Work is in seconds alone: a second in which others are at work on the same accelerators counts as the equal part of
  them that is left (``machine.speed_of``), so it is what the same work takes where nobody else is.
- What passes between two steps (packing, sending weights) is work of the ranks' processes, too: it takes as long as
  the engines let it, and slows them down. It lies anywhere in the time in which the ranks do not train; in conventional
  mode the stages take turns, and it lies beside engines only as far as nothing else is left of that time.
- Where the run left a timeline that is what is read. Without one, each stage is taken to be at work at any moment of a
  step as likely as at any other, and all engines at the same moments; in conventional mode they take turns.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal, NamedTuple

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
    """From when to when a step was, which share of it the stages were busy, and how long it was between two steps."""

    start: float
    end: float
    engine_busy: float
    trainer_busy: float
    between_s: float = 0.0


class Work(NamedTuple):
    """Seconds alone of the engines (a mean over them) and the ranks, while the other side was at rest, or at work."""

    decode_apart_s: float = 0.0
    decode_both_s: float = 0.0
    train_apart_s: float = 0.0
    train_both_s: float = 0.0
    between_apart_s: float = 0.0
    between_both_s: float = 0.0

    def plus(self, other: Work) -> Work:
        """Both, one after the other."""
        return Work(*(mine + more for mine, more in zip(self, other, strict=True)))


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
    changes = [*sorted(changes), (step.end, 0, 0)]
    free_s, at, num_engines, trains = {True: 0.0, False: 0.0}, step.start, 0, 0
    for when, engines, trainers in changes:
        free_s[num_engines > 0] += 0.0 if trains else when - at
        at, num_engines, trains = when, num_engines + engines, trains + trainers
    between = _shares_between(config, step.between_s, decoding_s=free_s[True], idle_s=free_s[False])
    work, at, num_engines, trains = Work(), step.start, 0, 0
    for when, engines, trainers in changes:
        if trains:
            work = work.plus(_work(config, when - at, num_engines, "train"))
        else:
            share = between[num_engines > 0]
            work = work.plus(_work(config, (when - at) * share, num_engines, "between"))
            work = work.plus(_work(config, (when - at) * (1 - share), num_engines))
        at, num_engines, trains = when, num_engines + engines, trains + trainers
    return work


def _shares_between(config: Config, between_s: float, *, decoding_s: float, idle_s: float) -> dict[bool, float]:
    """What passes between two steps, as a share of the time without training: where engines decode, and where not."""
    if config.pipeline.mode != "conventional":
        share = min(1.0, between_s / max(decoding_s + idle_s, 1e-9))
        return {True: share, False: share}
    beside_s = max(0.0, between_s - idle_s)
    return {
        True: min(1.0, beside_s / max(decoding_s, 1e-9)),
        False: min(1.0, between_s / max(idle_s, 1e-9)),
    }


def _work(config: Config, seconds: float, num_engines: int, ranks: Literal["train", "between"] | None = None) -> Work:
    """In seconds in which nothing changes: of so many engines, and of ranks that train, or are between two steps."""
    decoding = num_engines * config.engine.tensor_parallel_size
    training = config.trainer.num_ranks if ranks else 0
    speed = speed_of(config.simulate.num_accelerators or 1, decoding=decoding, training=training, sharing=1.0)
    how = "both" if decoding and training else "apart"
    done = {f"decode_{how}_s": seconds * speed * num_engines / config.engine.num_engines}
    return Work(**done, **({f"{ranks}_{how}_s": seconds * speed} if ranks else {}))


def _likely(config: Config, step: StepTimes) -> Work:
    """By the shares of the step alone."""
    seconds, decoding, training = step.end - step.start, step.engine_busy, step.trainer_busy
    if config.simulate.num_accelerators is None:
        return Work(decoding * seconds, 0.0, training * seconds, 0.0, step.between_s, 0.0)
    takes_turns = config.pipeline.mode == "conventional"
    both = min(max(0.0 if takes_turns else decoding * training, decoding + training - 1), decoding, training)
    engines, between = config.engine.num_engines, min(step.between_s / seconds, 1 - training)
    # Engines go on while the next step is made ready, if they are at work at all and need not wait for it.
    beside = max(0.0, decoding + training - both + between - 1) if takes_turns else min(between, decoding - both)
    parts = (
        _work(config, both * seconds, engines, "train"),
        _work(config, (training - both) * seconds, 0, "train"),
        _work(config, beside * seconds, engines, "between"),
        _work(config, (between - beside) * seconds, 0, "between"),
        _work(config, (decoding - both - beside) * seconds, engines),
    )
    return functools.reduce(Work.plus, parts)
