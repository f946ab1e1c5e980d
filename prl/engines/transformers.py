"""The transformers engine: continuous batching in a child process, for machines where vLLM cannot be installed.

This is the controller's half and imports neither torch nor transformers; the child is ``transformers_host.py``.

Invariants:

- A stream's chunks queue up, at most its ``max_tokens`` of them, so a slow consumer delays nobody.
- The child's end ends every open stream with ``EngineDeadError`` and the last lines of its log; a child that should
  move and sends no token for ``engine.token_timeout_s`` is killed, so a stream never hangs.
- After a failed or interrupted load the child stays paused, whatever ``resume`` is asked, until a load succeeds; open
  streams wait, new ones are refused.
- A stream with a seed of its own samples the same tokens from the same weights (up to rounding of the logits), on
  whichever engine and beside whatever else; the others are drawn from a generator that ``seed`` and ``index`` fix.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from prl.config import EngineConfig
from prl.engines.base import Decoding, EngineStatistics
from prl.engines.meter import Meter
from prl.engines.transformers_link import Link
from prl.engines.transformers_protocol import Cancel, Connect, Generate, Load, Pause, Resume, Score, Start, Tokens
from prl.errors import EngineDeadError, EngineError, WeightSyncError
from prl.models import resolve_model
from prl.process import tail
from prl.types import TokenChunk, WeightGroup, WeightUpdate

_REPLY_MARGIN_S = 5.0
"""The child's own deadline is the better told one, so the wait for its answer is this much longer."""


class TransformersEngine:
    """One child process that samples with transformers; see ``engines/base.py`` for the protocol."""

    def __init__(self, *, index: int, model: str, config: EngineConfig, seed: int, log_dir: Path) -> None:
        self.name = f"engine-{index}"
        self.num_workers = 1
        self._index, self._model, self._config, self._seed = index, resolve_model(model), config, seed
        self._log = log_dir / f"{self.name}.log"
        self._link = Link(
            self.name, self._log, on_tokens=self._take, on_end=self._end, send_timeout_s=config.token_timeout_s
        )
        self._ids = itertools.count()
        self._streams: dict[int, asyncio.Queue[TokenChunk | None]] = {}  # None: the engine died
        self._meter = Meter()
        self._vocab_size = 0
        self._version = 0
        self._paused = False
        self._broken: str | None = None
        self._transfer_timeout_s = 0.0

    # Life ---------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the child and wait until its model is loaded.

        Raises:
            EngineDeadError: the child ended; carries the last lines of its log.
            EngineError: it was not ready within ``engine.start_timeout_s``.
        """
        timeout_s = self._config.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._link.start()
                reply = await self._link.call(self._start_request(), timeout_s)
        except TimeoutError:
            await self.close()
            raise EngineError(
                f"{self.name} was not ready within engine.start_timeout_s = {timeout_s:g} s; last lines of "
                f"{self._log}:\n{tail(self._log)}"
            ) from None
        except BaseException:
            await self.close()
            raise
        self._vocab_size = reply.vocab_size

    def _start_request(self) -> Start:
        config, cores = self._config, os.cpu_count() or 1
        return Start(
            model=self._model,
            dtype=config.dtype,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            stream_interval=config.stream_interval,
            kv_cache_bytes=int(config.kv_cache_gib * 2**30),
            gpu_memory_utilization=config.gpu_memory_utilization,
            seed=(self._seed * 1_000_003 + self._index) % 2**63,
            num_threads=max(1, cores // (config.count + 1)),  # the trainer has a share too
            device_index=self._index,
        )

    async def failed(self) -> str:
        """Wait until this engine is dead, then return why with its last log lines."""
        return await self._link.failed()

    async def close(self) -> None:
        """End the child and every open stream. Idempotent."""
        await self._link.close()

    # Streams ------------------------------------------------------------------------------------------------------

    async def generate(self, token_ids: list[int], decoding: Decoding) -> AsyncGenerator[TokenChunk, None]:
        """Continue ``token_ids``. Iterate under ``contextlib.aclosing``.

        Raises:
            EngineDeadError: the child ended, or was killed because it did not move.
            EngineError: the request cannot be served, or the last load failed.
        """
        request = self._checked(token_ids, decoding)
        queue: asyncio.Queue[TokenChunk | None] = asyncio.Queue()
        self._streams[request.stream] = queue
        self._meter.update(num_streams=len(self._streams))
        ended = False
        try:
            await self._link.send(request)
            while not ended:
                chunk = await self._next(queue)
                ended = chunk.finish is not None
                yield chunk
        finally:
            del self._streams[request.stream]
            self._meter.update(num_streams=len(self._streams))
            if not ended and self._link.reason is None:
                await self._link.send(Cancel(stream=request.stream))

    def _checked(self, token_ids: list[int], decoding: Decoding) -> Generate:
        self._link.check_alive()
        if self._broken is not None:
            raise EngineError(f"{self.name} serves nothing until a load succeeds: {self._broken}")
        self._check_ids(token_ids)
        room = self._config.max_model_len - len(token_ids)
        if room < 1:
            raise EngineError(
                f"a prompt of {len(token_ids)} tokens leaves no room for one more in engine.max_model_len = "
                f"{self._config.max_model_len}"
            )
        if decoding.max_tokens < 1 or not (math.isfinite(decoding.temperature) and decoding.temperature >= 0):
            raise EngineError(
                f"max_tokens must be at least 1 and the temperature finite and at least 0, got {decoding}"
            )
        bounded = msgspec.structs.replace(decoding, max_tokens=min(decoding.max_tokens, room))
        return Generate(stream=next(self._ids), token_ids=token_ids, decoding=bounded)

    def _check_ids(self, token_ids: list[int]) -> None:
        """An id outside the vocabulary would end the child."""
        if not token_ids:
            raise EngineError(f"{self.name} was given no tokens; it needs at least one")
        if not 0 <= min(token_ids) <= max(token_ids) < self._vocab_size:
            raise EngineError(
                f"token ids range from {min(token_ids)} to {max(token_ids)}; the model of {self.name} knows 0 to "
                f"{self._vocab_size - 1}. Is the tokenizer the model's?"
            )

    async def _next(self, queue: asyncio.Queue[TokenChunk | None]) -> TokenChunk:
        """The next chunk of one stream. A stream may wait for its turn; the engine as a whole must move."""
        timeout_s = self._config.token_timeout_s
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    chunk = await queue.get()
            except TimeoutError:
                if self._meter.stalled_s() > timeout_s:
                    await self._link.kill(f"{self.name} sent no token for engine.token_timeout_s = {timeout_s:g} s")
                continue
            if chunk is None:
                raise EngineDeadError(self._link.reason)
            return chunk

    def _take(self, message: Tokens) -> None:
        """One decode step's tokens; those of a stream that was just closed are of no use any more."""
        for delta in message.deltas:
            self._meter.count(len(delta.token_ids))
            if (queue := self._streams.get(delta.stream)) is not None:
                chunk = TokenChunk(
                    token_ids=delta.token_ids, logprobs=delta.logprobs, version=message.version, finish=delta.finish
                )
                queue.put_nowait(chunk)

    def _end(self) -> None:
        for queue in self._streams.values():
            queue.put_nowait(None)

    # Weights ------------------------------------------------------------------------------------------------------

    @property
    def _held(self) -> bool:
        """Whether the child stands still: paused, or kept so after a failed load."""
        return self._paused or self._broken is not None

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """Join the weight group as rank ``rank_offset``, leaving the one joined before.

        Raises:
            WeightSyncError: the group did not come together in its time, or is not of gloo.
        """
        if group.transport != "gloo":
            raise WeightSyncError(f"{self.name} receives weights over gloo only, not {group.transport!r}")
        self._transfer_timeout_s = group.timeout_s + _REPLY_MARGIN_S
        await self._link.call(Connect(group=group, rank=rank_offset), self._transfer_timeout_s, WeightSyncError)

    async def pause(self) -> None:
        """Stop between two decode steps; everything sampled so far is in the streams' queues on return."""
        await self._link.call(Pause(), self._config.token_timeout_s)
        self._paused = True
        self._meter.update(paused=True)

    async def stage(self, update: WeightUpdate) -> bool:  # noqa: ARG002 -- the protocol's
        """The child receives in ``load``: it takes one command at a time."""
        return False

    async def load(self, update: WeightUpdate) -> None:
        """Receive ``update``; the child keeps its old weights unless all of it arrived.

        Raises:
            WeightSyncError: the update does not fit the model, or its transfer failed.
            EngineError: the engine is not paused.
        """
        self._link.check_alive()
        if not self._held:
            raise EngineError(f"{self.name} must be paused before version {update.version} is loaded")
        self._broken = f"the load of version {update.version} was interrupted"
        try:
            await self._link.call(Load(update=update), self._transfer_timeout_s, WeightSyncError)
        except WeightSyncError as error:
            self._broken = f"the load of version {update.version} failed: {error}"
            raise
        self._broken = None
        self._version = update.version

    async def resume(self) -> None:
        """Go on with the streams that were open; after a failed load only once a load has succeeded."""
        self._link.check_alive()
        if self._broken is None:
            await self._link.call(Resume(), self._config.token_timeout_s)
        self._paused = False
        self._meter.update(paused=self._held)

    async def score(self, token_ids: list[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first, under the current weights (length L - 1)."""
        self._link.check_alive()
        self._check_ids(token_ids)
        return (await self._link.call(Score(token_ids=token_ids), self._config.token_timeout_s)).logprobs

    def statistics(self) -> EngineStatistics:
        """What it holds and did so far."""
        return EngineStatistics(
            version=self._version,
            running=len(self._streams),
            tokens_generated=self._meter.num_tokens,
            busy_s=self._meter.busy_s(),
            paused=self._held,
            dead=self._link.reason is not None,
        )
