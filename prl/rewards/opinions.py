"""What a reward gives, read strictly, and what it gave so far.

Invariant: an opinion is a finite number or an abstention. Anything else that a reward returns is a BadValueError, which
the one who asked makes a failure of.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import msgspec

from prl.rewards.base import Judged


class Opinion(msgspec.Struct, frozen=True, kw_only=True):
    """What a reward gave one completion."""

    value: float | None
    """None where it abstained."""
    reason: str = ""
    detail: str = ""


class BadValueError(Exception):
    """A reward gave what is no opinion."""


class RewardStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What one reward did so far."""

    calls: int
    """Calls that ended, whichever way."""
    mean: float
    """Mean of the values it gave, before weighting; 0 before the first."""
    zero_share: float
    """Share of these that are 0."""
    abstained: int
    failures: dict[str, int]
    """Failed calls by reason."""
    retries: int
    """Tries after the first of a call."""
    pauses: int
    """Times that the reward was paused because all its calls failed."""
    latency_mean_s: float
    latency_max_s: float
    stuck_threads: int
    reasons: dict[str, int]
    """Verdicts by the reason that the reward gave with them (``Judged``)."""
    details: dict[str, float]
    """The reward's own counters."""


def opinion_of(value: Any) -> Opinion:
    """What a reward gave, if it is an opinion. Raises BadValueError."""
    reason = detail = ""
    if isinstance(value, Judged):
        value, reason, detail = value.value, value.reason, value.detail
    if value is None:
        return Opinion(value=None, reason=reason, detail=detail)
    number = _finite(value)
    if number is None:
        raise BadValueError(f"gave {value!r:.80}, no finite number and not None")
    return Opinion(value=number, reason=reason, detail=detail)


def opinions_of(value: Any, num_completions: int) -> list[Opinion]:
    """What a reward of groups gave, one for each completion. Raises BadValueError."""
    if isinstance(value, str | bytes) or not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
        raise BadValueError(f"gave {value!r:.80}, no list with a number for each of {num_completions} completions")
    if len(value) != num_completions:
        raise BadValueError(f"gave {len(value)} values for {num_completions} completions")
    return [opinion_of(each) for each in value]


def _finite(value: Any) -> float | None:
    """``value`` as a float where it is a finite number: int, float, bool, or a scalar of numpy or torch."""
    if not isinstance(value, numbers.Real) and getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
