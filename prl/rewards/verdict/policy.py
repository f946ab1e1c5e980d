"""What may be decided either way when two answers are compared."""

from __future__ import annotations

from typing import Literal

import msgspec


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What may be decided either way."""

    relative_tolerance: float = 1e-6
    """How far, relative to the larger, a number written with a decimal point may be off. 0 is exact."""
    percent: Literal["either", "value"] = "either"
    """``25%`` is 0.25; with ``either`` it is 25 as well, since the sign may stand in the question."""
    units: Literal["if_stated", "required", "ignored"] = "if_stated"
    """Two different units are different answers. One that only one side states does not matter with ``if_stated``."""
    bases: Literal["stated", "value"] = "stated"
    r"""``52_8`` is not 42 with ``stated``: who is asked for a base has to use it."""
    empty_gold: Literal["wrong", "abstain"] = "wrong"
    """Where the right answer is empty no answer is right. Such a row is refused when data is loaded."""
