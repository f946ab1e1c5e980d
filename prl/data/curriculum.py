"""Difficulty: prompts that the model solves too often or too seldom are passed over for some epochs.

The rule: the latest group of a row is measured when it is scored, also when it is not trained on because its rewards
are all equal. Above the band the row is ``too_easy``, below it ``too_hard``; it is passed over in the
``rest_epochs`` epochs behind the one it was asked in, and asked again after them. What is not known yet (the group is
under way, or never was scored) keeps nothing away.

Invariants:

- A decision depends on the records of the ledger alone: the measurements written before it. They are written in the
  same order as admissions are, so a run that is resumed decides as the run before would have.
- A row rests for at most ``rest_epochs`` epochs, so every ``rest_epochs + 1`` epochs there is something to ask.
"""

from __future__ import annotations

from prl.config_data import CurriculumConfig
from prl.data.mix import Place
from prl.records import Measured
from prl.types import Group

Rates = dict[int, tuple[int, float]]
"""By row (of all sources, one after the other): the epoch it was last measured in, and its solve rate then."""


class Curriculum:
    """``[data.curriculum]`` over the measurements of a ledger."""

    def __init__(self, config: CurriculumConfig, rates: Rates) -> None:
        """``rates`` are the ledger's own: what is measured is known here at once."""
        self._config, self._rates = config, rates

    def rests(self, key: int, epoch: int) -> str | None:
        """Why a row is passed over in an epoch; None: it is asked."""
        if self._config.band is None or key not in self._rates:
            return None
        measured_in, rate = self._rates[key]
        low, high = self._config.band
        if low <= rate <= high or not measured_in < epoch <= measured_in + self._config.rest_epochs:
            return None
        return "too_easy" if rate > high else "too_hard"

    def measure(self, group: Group, key: int, place: Place) -> Measured | None:
        """The measurement of a scored group; None where there is no curriculum."""
        if self._config.band is None:
            return None
        solved = sum(score.reward >= self._config.pass_reward for score in group.scores)
        return Measured(prompt_id=group.prompt.id, row=key, epoch=place.epoch, solve_rate=solved / len(group.scores))
