"""What an engine and its host process say to each other; neither torch, vLLM nor transformers is needed.

Invariants:

- The host speaks first, with the token it was given; nothing else is heard before it.
- Every ``Call`` is answered by exactly one ``Reply``, in order. ``Generate`` and ``Cancel`` have no answer.
- The ``version`` of a ``Tokens`` message sampled every token in it; a host whose version changes sends first what the
  old one sampled. What was sampled before a pause took effect is sent before the reply to that pause.
- One ``Tokens`` message carries the tokens of many streams: the controller pays for a message per
  ``engine.stream_interval`` decode steps, and hardly for a token.
- A stream ends with one ``Delta`` that has a finish, or with one ``Failed``; after a ``Cancel`` it may have neither.
"""

from __future__ import annotations

import msgspec

from prl.config import EngineConfig
from prl.engines.base import Decoding, Standstill
from prl.types import Finish, WeightGroup, WeightUpdate

ADDRESS_VARIABLE = "PRL_HOST_ADDRESS"
"""Environment variable with the ``host:port`` that the host process connects back to."""
TOKEN_VARIABLE = "PRL_HOST_TOKEN"  # noqa: S105 -- the name of a variable, not a secret
"""Environment variable with the token that it says first."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of every message."""


class Start(_Message, frozen=True, kw_only=True):
    """Load the model and be ready to generate."""

    model: str
    """A folder or a hub name."""
    config: EngineConfig
    transport: str
    """How weights will come: vLLM's name of the backend."""
    seed: int
    num_threads: int
    """Threads to compute with on a CPU, where no cores are bound."""
    devices: list[int]
    """GPU indices, one a worker."""
    cores: list[int] | None = None
    """CPU cores that the workers compute on, split evenly; None: wherever the kernel likes."""


class Connect(_Message, frozen=True, kw_only=True):
    """Join the weight group as ``rank``."""

    group: WeightGroup
    rank: int


class Pause(_Message, frozen=True, kw_only=True):
    """Stop between two decode steps."""


class Resume(_Message, frozen=True, kw_only=True):
    """Go on."""


class Stage(_Message, frozen=True, kw_only=True):
    """Begin to receive new weights beside generation; ``Load`` then has only to put them in place."""

    update: WeightUpdate


class Load(_Message, frozen=True, kw_only=True):
    """Receive new weights; only while paused."""

    update: WeightUpdate


class Swap(_Message, frozen=True, kw_only=True):
    """Pause, put in place what was staged, and resume; a swap that fails leaves the engine paused."""

    update: WeightUpdate


class Score(_Message, frozen=True, kw_only=True):
    """Log-probabilities at temperature 1 of the tokens after the first."""

    token_ids: list[int]


Request = Start | Connect | Pause | Resume | Stage | Load | Swap | Score


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
    """The host's first message."""

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
    standstill: Standstill = Standstill(drain_s=0.0, still_s=0.0)
    """Answers ``Swap``."""


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


class Failed(_Message, frozen=True, kw_only=True):
    """A stream that cannot be served, and why; the host serves on."""

    stream: int
    error: str


FromHost = Hello | Reply | Tokens | Failed
