"""An engine without a model: seeded token streams in virtual or real time, and a switchboard of faults.

Invariants:

- What a stream samples depends on its key, the position and the weights, and on nothing else. The key is (prompt,
  ``decoding.seed``) when the stream has a seed, (prompt) when it is greedy, and (engine, request number) otherwise;
  so seeded completions do not depend on placement, load or timing, apart from which version sampled which token.
- A decode step lasts ``base_s + per_seq_s * running``; at most ``max_num_seqs`` streams run and the others queue, first
  in first out. A slow consumer holds up nobody: its chunks wait for it.
- The engine owns no task. Its decode loop is one timer of the event loop whose callback ends the step under way and
  sets the next one, so there is nothing to cancel: pausing is not setting it, closing is dropping it. A bug in a step
  kills the engine, which every stream and ``failed`` then report.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator
from statistics import NormalDist
from typing import Annotated, Literal

import msgspec

from prl.engines.base import Decoding, EngineStatistics
from prl.errors import EngineDeadError, EngineError
from prl.simulation import (
    CHECKPOINT,
    CallFault,
    CallFaults,
    Meeting,
    draw,
    fraction,
    sequence_logprobs,
    token_logprob,
)
from prl.types import Finish, TokenChunk, WeightGroup, WeightUpdate

FIRST_VERSION_TOKEN = 1000
"""With ``tokens = "version"``, token id ``FIRST_VERSION_TOKEN + v`` was sampled by version v."""


class StreamFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that goes wrong in a stream, once, at its first decode step where every condition holds."""

    kind: Literal["delay", "stall", "raise", "abort", "die", "nan", "wrong_version", "end", "babble"]
    """``delay`` gives no token for ``delay_s``; ``stall`` never again; ``raise`` fails this stream; ``abort`` ends it
    with what it has; ``die`` kills the engine; ``nan`` is the next log-probability; ``wrong_version`` stamps the next
    token one too low; ``end`` ends the stream without a finish; ``babble`` goes on after it."""
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
    length_median: float = 32.0
    """Lengths are log-normal, so long-tailed: half the streams want to stop within this many tokens ..."""
    length_sigma: float = 0.8
    """... and one in fifty wants more than ``length_median * exp(2 * length_sigma)``."""
    vocab_size: Annotated[int, msgspec.Meta(ge=64)] = 256
    """Seeded token ids are below this."""
    tokens: Literal["seeded", "version"] = "seeded"
    """``version``: every token but a stop token says which version sampled it."""
    stream_interval: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Tokens per chunk, except where the version changes or the stream ends."""
    streams: tuple[StreamFault, ...] = ()
    """Faults of streams."""
    calls: tuple[CallFault, ...] = ()
    """Faults of open, connect, pause, load, resume, score and close."""
    die_at_s: float | None = None
    """When the engine dies, in seconds after it was opened."""


class _Stream:
    """One request: what it samples and what its consumer has not fetched yet."""

    def __init__(
        self, key: bytes, prompt: list[int], decoding: Decoding, length: int, faults: list[StreamFault]
    ) -> None:
        self.key, self.decoding, self.faults = key, decoding, faults
        self.length = min(length, decoding.max_tokens) if decoding.stop_token_ids else decoding.max_tokens
        self.stops = bool(decoding.stop_token_ids) and length <= decoding.max_tokens
        self.last_token = prompt[-1]
        self.num_tokens = 0
        self.silent_until = -math.inf
        self.version = -1
        self.version_shift = 0
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.outbox: asyncio.Queue[TokenChunk | EngineError | None] = asyncio.Queue()

    def flush(self, finish: Finish | None = None) -> None:
        """Put the tokens gathered so far into the outbox as one chunk."""
        if self.token_ids or finish:
            version = self.version + self.version_shift
            chunk = TokenChunk(token_ids=self.token_ids, logprobs=self.logprobs, version=version, finish=finish)
            self.outbox.put_nowait(chunk)
            self.token_ids, self.logprobs = [], []


class SimulatedEngine:
    """See the module. ``open`` and ``close`` may be called from any task of one event loop."""

    num_workers = 1

    def __init__(self, *, index: int, max_num_seqs: int, script: Script, seed: int) -> None:
        self.name = f"engine-{index}"
        self._seed = seed.to_bytes(8, "little")
        self._index, self._max_num_seqs, self._script = index, max_num_seqs, script
        self._faults = CallFaults(script.calls)
        self._running: list[_Stream] = []
        self._waiting: deque[_Stream] = deque()
        self._num_requests = self._tokens_generated = self._version = 0
        self._weights = CHECKPOINT
        self._refusal: str | None = "it is not open"
        self._death: str | None = None
        self._died = asyncio.Event()
        self._paused = False
        self._step_ended = asyncio.Event()
        self._timers: dict[Literal["step", "death"], asyncio.TimerHandle] = {}
        self._meeting: Meeting | None = None
        self._opened_at = self._accounted_at = self._busy_s = 0.0

    async def open(self) -> None:
        """Take ``open_s`` to start."""
        await self._call("open")
        await asyncio.sleep(self._script.open_s)
        self._refusal = None
        self._opened_at = self._accounted_at = asyncio.get_running_loop().time()
        if self._script.die_at_s is not None:
            self._set_timer("death", self._script.die_at_s)

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """Join the weight group, a meeting inside this event loop."""
        await self._call("connect")
        try:
            self._meeting = await Meeting.join(group, rank_offset)
        except ValueError as error:
            raise EngineError(f"{self.name}: {error}") from error

    async def generate(self, token_ids: list[int], decoding: Decoding) -> AsyncGenerator[TokenChunk, None]:
        """Continue ``token_ids``, which must not be empty."""
        stream = self._admit(token_ids, decoding)
        try:
            while (chunk := await stream.outbox.get()) is not None:
                if isinstance(chunk, EngineError):
                    raise chunk
                yield chunk
        finally:
            self._account()
            if stream in self._running:
                self._running.remove(stream)
            elif stream in self._waiting:
                self._waiting.remove(stream)

    async def pause(self) -> None:
        """Let the step under way end and start no other."""
        await self._call("pause")
        self._account()
        self._paused = True
        if "step" in self._timers:
            self._step_ended.clear()
            await self._step_ended.wait()
            self._check_alive()

    async def load(self, update: WeightUpdate) -> None:
        """Receive the weights from the sender of the weight group."""
        if not self._paused:
            raise EngineError(f"{self.name} cannot load version {update.version}: it is not paused")
        self._refusal = f"its load of version {update.version} did not complete"
        dropped = await self._call("load") == "drop"
        if self._meeting is None:
            raise EngineError(f"{self.name} cannot load version {update.version}: it is in no weight group; connect it")
        version, weights = await self._meeting.receive()
        await asyncio.sleep(self._script.load_s)
        self._check_alive()
        if version != update.version:
            raise EngineError(f"{self.name} was to load version {update.version} and was sent version {version}")
        self._weights = self._weights if dropped else weights
        self._version, self._refusal = version, None

    async def resume(self) -> None:
        """Go on with the next decode step."""
        await self._call("resume")
        self._check_serves()
        self._account()
        self._paused = False
        self._start_step()

    async def score(self, token_ids: list[int]) -> list[float]:
        """The simulated model's log-probabilities (length L - 1)."""
        await self._call("score")
        self._check_serves()
        return sequence_logprobs(self._weights, token_ids)

    async def failed(self) -> str:
        """Wait until the script, or a bug, kills it."""
        await self._died.wait()
        return str(self._death)

    def statistics(self) -> EngineStatistics:
        """A snapshot."""
        self._account()
        return EngineStatistics(
            version=self._version,
            running=len(self._running) + len(self._waiting),
            tokens_generated=self._tokens_generated,
            busy_s=self._busy_s,
            paused=self._paused,
            dead=self._death is not None,
        )

    async def close(self) -> None:
        """Fail every open stream and stop."""
        await self._faults.strike("close")
        self._refusal = "it is closed"
        self._stop(EngineError(f"{self.name} was closed with the stream open"))

    async def _call(self, call: str) -> str | None:
        """Note a call of the protocol and let its fault strike."""
        self._check_alive()
        fault = await self._faults.strike(call)
        if fault == "die":
            self._die(f"{self.name} died in {call}, as scripted")
        elif fault == "raise":
            raise EngineError(f"{self.name} failed in {call}, as scripted")
        self._check_alive()
        return fault

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(self._death)

    def _check_serves(self) -> None:
        self._check_alive()
        if self._refusal is not None:
            raise EngineError(f"{self.name} serves nothing: {self._refusal}")

    def _admit(self, prompt: list[int], decoding: Decoding) -> _Stream:
        self._check_serves()
        if not prompt or len(decoding.stop_token_ids) >= self._script.vocab_size:
            raise EngineError(f"{self.name} needs a prompt and a token that is no stop token")
        number = self._num_requests
        self._num_requests += 1
        key = self._key(prompt, decoding, number)
        normal = NormalDist(math.log(self._script.length_median), self._script.length_sigma)
        length = round(math.exp(normal.inv_cdf(min(fraction(key), 1 - 1e-12))))
        faults = [fault for fault in self._script.streams if fault.request in (None, number)]
        stream = _Stream(key, prompt, decoding, max(1, length), faults)
        self._account()
        self._waiting.append(stream)
        self._start_step()
        return stream

    def _key(self, prompt: list[int], decoding: Decoding, number: int) -> bytes:
        if decoding.temperature == 0:
            who = [0]
        elif decoding.seed is not None:
            who = [1, decoding.seed]
        else:
            who = [2, self._index, number]
        return draw(self._seed, *who, *prompt).to_bytes(8, "little")

    def _account(self) -> None:
        """Add the time since the last change of state to ``busy_s``; to be called before each change."""
        now = asyncio.get_running_loop().time()
        if (self._running or self._waiting) and not self._paused and self._death is None:
            self._busy_s += now - self._accounted_at
        self._accounted_at = now

    def _set_timer(self, name: Literal["step", "death"], delay_s: float) -> None:
        callback = self._end_step if name == "step" else self._die_as_scripted
        self._timers[name] = asyncio.get_running_loop().call_later(delay_s, callback)

    def _start_step(self) -> None:
        if self._paused or "step" in self._timers or self._refusal is not None:
            return
        while self._waiting and len(self._running) < self._max_num_seqs:
            self._running.append(self._waiting.popleft())
        if self._running:
            self._set_timer("step", self._script.base_s + self._script.per_seq_s * len(self._running))

    def _end_step(self) -> None:
        self._account()
        del self._timers["step"]
        try:
            for stream in tuple(self._running):
                self._advance(stream)
        except Exception as error:  # noqa: BLE001 - a timer has no caller: the streams and failed() report the bug
            self._die(f"{self.name} died of a bug: {error!r}")
        self._step_ended.set()
        if self._death is None:
            self._start_step()

    def _advance(self, stream: _Stream) -> None:
        """Sample one token of ``stream``, unless a fault prevents it."""
        now = asyncio.get_running_loop().time()
        nan = False
        for fault in [f for f in stream.faults if f.token <= stream.num_tokens and f.at_s <= now - self._opened_at]:
            stream.faults.remove(fault)
            if self._strike(stream, fault, now):
                return
            nan = nan or fault.kind == "nan"
        if now < stream.silent_until:
            return
        if stream.version != self._version:
            stream.flush()
            stream.version = self._version
        token = self._sample(stream)
        stream.token_ids.append(token)
        stream.logprobs.append(math.nan if nan else token_logprob(self._weights, stream.last_token, token))
        stream.last_token = token
        stream.num_tokens += 1
        self._tokens_generated += 1
        if stream.num_tokens == stream.length:
            stream.flush("stop" if stream.stops else "length")
            self._finish(stream)
        elif len(stream.token_ids) >= self._script.stream_interval or stream.version_shift:
            stream.flush()
            stream.version_shift = 0

    def _strike(self, stream: _Stream, fault: StreamFault, now: float) -> bool:
        """Apply a fault; true when the stream samples nothing more."""
        if fault.kind == "delay":
            stream.silent_until = now + fault.delay_s
        elif fault.kind == "stall":
            stream.silent_until = math.inf
        elif fault.kind == "wrong_version":
            stream.flush()
            stream.version_shift = -1
        elif fault.kind == "babble":
            stream.flush("stop")
        elif fault.kind == "die":
            self._die(f"{self.name} died at token {stream.num_tokens} of a stream, as scripted")
        elif fault.kind == "raise":
            stream.outbox.put_nowait(
                EngineError(f"{self.name} failed a stream at token {stream.num_tokens}, as scripted")
            )
            self._finish(stream)
        elif fault.kind in ("abort", "end"):
            stream.flush("abort" if fault.kind == "abort" else None)
            self._finish(stream)
        return fault.kind in ("die", "raise", "abort", "end")

    def _sample(self, stream: _Stream) -> int:
        stop = stream.decoding.stop_token_ids
        if stream.stops and stream.num_tokens == stream.length - 1:
            return stop[draw(stream.key) % len(stop)]
        if self._script.tokens == "version":
            return FIRST_VERSION_TOKEN + self._version
        token = draw(stream.key, stream.num_tokens, self._weights) % self._script.vocab_size
        while token in stop:
            token = (token + 1) % self._script.vocab_size
        return token

    def _finish(self, stream: _Stream) -> None:
        stream.outbox.put_nowait(None)
        self._running.remove(stream)

    def _die_as_scripted(self) -> None:
        self._die(f"{self.name} died {self._script.die_at_s} s after its start, as scripted")

    def _die(self, reason: str) -> None:
        if self._death is None:
            self._account()
            self._death = reason
            self._stop(EngineDeadError(reason))
            self._died.set()

    def _stop(self, error: EngineError) -> None:
        """Start no step any more and fail every open stream."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._step_ended.set()
        self._account()
        for stream in (*self._running, *self._waiting):
            stream.outbox.put_nowait(error)
        self._running.clear()
        self._waiting.clear()
