"""Groups that teach nothing are rolled out again with another prompt: DAPO's dynamic sampling (arXiv 2503.14476, 3.2).

Invariants:

- A group teaches nothing exactly when all the rewards that it would be trained on are equal, at every turn that has
  its own (``credit.py``): rewards are compared, never a rounded deviation.
- Refills are bounded: after ``max_refills`` groups since the last batch was taken, what comes is trained on, with one
  warning. So a reward that is the same for everybody slows a run down by a known factor and never stops it.
- A refused group frees its slot like any rollout that came to nothing, so the lag bound of ``buffer.py`` holds.
"""

from __future__ import annotations

from prl.advantage import all_equal
from prl.credit import Credit, compared
from prl.log import get_logger
from prl.shaping import Shaping
from prl.types import Group

log = get_logger(__name__)


class Refill:
    """Decides about each finished group; ``start_round`` when a batch (or a round of them) was taken."""

    def __init__(self, rewards_of: Shaping, max_refills: int, credit: Credit = "episode") -> None:
        """``rewards_of`` a group are what it is trained on; ``max_refills`` groups are refused per round."""
        self._rewards_of, self._max_refills, self._credit = rewards_of, max_refills, credit
        self._refused, self._warned = 0, False

    def wants_another(self, group: Group) -> bool:
        """Whether another prompt takes this group's slot."""
        if not all(map(all_equal, compared(group, self._rewards_of(group), self._credit))):
            return False
        if self._refused < self._max_refills:
            self._refused += 1
            return True
        if not self._warned:
            self._warned = True
            log.warning(
                "groups of equal rewards are trained on: advantage.max_refills is used up for this step",
                max_refills=self._max_refills,
                prompt=group.prompt.id,
            )
        return False

    def start_round(self) -> None:
        """A batch was taken; the next one has refills of its own."""
        self._refused, self._warned = 0, False
