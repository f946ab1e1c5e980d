"""What to run on so many accelerators: split, sequences in flight, lag bound and buffer, searched and simulated.

Invariants:

- Candidates are ranked by formulas first (``estimate``), the best of them by simulating the real controller; only
  what was simulated is told.
- What is best is the speed of learning, dR/dt = effectiveness x throughput (arXiv 2509.19128, section 2), with the ESS
  that ``simulate.drift`` gives for effectiveness: samples per second times ESS.
- What the configuration fixes stays: the batch, the longest completion, and, where accelerators are shared, who shares
  them. ``engine.max_num_seqs`` is what an engine's memory holds, and the most that is tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from prl.check import cross_check
from prl.config import Config
from prl.errors import ConfigError
from prl.simulate.costs import Measured, costs_of
from prl.simulate.report import Report, report_of
from prl.simulate.run import simulate

NUM_SPLITS = 12
LAG_BOUNDS = (None, 1, 2, 4, 8, 16)
BATCHES_AHEAD = (2, 4, 8)
NUM_SAMPLED = 256
"""Lengths drawn for the formulas."""
NEARLY_ALL = 0.9
"""A share of the time that leaves nothing to gain elsewhere."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One set-up, as the keys that ``prl run`` takes it with; ``engine.count`` stands for servers, too."""

    num_engines: int
    num_ranks: int
    max_num_seqs: int
    max_lag: int | None
    batches_ahead: int

    def applied_to(self, config: Config) -> Config:
        """The configuration with these values."""
        replace, engine = msgspec.structs.replace, config.engine
        kind = "auto" if engine.kind == "server" else engine.kind
        return replace(
            config,
            engine=replace(engine, kind=kind, count=self.num_engines, servers=[], max_num_seqs=self.max_num_seqs),
            trainer=replace(config.trainer, num_ranks=self.num_ranks),
            pipeline=replace(config.pipeline, mode="pipeline", max_lag=self.max_lag, batches_ahead=self.batches_ahead),
        )

    def overrides(self) -> dict[str, Any]:
        """What to put behind ``--set``."""
        bound: dict[str, Any] = {"pipeline.max_lag": "unset" if self.max_lag is None else self.max_lag}
        if self.max_lag is None:
            bound["pipeline.batches_ahead"] = self.batches_ahead
        return {
            "engine.count": self.num_engines,
            "trainer.num_ranks": self.num_ranks,
            "engine.max_num_seqs": self.max_num_seqs,
            **bound,
        }


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that was simulated."""

    candidate: Candidate
    report: Report
    worth: float
    """Samples per second times ESS."""
    limit: str
    """What keeps it from being faster."""


def plan(
    config: Config, num_accelerators: int, measured: Measured | None, *, num_simulated: int = 6, num_samples: int = 4000
) -> list[Planned]:
    """The best set-ups that were simulated, best first.

    Args:
        config: model, batch, lengths and costs.
        num_accelerators: to be divided between engines and ranks.
        measured: costs that ``[simulate]`` leaves open.
        num_simulated: how many of the candidates are simulated.
        num_samples: trained samples of one simulation, about.

    Raises:
        ConfigError: nothing fits on so many accelerators.
    """
    candidates = list(_candidates(config, num_accelerators))
    if not candidates:
        size = config.engine.tensor_parallel_size
        raise ConfigError(
            f"--accelerators {num_accelerators}: one engine takes engine.tensor_parallel_size = {size} and a rank one"
            f" more, so {size + 1} are the least"
        )
    shared = config.simulate.num_accelerators is not None
    base = msgspec.structs.replace(
        config,
        simulate=msgspec.structs.replace(config.simulate, num_accelerators=num_accelerators if shared else None),
    )
    ranked = sorted(candidates, key=lambda one: -_estimate(one.applied_to(base), measured))
    planned = [_simulated(one, base, measured, num_samples) for one in _varied(ranked, num_simulated)]
    return sorted(planned, key=lambda one: -one.worth)


def _candidates(config: Config, num_accelerators: int) -> Iterator[Candidate]:
    batch = config.pipeline.groups_per_step * config.pipeline.group_size
    for num_engines, num_ranks in _splits(config, num_accelerators):
        for sequences, max_lag in itertools.product(_sequences(config), LAG_BOUNDS):
            if num_ranks > batch or sequences * num_engines < config.pipeline.group_size:
                continue
            for ahead in BATCHES_AHEAD if max_lag is None else (config.pipeline.batches_ahead,):
                yield Candidate(
                    num_engines=num_engines,
                    num_ranks=num_ranks,
                    max_num_seqs=sequences,
                    max_lag=max_lag,
                    batches_ahead=ahead,
                )


def _splits(config: Config, num_accelerators: int) -> list[tuple[int, int]]:
    """Engines and ranks: those there are where they share, else every division, thinned out."""
    if config.simulate.num_accelerators is not None:
        return [(config.engine.num_engines, config.trainer.num_ranks)]
    size = config.engine.tensor_parallel_size
    most = (num_accelerators - 1) // size
    counts = sorted({max(1, round(most * part / NUM_SPLITS)) for part in range(1, NUM_SPLITS + 1)}) if most else []
    return [(count, num_accelerators - count * size) for count in counts]


def _sequences(config: Config) -> list[int]:
    """Halvings and three quarters of what an engine holds."""
    most = config.engine.max_num_seqs
    return sorted({max(1, most * part // 16) for part in (2, 4, 6, 8, 12, 16)})


def _estimate(config: Config, measured: Measured | None) -> float:
    """Samples per second times ESS by formulas (arXiv 2509.19128, appendix A), for ranking only.

    Generation with h sequences in each engine gives h / step_s(h) tokens a second and engine; training what its time
    per token says, what passes between two steps and the update; the slower one is the rate. A lag bound of k holds
    (k + 1) B sequences, those that wait for the longest of the oldest batch included, and gives a batch the time of its
    longest sequence, of its training and of the update to go round.
    """
    costs = costs_of(config, measured)
    batch = config.pipeline.groups_per_step * config.pipeline.group_size
    lengths = [costs.length_of(prompt + (1 << 30), prompt) for prompt in range(NUM_SAMPLED)]
    mean, longest = sum(lengths) / NUM_SAMPLED, sorted(lengths)[-1 - NUM_SAMPLED // max(batch, 2) // 2]
    train_s = costs.train_s(batch, round(batch * mean)) + costs.between_s + costs.transfer_s + costs.update_s
    capacity, max_lag = config.engine.num_engines * config.engine.max_num_seqs, config.pipeline.max_lag
    rate = 0.0
    for _ in range(4):
        under_way = capacity if max_lag is None else min(capacity, (max_lag + 1) * batch - rate * train_s)
        each = max(1, round(max(1.0, under_way) / config.engine.num_engines))
        rate = min(batch / train_s, each * config.engine.num_engines / costs.step_s(each) / mean)
        if max_lag is not None:
            rate = min(rate, (max_lag + 1) * batch / (longest * costs.step_s(each) + train_s))
    lag = under_way / batch if max_lag is None else min(float(max_lag), under_way / batch)
    return rate * math.exp(-config.simulate.drift * lag)


def _varied(ranked: Sequence[Candidate], count: int) -> list[Candidate]:
    """The first ones, at most two of one split and bound: the formulas tell their like apart no better than chance."""
    chosen: list[Candidate] = []
    seen: dict[tuple[int, int | None], int] = {}
    for one in ranked:
        kind = one.num_engines, one.max_lag
        if seen.get(kind, 0) < 2:  # noqa: PLR2004 -- two
            seen[kind] = seen.get(kind, 0) + 1
            chosen.append(one)
        if len(chosen) == count:
            break
    return chosen


def _simulated(candidate: Candidate, config: Config, measured: Measured | None, num_samples: int) -> Planned:
    config = candidate.applied_to(config)
    batch = config.pipeline.groups_per_step * config.pipeline.group_size
    num_steps = max(24, num_samples // batch)
    config = msgspec.structs.replace(
        config,
        run=msgspec.structs.replace(config.run, num_steps=num_steps),
        simulate=msgspec.structs.replace(config.simulate, run="", warmup_steps=num_steps // 3),
    )
    cross_check(config)
    costs = costs_of(config, measured)
    report = report_of(config, costs, simulate(config, costs))
    return Planned(
        candidate=candidate,
        report=report,
        worth=report.samples_per_s * report.ess,
        limit=limit_of(config, report),
    )


def limit_of(config: Config, report: Report) -> str:
    """What a set-up's speed hangs on, in a few words."""
    trainer, engines, queues = report.trainer, report.engines, report.queues
    if trainer.training >= NEARLY_ALL:
        return f"training: the ranks are busy {trainer.training:.0%} of the time"
    if trainer.updates >= 1 - NEARLY_ALL and trainer.updates >= trainer.waits_for_batch:
        return f"weight updates: they and what passes between two steps are {trainer.updates:.0%} of the trainer's time"
    capacity = config.engine.num_engines * config.engine.max_num_seqs
    filled = queues.sequences_in_flight / capacity
    if filled >= NEARLY_ALL * (engines.decoding or 1):
        return f"generation: the engines decode {engines.decoding:.0%} of the time, full"
    if config.pipeline.max_lag is not None:
        return f"the lag bound: the engines are {filled:.0%} full, the slots wait for the longest of the oldest batch"
    return f"the buffer: the engines are {filled:.0%} full, admission waits for the trainer (batches_ahead)"


def lines_of(planned: Sequence[Planned]) -> list[str]:
    """The plan for people, best first."""
    lines = [f"{'samples/s':>10}  {'ESS':>6}  {'lag mean / max':>15}  set-up, and what limits it"]
    for one in planned:
        report = one.report
        keys = " ".join(f"{key}={value}" for key, value in one.candidate.overrides().items())
        lag = f"{report.lag.mean:.1f} / {report.lag.max}"
        lines += [f"{report.samples_per_s:>10.4g}  {report.ess:>6.3f}  {lag:>15}  {keys}", f"{'':37}{one.limit}"]
    return lines
