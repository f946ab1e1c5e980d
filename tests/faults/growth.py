"""Whether the processes of a soak have grown, of which like is compared with like.

- A process is looked at once it is warm: a controller ``WARM_S`` after its first own step, another ``STARTED_S`` after
  it was made, by when it has read its model even beside other work.
- In one life that was watched for ``WATCHED_S``: the last third of the time against the first, by their medians.
- Between lives: a resumed controller against the first one, in the same phase, the first ``WATCHED_S`` that either was
  warm. What it read to go on from must be gone.
- A controller holds what is open, which is as much at any time: it may grow by ``CONTROLLER_MIB``, which is what the
  groups of the steps since a checkpoint take while they are trained again, and the allocator need not give back. Others
  fill what the configuration lets them, an engine core its KV cache: ``SHARE``, or ``MIB`` where that is more.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import NamedTuple

WARM_S, STARTED_S = 30.0, 120.0
WATCHED_S = 120.0
CONTROLLER = "controller"
CONTROLLER_MIB = 32
SHARE, MIB = 0.15, 50


class Look(NamedTuple):
    """One process at one moment."""

    at_s: float
    mib: float
    """Resident."""


class Memory:
    """What each process held, by its role and id, in the order in which they were warm."""

    def __init__(self) -> None:
        self._looks: dict[tuple[str, int], list[Look]] = defaultdict(list)

    def note(self, role: str, pid: int, look: Look) -> None:
        """A process that is warm."""
        self._looks[role, pid].append(look)

    def judge(self) -> tuple[list[str], list[str]]:
        """What each life held, a line each; and what has grown."""
        told, problems = list[str](), list[str]()
        for (role, pid), looks in sorted(self._looks.items()):
            watched_s = looks[-1].at_s - looks[0].at_s
            if watched_s < WATCHED_S:
                continue
            before = _median(looks, looks[0].at_s, looks[0].at_s + watched_s / 3)
            after = _median(looks, looks[-1].at_s - watched_s / 3, looks[-1].at_s)
            told.append(f"memory of {role} {pid}: {before:.0f} MiB, then {after:.0f} MiB, over {watched_s:.0f} s")
            if after - before > (CONTROLLER_MIB if role == CONTROLLER else max(SHARE * before, MIB)):
                problems.append(f"the memory of {role} {pid} has grown from {before:.0f} to {after:.0f} MiB")
        return told, [*problems, *self._resumed()]

    def _resumed(self) -> list[str]:
        """Controllers that began with more than the first one did."""
        lives = [(pid, looks) for (role, pid), looks in self._looks.items() if role == CONTROLLER]
        begun = [(pid, _median(looks, looks[0].at_s, looks[0].at_s + WATCHED_S)) for pid, looks in lives]
        return [
            f"the resumed controller {pid} began with {mib:.0f} MiB, the first one with {begun[0][1]:.0f} MiB"
            for pid, mib in begun[1:]
            if mib - begun[0][1] > CONTROLLER_MIB
        ]


def _median(looks: list[Look], since_s: float, until_s: float) -> float:
    return statistics.median(look.mib for look in looks if since_s <= look.at_s <= until_s)
