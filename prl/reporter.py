"""The report of a step: its own numbers, and what every part of the run counted since the report before.

Invariants:

- The parts count from the start of the run, and what they had counted at the last report is kept here: each stream
  that moved, each restart and each drop is in exactly one report, or after the last one in ``mended``.
- A step that is done again was not rolled out again: the drops and the rewards' calls until then are the next step's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from prl.engines.pool import EnginePool
from prl.lag import Lag
from prl.lap import LapMeter
from prl.metrics import Mended, StepReport, step_report
from prl.rollout import Rollout
from prl.timeline import unix_time
from prl.trainer.base import Trainer, TrainReport
from prl.types import Group
from prl.update_ways import PushReport


class Judges(Protocol):
    """The rewards, as far as a report speaks of them."""

    @property
    def num_retries(self) -> int:
        """Tries after the first, of all calls so far."""
        ...

    def lap(self) -> dict[str, dict[str, float]]:
        """What their calls took and how they failed since the last lap, by reward."""
        ...


class Reporter:
    """See the module.

    Args:
        clock: the time in seconds.
        engines: count tokens, busy seconds and restarts.
        trainer: counts restarts.
        rollout: counts members that came to nothing, and streams that moved.
        judges: count calls and retries; absent, there are none.
        verified_gap: mean distance of the engines' log-probabilities from the trainer's at the last proof of a push.
        now: Unix time in seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        engines: EnginePool,
        trainer: Trainer,
        rollout: Rollout,
        judges: Judges | None,
        verified_gap: Callable[[], float | None] = lambda: None,
        now: Callable[[], float] = unix_time,
    ) -> None:
        self._engines, self._trainer, self._rollout, self._judges = engines, trainer, rollout, judges
        self._now = now
        self._verified_gap = verified_gap
        self._drops_before: Counter[str] = Counter()
        self._mended_before = Mended()
        self.meter = LapMeter(clock, self._engine_counters)

    def of_step(self, groups: Sequence[Group], lag: Lag, trained: TrainReport, pushed: PushReport | None) -> StepReport:
        """The report of a step that is done now; ``pushed`` is None within a round."""
        return step_report(
            groups,
            lag,
            trained,
            pushed,
            lap=self.meter.lap(),
            dropped=self._dropped(),
            mended=self.mended(),
            at=self._now(),
            verified_gap=self._verified_gap(),
            calls={} if self._judges is None else self._judges.lap(),
        )

    def of_step_again(self, groups: Sequence[Group], lag: Lag, trained: TrainReport) -> StepReport:
        """The report of a step that the trainer did again."""
        return step_report(
            groups,
            lag,
            trained,
            None,
            lap=self.meter.lap(),
            dropped={},
            mended=self.mended(),
            at=self._now(),
            verified_gap=self._verified_gap(),
        )

    def mended(self) -> Mended:
        """What died and was made good since the last report."""
        now = Mended(
            streams_moved=self._rollout.sampler.num_moved,
            streams_handed_over=self._rollout.sampler.num_handed_over,
            engine_restarts=self._engines.seats.num_restarts,
            trainer_restarts=int(self._trainer.statistics().get("restarts", 0)),
            reward_retries=0 if self._judges is None else self._judges.num_retries,
        )
        before, self._mended_before = self._mended_before, now
        return now.since(before)

    def _dropped(self) -> dict[str, int]:
        drops = self._rollout.members_dropped - self._drops_before
        self._drops_before = Counter(self._rollout.members_dropped)
        return dict(drops)

    def _engine_counters(self) -> tuple[int, float, float]:
        statistics = self._engines.statistics()
        return statistics.tokens_generated, statistics.busy_s, statistics.stream_s
