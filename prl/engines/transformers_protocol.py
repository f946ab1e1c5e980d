"""What the transformers engine and its child process say to each other; neither torch nor transformers is needed.

Invariants:

- The child speaks first, with the token it was given; nothing else is heard before it.
- Every ``Call`` is answered by exactly one ``Reply``, in order. ``Generate`` and ``Cancel`` have no answer.
- What was sampled before a pause took effect is sent before the reply to that pause, so the ``version`` of a ``Tokens``
  message is the one that sampled every token in it.
- One ``Tokens`` message carries the tokens of all streams since the last one: the controller pays for a message per
  decode step, not per token.
"""

from __future__ import annotations

import msgspec

from prl.config import Dtype
from prl.engines.base import Decoding
from prl.types import Finish, WeightGroup, WeightUpdate

ADDRESS_VARIABLE = "PRL_TRANSFORMERS_ADDRESS"
"""Environment variable with the ``host:port`` that the child connects back to."""
TOKEN_VARIABLE = "PRL_TRANSFORMERS_TOKEN"  # noqa: S105 -- the name of a variable, not a secret
"""Environment variable with the token that the child says first."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of every message."""


class Start(_Message, frozen=True, kw_only=True):
    """Load the model and be ready to generate."""

    model: str
    """A folder or a hub name."""
    dtype: Dtype
    max_num_seqs: int
    max_model_len: int
    stream_interval: int
    kv_cache_bytes: int
    """KV cache on a CPU."""
    gpu_memory_utilization: float
    seed: int
    num_threads: int
    device_index: int
    """Which GPU, where there are several (modulo their number)."""


class Connect(_Message, frozen=True, kw_only=True):
    """Join the weight group as ``rank``."""

    group: WeightGroup
    rank: int


class Pause(_Message, frozen=True, kw_only=True):
    """Stop between two decode steps."""


class Resume(_Message, frozen=True, kw_only=True):
    """Go on."""


class Load(_Message, frozen=True, kw_only=True):
    """Receive new weights; only while paused."""

    update: WeightUpdate


class Score(_Message, frozen=True, kw_only=True):
    """Log-probabilities at temperature 1 of the tokens after the first."""

    token_ids: list[int]


Request = Start | Connect | Pause | Resume | Load | Score


class Call(_Message, frozen=True, kw_only=True):
    """A request that is answered."""

    id: int
    request: Request


class Generate(_Message, frozen=True, kw_only=True):
    """Open a stream. ``decoding.max_tokens`` already respects the context length."""

    stream: int
    token_ids: list[int]
    decoding: Decoding


class Cancel(_Message, frozen=True, kw_only=True):
    """Free a stream whose consumer has left; of no effect on one that ended."""

    stream: int


FromController = Call | Generate | Cancel


class Hello(_Message, frozen=True, kw_only=True):
    """The child's first message."""

    token: str


class Reply(_Message, frozen=True, kw_only=True):
    """The answer to a call."""

    id: int
    error: str | None = None
    """None: it was done."""
    logprobs: list[float] = []
    """Answers ``Score``: length L - 1."""
    vocab_size: int = 0
    """Answers ``Start``: token ids of prompts must be below it."""


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one stream."""

    stream: int
    token_ids: list[int]
    logprobs: list[float]
    finish: Finish | None


class Tokens(_Message, frozen=True, kw_only=True):
    """New tokens of many streams, all sampled by ``version``."""

    version: int
    deltas: list[Delta]


FromChild = Hello | Reply | Tokens
