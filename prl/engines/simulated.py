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
from collections import deque
from collections.abc import AsyncGenerator
from typing import Literal

from prl.engines.base import Decoding, EngineStatistics, Standstill, swap_by_steps
from prl.engines.meter import Meter
from prl.engines.simulated_stream import Script, Stream
from prl.errors import EngineDeadError, EngineError
from prl.simulation import CHECKPOINT, CallFaults, Meeting, draw, sequence_logprobs
from prl.types import TokenChunk, WeightGroup, WeightUpdate


class SimulatedEngine:
    """See the module. ``open`` and ``close`` may be called from any task of one event loop."""

    num_workers = 1

    def __init__(self, *, index: int, max_num_seqs: int, script: Script, seed: int) -> None:
        self.name = f"engine-{index}"
        self._seed = seed.to_bytes(8, "little")
        self._index, self._max_num_seqs, self._script = index, max_num_seqs, script
        self._faults = CallFaults(script.calls)
        self._running: list[Stream] = []
        self._waiting: deque[Stream] = deque()
        self._num_requests = self._version = 0
        self._meter = Meter()
        self._weights = CHECKPOINT
        self._refusal: str | None = "it is not open"
        self._death: str | None = None
        self._died = asyncio.Event()
        self._paused = False
        self._step_ended = asyncio.Event()
        self._timers: dict[Literal["step", "death"], asyncio.TimerHandle] = {}
        self._meeting: Meeting | None = None
        self._staged: asyncio.Future[tuple[int, bytes]] | None = None
        self._opened_at = 0.0

    async def open(self) -> None:
        """Take ``open_s`` to start."""
        await self._call("open")
        await asyncio.sleep(self._script.open_s)
        self._refusal = None
        self._opened_at = self._now()
        if self._script.die_at_s is not None:
            self._set_timer("death", self._script.die_at_s)

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """Join the weight group, a meeting inside this event loop."""
        await self._call("connect")
        self._staged = None
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
            if stream in self._running:
                self._running.remove(stream)
            elif stream in self._waiting:
                self._waiting.remove(stream)
            self._note_streams()

    async def pause(self) -> None:
        """Let the step under way end and start no other."""
        await self._call("pause")
        self._paused = True
        if "step" in self._timers:
            self._step_ended.clear()
            await self._step_ended.wait()
            self._check_alive()
        self._meter.update(paused=True)

    async def stage(self, update: WeightUpdate) -> bool:
        """Begin to receive, in place of what was staged before, where the script says that it can."""
        if not self._script.stages:
            return False
        await self._call("stage")
        meeting = self._joined(f"stage version {update.version}")
        meeting.forget(self._staged)
        self._staged = meeting.expect()
        return True

    async def swap(self, update: WeightUpdate) -> Standstill:
        """Its three steps."""
        return await swap_by_steps(self, update)

    async def load(self, update: WeightUpdate) -> None:
        """Receive the weights from the sender of the weight group."""
        what = f"load version {update.version}"
        if not self._paused:
            raise EngineError(f"{self.name} cannot {what}: it is not paused")
        self._refusal = f"it did not {what} to the end"
        dropped = await self._call("load") == "drop"
        staged, self._staged = self._staged, None
        version, weights = await (self._joined(what).receive() if staged is None else staged)
        await asyncio.sleep(self._script.load_s)
        self._check_alive()
        if version != update.version:
            raise EngineError(f"{self.name} was to {what} and was sent version {version}")
        self._weights = self._weights if dropped else weights
        self._version, self._refusal = version, None

    async def resume(self) -> None:
        """Go on with the next decode step."""
        await self._call("resume")
        self._check_serves()
        self._paused = False
        self._meter.update(paused=False)
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

    def kill(self) -> None:
        """Die now, as an engine does whose process was killed."""
        self._die(f"{self.name} was killed")

    def statistics(self) -> EngineStatistics:
        """A snapshot."""
        return EngineStatistics(
            version=self._version,
            running=len(self._running) + len(self._waiting),
            tokens_generated=self._meter.num_tokens,
            busy_s=self._meter.busy_s(),
            stream_s=self._meter.stream_s(),
            paused=self._paused,
            dead=self._death is not None,
        )

    async def close(self) -> None:
        """Fail every open stream and stop."""
        await self._faults.strike("close")
        self._refusal = "it is closed"
        self._stop(EngineError(f"{self.name} was closed while the stream was open"))

    # ---- state -------------------------------------------------------------------------------------------------------

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

    def _joined(self, what: str) -> Meeting:
        if self._meeting is None:
            raise EngineError(f"{self.name} cannot {what}: it is in no weight group; connect it")
        return self._meeting

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(self._death)

    def _check_serves(self) -> None:
        self._check_alive()
        if self._refusal is not None:
            raise EngineError(f"{self.name} serves nothing: {self._refusal}")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _note_streams(self) -> None:
        self._meter.update(num_streams=len(self._running) + len(self._waiting))

    def _die(self, reason: str) -> None:
        if self._death is None:
            self._death = reason
            self._stop(EngineDeadError(reason))
            self._died.set()

    def _stop(self, error: EngineError) -> None:
        """Start no step any more and fail every open stream."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._step_ended.set()
        for stream in (*self._running, *self._waiting):
            stream.outbox.put_nowait(error)
        self._running.clear()
        self._waiting.clear()
        self._note_streams()

    # ---- the decode loop ---------------------------------------------------------------------------------------------

    def _admit(self, prompt: list[int], decoding: Decoding) -> Stream:
        self._check_serves()
        if not prompt or len(decoding.stop_token_ids) >= self._script.vocab_size:
            raise EngineError(f"{self.name} needs a prompt, and a vocabulary that is not all stop tokens")
        request = self._num_requests
        self._num_requests += 1
        stream = Stream(
            engine=self.name,
            key=self._key(prompt, decoding, request),
            request=request,
            last_token=prompt[-1],
            decoding=decoding,
            script=self._script,
        )
        self._waiting.append(stream)
        self._note_streams()
        self._start_step()
        return stream

    def _key(self, prompt: list[int], decoding: Decoding, request: int) -> bytes:
        if decoding.temperature == 0:
            who = [0]
        elif decoding.seed is not None:
            who = [1, decoding.seed]
        else:
            who = [2, self._index, request]
        return draw(self._seed, *who, *prompt).to_bytes(8, "little")

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
        del self._timers["step"]
        try:
            self._advance_streams()
        except Exception as error:  # noqa: BLE001 - a timer has no caller: the streams and failed() report the bug
            self._die(f"{self.name} died of a bug: {error!r}")
        self._note_streams()
        self._step_ended.set()
        if self._death is None:
            self._start_step()

    def _advance_streams(self) -> None:
        now = self._now()
        for stream in tuple(self._running):
            had = stream.num_tokens
            outcome = stream.advance(now=now, age_s=now - self._opened_at, version=self._version, weights=self._weights)
            self._meter.count(stream.num_tokens - had)
            if outcome == "ended":
                self._running.remove(stream)
            elif outcome == "kills":
                self._die(f"{self.name} died at token {had} of a stream, as scripted")
                return

    def _die_as_scripted(self) -> None:
        self._die(f"{self.name} died {self._script.die_at_s:g} s after its start, as scripted")
