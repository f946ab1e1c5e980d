"""What is known of an answer when it has been compared."""

from __future__ import annotations

import msgspec


class Outcome(msgspec.Struct, frozen=True):
    """What is known of an answer."""

    value: float | None
    """1.0 right, 0.0 wrong; None where the right answer has no meaning, or (``unread``) nothing is decided yet."""
    reason: str
    """A key: ``same_text``, ``same_value``, ``other_value``, ``gold_unparsable``, ``unread`` ..."""
    detail: str = ""
    """The same for people."""
