"""The numbers of a step: what ``metrics.jsonl`` holds, and how each is counted.

``lag_max`` speaks of the oldest token of any sample of the step, ``lag_mean`` of all trained tokens (``lag.py``). Rates
are per second of the step's wall time (``lap.py``); ``trainer_busy`` and ``engine_busy`` are shares of it (the engines'
is a mean over engines).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from prl.lag import Lag
from prl.lap import Lap
from prl.trainer.base import TrainReport
from prl.types import Group
from prl.update_ways import PushReport

MIN_FRESH_TOKENS = 64
"""Fewer tokens of lag 0 say too little about what engine and trainer differ by."""


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``metrics.jsonl``. Step N is the N-th completed update, counted from 1; version N is its result."""

    step: int
    version: int
    time_s: float
    """Wall time of the step."""
    at: float
    """When the step ended, in seconds of Unix time."""
    reward_mean: float
    reward_std: float
    samples: int
    """Sequences trained."""
    tokens_generated: int
    """By the engines during the step, dropped ones included."""
    tokens_trained: int
    lag_max: int
    lag_mean: float
    lag_histogram: list[int] = []
    """Trained tokens by their lag: the number at index i is of those i steps old; the last one (``MAX_LAG_BIN``) also
    of all that are older."""
    versions_max: int
    """Most weight versions that wrote one sample."""
    ess: float
    kl_behaviour: float
    ratio_histogram: list[int] = []
    """Trained tokens by log pi - log mu, in the bins of ``LOG_RATIO_EDGES`` (``trainer/base.py``)."""
    gap_mean: float | None = None
    """Mean of |log pi - log mu| over the trained tokens: how far trainer and engines are apart."""
    gap_numerics: float | None = None
    """The same under the same weights: over the tokens of lag 0 where the step has ``MIN_FRESH_TOKENS``, else over the
    tokens on which the last push that was verified was; None before there is either."""
    gap_staleness: float | None = None
    """What is left of ``gap_mean``, at least 0: the weights moved on since the tokens were sampled."""
    clip_frac: float
    entropy: float
    kl_reference: float | None = None
    """Estimate of the divergence to the reference of ``[kl]``; absent without one."""
    loss: float
    grad_norm: float
    lr: float
    length_mean: float
    """Sampled tokens per sequence."""
    length_max: int
    finish_length_share: float
    """Share of the sequences that ended at a length limit."""
    gen_tok_s: float
    train_tok_s: float
    trainer_busy: float
    engine_busy: float
    in_flight: float = 0.0
    """Streams that all engines had open together: a mean over the step."""
    wait_batch_s: float
    """The trainer waited this long for the batch."""
    pause_s: float
    """The engine that it took longest stopped and stood still this long for the update."""
    publish_s: float
    eval_block_s: float = 0.0
    """The push waited this long for the evaluation of the version before."""
    checkpoint_s: float = 0.0
    """Training stood still this long for a checkpoint after the step before; generation went on. Part of ``time_s``."""
    evals_incomplete: int = 0
    """Evaluations that ran out of time since the last step."""
    streams_moved: int = 0
    """Streams that went on with another engine since the last step, behind their tokens: theirs died or stalled."""
    streams_handed_over: int = 0
    """Streams that did because their engine was removed."""
    engine_restarts: int = 0
    """Engines that were started in place of lost ones since the last step."""
    trainer_restarts: int = 0
    """Times that the trainer was started again since the last step."""
    reward_retries: int = 0
    """Tries after the first of calls of rewards since the last step: their service was down, or their worker died."""
    loop_lag_ms: float
    """Longest delay of the event loop's heartbeat during the step."""
    dropped: dict[str, int]
    """Completions that came to nothing since the last step, by reason; ``dropped_<reason>`` in the file."""
    rewards: dict[str, float] = {}
    """Each reward by itself, as ``reward_<name>_<what>`` in the file: ``mean`` and ``zero_share`` of what it gave the
    samples of the step, ``latency_s`` of its calls since the last step (a mean), and ``failed_<kind>``, a count."""

    def line(self) -> dict[str, object]:
        """The flat object written to ``metrics.jsonl``."""
        flat = msgspec.structs.asdict(self)
        dropped: dict[str, int] = flat.pop("dropped")
        flat.update({f"reward_{name}": value for name, value in flat.pop("rewards").items()})
        if self.kl_reference is None:
            del flat["kl_reference"]
        rounded = {name: _rounded(value) for name, value in flat.items()} | {"at": round(self.at, 3)}
        return {**rounded, **{f"dropped_{reason}": count for reason, count in dropped.items()}}


def _rounded(value: object) -> object:
    """A number as people read it: six digits are more than a step's noise."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


class Mended(msgspec.Struct, frozen=True, kw_only=True):
    """What died and was made good; each field is one of ``StepReport``."""

    streams_moved: int = 0
    streams_handed_over: int = 0
    engine_restarts: int = 0
    trainer_restarts: int = 0
    reward_retries: int = 0

    def since(self, before: Mended) -> Mended:
        """What came after ``before``; all of them count from the start."""
        return Mended(**{name: getattr(self, name) - getattr(before, name) for name in self.__struct_fields__})


def step_report(
    groups: Sequence[Group],
    lag: Lag,
    trained: TrainReport,
    pushed: PushReport | None,
    *,
    lap: Lap,
    dropped: dict[str, int],
    mended: Mended,
    at: float,
    verified_gap: float | None = None,
    calls: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> StepReport:
    """Put one step's numbers together.

    ``pushed`` is None where the step's weights stay in the trainer for now; ``verified_gap`` is the mean
    distance at the last proof of a push; ``calls`` is the rewards' ``lap``.
    """
    rewards = [score.reward for group in groups for score in group.scores]
    lengths = [len(completion.token_ids) for group in groups for completion in group.completions]
    numerics = trained.gap_fresh if trained.tokens_fresh >= MIN_FRESH_TOKENS else verified_gap
    finishes = [completion.finish for group in groups for completion in group.completions]
    return StepReport(
        step=trained.step + 1,
        version=trained.step + 1,
        at=at,
        reward_mean=statistics.fmean(rewards),
        reward_std=statistics.pstdev(rewards),
        samples=len(rewards),
        tokens_trained=trained.tokens_trained,
        lag_max=lag.max,
        lag_mean=lag.mean,
        lag_histogram=lag.histogram,
        versions_max=lag.num_versions_max,
        ess=trained.ess,
        kl_behaviour=trained.kl_behaviour,
        ratio_histogram=trained.ratio_histogram,
        gap_mean=trained.gap_mean,
        gap_numerics=numerics,
        gap_staleness=_staleness(trained.gap_mean, numerics),
        clip_frac=trained.clip_frac,
        entropy=trained.entropy,
        kl_reference=trained.kl_reference,
        loss=trained.loss,
        grad_norm=trained.grad_norm,
        lr=trained.lr,
        length_mean=statistics.fmean(lengths),
        length_max=max(lengths),
        finish_length_share=finishes.count("length") / len(finishes),
        gen_tok_s=lap.tokens_generated / lap.time_s,
        train_tok_s=trained.tokens_trained / lap.time_s,
        trainer_busy=min(1.0, trained.train_s / lap.time_s),
        pause_s=pushed.pause_s if pushed else 0.0,
        publish_s=pushed.publish_s if pushed else 0.0,
        dropped=dropped,
        rewards=_by_reward(groups, calls),
        **msgspec.structs.asdict(lap),
        **msgspec.structs.asdict(mended),
    )


def _staleness(gap_mean: float | None, numerics: float | None) -> float | None:
    """What the same weights do not explain."""
    return None if gap_mean is None or numerics is None else max(0.0, gap_mean - numerics)


def _by_reward(groups: Sequence[Group], calls: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """What each reward gave the samples that it judged, and what its calls took."""
    values: dict[str, list[float]] = {}
    for group in groups:
        for score in group.scores:
            for label, value in score.parts.items():
                values.setdefault(label, []).append(value)
    found: dict[str, dict[str, float]] = {
        label: {"mean": statistics.fmean(of_one), "zero_share": of_one.count(0.0) / len(of_one)}
        for label, of_one in values.items()
    }
    for label, what in calls.items():
        found.setdefault(label, {}).update(what)
    return {f"{_metric_name(label)}_{key}": value for label, what in found.items() for key, value in what.items()}


def _metric_name(label: str) -> str:
    """A reward's name as a part of a metric's: ``package.module:name`` is ``package_module_name``."""
    return re.sub(r"\W+", "_", label)
