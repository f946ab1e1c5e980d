"""How long a prompt may be, and what is said of one that is not asked."""

from __future__ import annotations

from typing import NamedTuple


class Room(NamedTuple):
    """How long a prompt may be."""

    context: int
    key: str
    """Which key says how long a completion may be."""
    max_tokens: int
    fewest: int = 0
    most: int | None = None
    """``data.filter``'s bounds."""

    @property
    def for_prompt(self) -> int:
        """Most tokens of a prompt that the context has room for."""
        return self.context - self.max_tokens

    def refuses(self, length: int) -> str | None:
        """Why a prompt of this length is passed over."""
        if length > self.for_prompt:
            return "too_long"
        if length < self.fewest:
            return "too_short"
        return "above_max_tokens" if self.most is not None and length > self.most else None

    def explained(self, reason: str) -> str:
        """The rule, in words."""
        if reason == "too_long":
            return (
                f"engine.max_model_len = {self.context} less {self.key} = {self.max_tokens} leaves {self.for_prompt} "
                "tokens for a prompt"
            )
        if reason == "too_short":
            return f"data.filter.min_tokens = {self.fewest}"
        return "they ask what a held-out one asks" if reason == "held_out" else f"data.filter.max_tokens = {self.most}"


class Unfit(NamedTuple):
    """Why a row is not asked."""

    reason: str
    length: int
    room: Room
