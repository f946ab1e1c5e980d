"""A finding, and which gap asks for one: what rounding makes is none.

Where both sides compute in float32, any token beyond the tolerance does. With a shorter type single tokens go far
beyond it, so the mean has to be more than rounding makes too, and that is measured on the model at hand.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from prl.doctor.evidence import Evidence, Gap

ROUNDING_FACTOR = 4.0
"""Two implementations that round at other places differ by up to this many times what rounding does to one."""

Verdict = Literal["ok", "note", "fault"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause: what was measured, and what that says."""

    cause: str
    measured: str
    number: float
    verdict: Verdict = "ok"
    says: str = ""
    """For a fault: what it is and what to do."""
    size: float = 0.0
    """Mean gap of a token that it accounts for."""


def is_large(evidence: Evidence, gap: Gap, temperature: float = 1.0) -> bool:
    """Whether ``gap`` asks for an explanation beyond rounding; a low temperature enlarges what is accepted."""
    scale = max(1.0, 1.0 / temperature)
    beyond = gap.max > evidence.tolerance * scale
    return beyond if is_exact(evidence) else beyond and gap.mean > noise_of(evidence) * scale


def expected(evidence: Evidence) -> str:
    """Which gap is normal for these types."""
    if is_exact(evidence):
        return "expected in float32: 1e-7 to 1e-4 a token, 1e-3 at the very worst"
    return (
        f"expected in {_types(evidence)}: a mean of about {evidence.forward.rounding:.1g}, single tokens 0.1 and more"
    )


def is_exact(evidence: Evidence) -> bool:
    """Whether both sides are to compute in float32."""
    return evidence.engine_dtype == evidence.trainer_dtype == "float32"


def noise_of(evidence: Evidence) -> float:
    """Mean gap at temperature 1 that rounding alone may make."""
    least = evidence.tolerance / 10
    return least if is_exact(evidence) else max(least, ROUNDING_FACTOR * evidence.forward.rounding)


def _types(evidence: Evidence) -> str:
    return " and ".join(sorted({evidence.engine_dtype, evidence.trainer_dtype}))
