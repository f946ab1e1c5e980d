"""The script of a simulated engine, and one of its streams: what it samples and what goes wrong in it.

A stream knows nothing of time or of other streams: the engine calls ``advance`` once per decode step.
"""

from __future__ import annotations

import asyncio
import math
from statistics import NormalDist
from typing import Annotated, Literal

import msgspec

from prl.engines.base import Decoding
from prl.errors import EngineError
from prl.simulation import CallFault, draw, fraction, token_logprob
from prl.types import Finish, TokenChunk

FIRST_VERSION_TOKEN = 1000
"""With ``tokens = "version"``, token id ``FIRST_VERSION_TOKEN + v`` was sampled by version v."""


class StreamFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that goes wrong in a stream, once, at its first decode step where every condition holds."""

    kind: Literal["delay", "stall", "raise", "abort", "die", "nan", "wrong_version", "end", "babble"]
    """``delay`` gives no token for ``delay_s``; ``stall`` never again; ``raise`` fails this stream; ``abort`` ends it
    with what it has; ``die`` kills the engine; ``nan`` is the next log-probability; ``wrong_version`` stamps the next
    token one too low; ``end`` ends the stream without a finish; ``babble`` goes on after one."""
    request: int | None = None
    """Which request of this engine, counted from 0; absent: every one."""
    token: int = 0
    """Strikes once the stream has this many tokens ..."""
    at_s: float = 0.0
    """... and the engine has been open for this long."""
    delay_s: float = 0.0
    """How long a delay lasts."""


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a simulated engine behaves: its speed, its lengths, and what goes wrong."""

    base_s: Annotated[float, msgspec.Meta(gt=0)] = 0.01
    """Length of a decode step, apart from its streams; above 0, or time would never pass."""
    per_seq_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0002
    """What each running stream adds to it."""
    open_s: float = 0.0
    """How long the start takes."""
    load_s: float = 0.0
    """How long a load takes once the weights are there."""
    stages: bool = False
    """Whether it receives beside generation what it is asked to stage."""
    length_median: float = 32.0
    """Lengths are log-normal, so long-tailed: half the streams want to stop within this many tokens ..."""
    length_sigma: float = 0.8
    """... and one in forty-four wants more than ``length_median * exp(2 * length_sigma)``."""
    vocab_size: Annotated[int, msgspec.Meta(ge=64)] = 256
    """Seeded token ids are below this."""
    tokens: Literal["seeded", "version"] = "seeded"
    """``version``: every token but a stop token says which version sampled it."""
    stream_interval: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Tokens per chunk, except where the version changes or the stream ends."""
    streams: tuple[StreamFault, ...] = ()
    """Faults of streams."""
    calls: tuple[CallFault, ...] = ()
    """Faults of open, connect, stage, pause, load, resume, score and close."""
    die_at_s: float | None = None
    """When the engine dies, in seconds after it was opened."""


class Stream:
    """One request of an engine. What it samples depends on ``key``, the position and the weights only."""

    def __init__(
        self, *, engine: str, key: bytes, request: int, last_token: int, decoding: Decoding, script: Script
    ) -> None:
        self._engine, self._key, self._script = engine, key, script
        self._stop_token_ids = decoding.stop_token_ids
        wanted = max(1, _length(key, script))
        self._stops = bool(self._stop_token_ids) and wanted <= decoding.max_tokens
        self._length = wanted if self._stops else decoding.max_tokens
        self._faults = [fault for fault in script.streams if fault.request in (None, request)]
        self._last_token = last_token
        self._silent_until = -math.inf
        self._next_is_nan = False
        self._version = -1
        self._version_shift = 0
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self.num_tokens = 0
        self.outbox: asyncio.Queue[TokenChunk | EngineError | None] = asyncio.Queue()
        """Chunks and at last None, or an error. It has no bound but ``max_tokens``: a slow consumer holds up nobody."""

    def advance(self, *, now: float, age_s: float, version: int, weights: bytes) -> Literal["runs", "ended", "kills"]:
        """Sample one token, unless a fault prevents it.

        Args:
            now: the time of the event loop.
            age_s: seconds since the engine was opened.
            version: of the weights.
            weights: to sample with.

        Returns:
            Whether the stream goes on, has ended, or kills its engine.
        """
        for fault in [f for f in self._faults if f.token <= self.num_tokens and f.at_s <= age_s]:
            self._faults.remove(fault)
            if fault.kind == "die":
                return "kills"
            if self._strike(fault, now):
                self.outbox.put_nowait(None)
                return "ended"
        if now < self._silent_until:
            return "runs"
        if version != self._version:
            self._flush()
            self._version = version
        self._sample(weights)
        if self.num_tokens == self._length:
            self._flush("stop" if self._stops else "length")
            self.outbox.put_nowait(None)
            return "ended"
        if len(self._token_ids) >= self._script.stream_interval or self._version_shift:
            self._flush()
        return "runs"

    def _strike(self, fault: StreamFault, now: float) -> bool:
        """Apply a fault; true when it ends the stream."""
        match fault.kind:
            case "delay":
                self._silent_until = now + fault.delay_s
            case "stall":
                self._silent_until = math.inf
            case "nan":
                self._next_is_nan = True
            case "wrong_version":
                self._flush()
                self._version_shift = -1
            case "babble":
                self._flush("stop")
            case "raise":
                message = f"{self._engine} failed a stream at token {self.num_tokens}, as scripted"
                self.outbox.put_nowait(EngineError(message))
            case "abort":
                self._flush("abort")
            case "end":
                self._flush()
        return fault.kind in ("raise", "abort", "end")

    def _sample(self, weights: bytes) -> None:
        token = self._draw_token(weights)
        logprob = math.nan if self._next_is_nan else token_logprob(weights, self._last_token, token)
        self._next_is_nan = False
        self._token_ids.append(token)
        self._logprobs.append(logprob)
        self._last_token = token
        self.num_tokens += 1

    def _draw_token(self, weights: bytes) -> int:
        if self._stops and self.num_tokens == self._length - 1:
            return self._stop_token_ids[draw(self._key) % len(self._stop_token_ids)]
        if self._script.tokens == "version":
            return FIRST_VERSION_TOKEN + self._version
        token = draw(self._key, self.num_tokens, weights) % self._script.vocab_size
        while token in self._stop_token_ids:
            token = (token + 1) % self._script.vocab_size
        return token

    def _flush(self, finish: Finish | None = None) -> None:
        """Put the tokens gathered so far into the outbox as one chunk."""
        if self._token_ids or finish:
            version = self._version + self._version_shift
            chunk = TokenChunk(token_ids=self._token_ids, logprobs=self._logprobs, version=version, finish=finish)
            self.outbox.put_nowait(chunk)
            self._token_ids, self._logprobs, self._version_shift = [], [], 0


def _length(key: bytes, script: Script) -> int:
    """How many tokens the stream wants, stop token included: log-normal."""
    normal = NormalDist(math.log(script.length_median), script.length_sigma)
    return round(math.exp(normal.inv_cdf(min(fraction(key), 1 - 1e-12))))
