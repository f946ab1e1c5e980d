"""What a run folder says of its machine: how long decode steps, training and updates take there.

Invariants:

- Nothing is assumed of the machine but the form of its costs: ``base + h * per_sequence`` seconds for a decode step of
  h sequences, ``fixed + tokens * token_s / ranks`` for an optimiser step. Both are fitted to ``metrics.jsonl`` without
  its first quarter; what varies too little there to be told apart is divided by a stated rule.
- The costs are those of each stage alone. Where engines and ranks share the machine, what they were slowed down by each
  other is taken out first (``overlap.py``), and simulating the run with what is left must give the step time that the
  run had: one factor on all costs makes it so.
- What passes between two steps is work of the ranks on the shared machine as well as training is, not rest.
- What sharing costs beyond the equal parts is fitted to the steps, too: those in which the stages were at work together
  for longer took longer. Where all steps are alike in that it cannot be seen, and is taken for nothing.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from prl.chronicle import TIMELINE
from prl.config import Config
from prl.errors import ConfigError
from prl.parts import make_pacing
from prl.settings import load_config
from prl.simulate.costs import Measured, costs_of
from prl.simulate.overlap import Span, StepTimes, Work, works_of
from prl.simulate.report import report_of
from prl.simulate.run import simulate

T = TypeVar("T", bound=msgspec.Struct)
Point = tuple[float, float]
TOO_ALIKE = 0.05
"""Where what a cost depends on varies by less (standard deviation / mean), its two parts cannot be told apart."""
SHARINGS = [percent / 100 for percent in range(100, 49, -2)]
DOUBT = 0.02
"""How much a worse fit of the steps (a sum of squares) is worth a sharing of 1: theirs differ by some 5 % anyway."""
NUM_SCALINGS = 3
SIMULATED_STEPS = 60


class _Line(msgspec.Struct, frozen=True):
    """What is read of a line of ``metrics.jsonl``."""

    step: int
    time_s: float
    samples: int
    tokens_generated: int
    tokens_trained: int
    trainer_busy: float
    engine_busy: float
    wait_batch_s: float
    pause_s: float
    publish_s: float = 0.0
    in_flight: float = 0.0
    at: float = 0.0

    @property
    def between_s(self) -> float:
        """The ranks neither train nor wait for a batch, and the engines need not stand still."""
        return max(0.0, self.time_s * (1 - self.trainer_busy) - self.wait_batch_s - self.pause_s)

    @property
    def sent_s(self) -> float:
        """Of that, sending weights. A transfer into place is a part of the pause and never longer than it."""
        return min(self.between_s, self.publish_s) if self.publish_s > self.pause_s else 0.0


class _Sample(msgspec.Struct, frozen=True):
    """What is read of a line of ``samples.jsonl``."""

    step: int
    prompt_id: int
    prompt_token_ids: list[int]
    token_ids: list[int]


def measured_for(config: Config) -> Measured | None:
    """What ``simulate.run`` says, if it names a run folder. Raises ConfigError as ``measured_in`` does."""
    simulate_ = config.simulate
    return measured_in(Path(simulate_.run), simulate_.num_accelerators) if simulate_.run else None


def measured_in(run: Path, num_accelerators: int | None) -> Measured:
    """Read and fit.

    Args:
        run: a run folder of at least eight steps.
        num_accelerators: that engines and ranks shared there; None where each had its own.

    Raises:
        ConfigError: the folder lacks something, or too few steps.
    """
    config = load_config(run / "config.toml")
    lines, samples = _read(run / "metrics.jsonl", _Line), _read(run / "samples.jsonl", _Sample)
    lines = _in_whole_rounds(lines[len(lines) // 4 :], make_pacing(config).steps_per_round)
    if len(lines) < 6:  # noqa: PLR2004 -- fewer say nothing of how they differ
        raise ConfigError(
            f"simulate.run = {str(run)!r} has {len(lines)} usable steps after its first quarter: 6 are the least, of a"
            " run whose metrics.jsonl has in_flight"
        )
    groups: dict[int, list[float]] = {}
    for sample in samples:
        groups.setdefault(sample.prompt_id, []).append(float(len(sample.token_ids)))
    prompt_tokens = round(statistics.fmean(len(sample.prompt_token_ids) for sample in samples))
    shared = msgspec.structs.replace(
        config, simulate=msgspec.structs.replace(config.simulate, run="", num_accelerators=num_accelerators)
    )
    spans = _read(run / TIMELINE, Span) if lines[0].at and (run / TIMELINE).exists() else []
    steps = [
        StepTimes(line.at - line.time_s, line.at, line.engine_busy, line.trainer_busy, line.between_s) for line in lines
    ]
    works = works_of(shared, steps, spans)
    measured = _fit(shared, lines, works, prompt_tokens, list(groups.values()))
    return _scaled(shared, measured, statistics.fmean(line.time_s for line in lines))


def _read(path: Path, kind: type[T]) -> list[T]:
    try:
        return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines()]
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"simulate.run: {path} is not what a run writes: {error}") from error


def _in_whole_rounds(lines: Sequence[_Line], size: int) -> list[_Line]:
    """Those of rounds of ``size`` steps (1 without rounds) that are there whole, and in which something was sampled."""
    rounds: dict[int, list[_Line]] = {}
    for line in lines:
        rounds.setdefault((line.step - 1) // size, []).append(line)
    whole = [each for each in rounds.values() if len(each) == size and any(line.in_flight > 0 for line in each)]
    return list(itertools.chain.from_iterable(whole))


def _fit(
    config: Config, lines: Sequence[_Line], works: Sequence[Work], prompt_tokens: int, groups: list[list[float]]
) -> Measured:
    """The costs alone, and what is left of the speed where both stages are at work: whatever fits the steps best."""

    def residual(sharing: float) -> float:
        decode, training = _points(config, lines, works, prompt_tokens, sharing)
        off = _off(decode, shared_equally=True) + _off(training, shared_equally=False)
        return off + DOUBT * (1 - sharing) ** 2

    size = make_pacing(config).steps_per_round  # an update ends each round
    is_shared = config.simulate.num_accelerators is not None
    sharing = min(SHARINGS, key=residual) if is_shared else 1.0
    decode, training = _points(config, lines, works, prompt_tokens, sharing)
    base_s, per_sequence_s = _line_through(decode, shared_equally=True)
    token_s, fixed_s = _line_through(training, shared_equally=False)
    between_s, sent_s = _between(config, lines, works, sharing)
    return Measured(
        groups=groups,
        prompt_tokens=prompt_tokens,
        base_s=max(base_s, 1e-9),
        per_sequence_s=per_sequence_s,
        train_token_s=max(token_s, 1e-12),
        train_fixed_s=fixed_s,
        between_s=statistics.fmean(between_s),
        sharing=sharing,
        update_s=statistics.fmean(line.pause_s for line in lines[size - 1 :: size]),
        transfer_s=statistics.fmean(sent_s[size - 1 :: size]),
    )


def _between(
    config: Config, lines: Sequence[_Line], works: Sequence[Work], sharing: float
) -> tuple[list[float], list[float]]:
    """What passes between two steps, in seconds alone: of every step, and of its update besides."""
    alone = [work.between_apart_s + sharing * work.between_both_s for work in works]
    sends = config.weights.staged
    sent = [
        each * line.sent_s / line.between_s if sends and line.between_s else 0.0
        for each, line in zip(alone, lines, strict=True)
    ]
    return [each - send for each, send in zip(alone, sent, strict=True)], sent


def _points(
    config: Config, lines: Sequence[_Line], works: Sequence[Work], prompt_tokens: int, sharing: float
) -> tuple[list[Point], list[Point]]:
    """Of every step: seconds alone of a decoded token by the share of a step that it is, of training by its tokens."""
    engines, ranks = config.engine.num_engines, config.trainer.num_ranks
    decode, training = list[Point](), list[Point]()
    for line, work in zip(lines, works, strict=True):
        decode_s = line.engine_busy * line.time_s
        if line.tokens_generated and decode_s > 0:
            streams = min(config.engine.max_num_seqs, line.in_flight * line.time_s / decode_s / engines)
            alone_s = work.decode_apart_s + sharing * work.decode_both_s
            decode.append((1 / streams, alone_s * engines / line.tokens_generated))
        tokens = (line.tokens_trained + line.samples * prompt_tokens) / ranks
        training.append((tokens, work.train_apart_s + sharing * work.train_both_s))
    return decode, training


def _off(points: Sequence[Point], *, shared_equally: bool) -> float:
    """How far the points are from their line: the sum of squares, against their mean."""
    slope, offset = _line_through(points, shared_equally=shared_equally)
    mean = statistics.fmean(y for _, y in points)
    return sum(((y - slope * x - offset) / mean) ** 2 for x, y in points)


def _line_through(points: Sequence[Point], *, shared_equally: bool) -> tuple[float, float]:
    """Slope and offset, neither below 0, of the line nearest to the points (least squares).

    Where the points lie too close together for that, slope and offset explain half each, or the slope all of it.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_mean, y_mean = statistics.fmean(xs), statistics.fmean(ys)
    spread = statistics.pstdev(xs)
    if spread <= TOO_ALIKE * x_mean:
        part = 0.5 if shared_equally else 1.0
        return part * y_mean / x_mean, (1 - part) * y_mean
    slope = sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x in xs)
    slope = min(max(slope, 0.0), y_mean / x_mean)
    return slope, y_mean - slope * x_mean


def _scaled(config: Config, measured: Measured, step_s: float) -> Measured:
    """With one factor on all costs, so that the run's own setting takes as long as it took."""
    size = make_pacing(config).steps_per_round
    num_steps = max(SIMULATED_STEPS // size, 2) * size
    config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, num_steps=num_steps))
    for _ in range(NUM_SCALINGS):
        costs = costs_of(config, measured)
        factor = step_s / report_of(config, costs, simulate(config, costs)).step_s
        measured = msgspec.structs.replace(
            measured,
            base_s=measured.base_s * factor,
            per_sequence_s=measured.per_sequence_s * factor,
            train_token_s=measured.train_token_s * factor,
            train_fixed_s=measured.train_fixed_s * factor,
            between_s=measured.between_s * factor,
            update_s=measured.update_s * factor,
            transfer_s=measured.transfer_s * factor,
        )
    return measured
