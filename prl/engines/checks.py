"""What an engine refuses before its process sees it: requests that would end it, or that it would refuse late."""

from __future__ import annotations

import math

import msgspec

from prl.engines.base import Decoding
from prl.errors import EngineError


def check_tokens(engine: str, token_ids: list[int], vocab_size: int | None) -> None:
    """Refuse ids that the model has no embedding for; ``vocab_size`` None: it is not known how many it has.

    Raises:
        EngineError: no tokens, or an id outside ``0 .. vocab_size - 1``.
    """
    if not token_ids:
        raise EngineError(f"{engine} was given no tokens; it needs at least one")
    low, high = min(token_ids), max(token_ids)
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        known = "those from 0 on" if vocab_size is None else f"0 to {vocab_size - 1}"
        raise EngineError(
            f"token ids range from {low} to {high}; the model of {engine} knows {known}. Is the tokenizer the model's?"
        )


def bounded(decoding: Decoding, num_prompt_tokens: int, max_model_len: int) -> Decoding:
    """``decoding`` with ``max_tokens`` cut to what the context has room for.

    Raises:
        EngineError: no room for one token, or a temperature or limit that means nothing.
    """
    room = max_model_len - num_prompt_tokens
    if room < 1:
        raise EngineError(
            f"a prompt of {num_prompt_tokens} tokens leaves no room for one more in engine.max_model_len = "
            f"{max_model_len}"
        )
    if decoding.max_tokens < 1 or not (math.isfinite(decoding.temperature) and decoding.temperature >= 0):
        raise EngineError(f"max_tokens must be at least 1 and the temperature finite and at least 0, got {decoding}")
    return msgspec.structs.replace(decoding, max_tokens=min(decoding.max_tokens, room))
