"""The lag governor: holds a measured ESS by moving how many groups, or streams, may be under way. Pure.

The effective sample size of a batch, (sum w)^2 / (n sum w^2) over the ratios w of the current to the behaviour policy
(PipelineRL, arXiv 2509.19128, section 2), falls with lag. Where policies drift at a constant rate -log(ESS) grows in
proportion to the lag, and the lag in proportion to what is under way beyond ``synchronous``, where nothing lags. So the
governor takes -log(ESS) / (slots - synchronous) for what the task, the learning rate and the speed of either side make
it, and moves the slots to where -log(ESS) is the one aimed at.

Invariants:

- The slots stay between the least and the most that it was given. With the order of admission the most is what
  ``pipeline.max_lag`` allows, so that bound holds whatever is measured; fewer slots are a lower bound (``buffer.py``).
- A batch shows the lag of what was admitted as many steps before as it lags. What is measured is set against the slots
  that there were *then*, so that a move of its own does not look like another drift, and it does not ring.
- Slots are whole: where the aim lies between two neighbours, each outside the dead band, it stays at the lower one.
- After a move it looks again only at batches of which some were admitted since; a move is at most by ``MOST_CHANGE``,
  and none is made within ``DEAD_BAND`` of the aim.
"""

from __future__ import annotations

import math
from collections import deque

MOST_CHANGE = 1.5
"""Factor by which the slots beyond ``synchronous`` move at most at once."""
DEAD_BAND = 0.1
"""Share of the aimed -log(ESS) that is left alone."""
LEAST_LOSS = 1e-6
"""What -log(ESS) is at least: nothing lags, or nothing drifts."""
WINDOW = 4
"""Steps whose mean is looked at: fewer follow the noise of single batches."""
_HISTORY = 4096


class Governor:
    """See the module.

    Args:
        target: the ESS that is held, above 0 and below 1.
        least: slots at least.
        most: slots at most.
        synchronous: slots at which nothing lags: those of one batch, or 0 where a slot is a stream.
        start: slots at the beginning; absent, the least.
    """

    def __init__(self, *, target: float, least: int, most: int, synchronous: int, start: int | None = None) -> None:
        self._aim = -math.log(target)
        self._least, self._most, self._synchronous = least, most, synchronous
        self._slots = float(least if start is None else start)
        self._then: deque[int] = deque([self.slots], maxlen=_HISTORY)
        self._seen: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self._num_since_move = 0

    @property
    def slots(self) -> int:
        """How many there are to be now."""
        return math.floor(self._slots + 1e-9)

    def observe(self, ess: float, lag: int) -> int:
        """A step was taken; how many slots there are to be from now on.

        Args:
            ess: of its batch; one that is not a number, or not above 0, says nothing.
            lag: of its oldest token, in steps.
        """
        then = self._then[-1 - min(max(0, lag), len(self._then) - 1)]
        self._then.append(self.slots)
        self._num_since_move += 1
        if ess > 0 and math.isfinite(ess):
            self._seen.append((max(LEAST_LOSS, -math.log(min(1.0, ess))), max(1.0, then - self._synchronous)))
        if len(self._seen) == WINDOW and self._num_since_move >= WINDOW + lag:
            self._move()
        return self.slots

    def _move(self) -> None:
        """To where -log(ESS) is the aim, if it is in proportion to the slots beyond ``synchronous``."""
        loss = sum(loss for loss, _ in self._seen) / WINDOW
        if abs(loss - self._aim) <= DEAD_BAND * self._aim:
            return
        ahead = sum(then for _, then in self._seen) / WINDOW
        now = max(1.0, self._slots - self._synchronous)
        wanted = min(max(ahead * self._aim / loss, now / MOST_CHANGE), now * MOST_CHANGE)
        slots = min(max(self._synchronous + wanted, float(self._least)), float(self._most))
        if slots != self._slots:
            self._slots, self._num_since_move = slots, 0
            self._seen.clear()
