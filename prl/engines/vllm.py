"""The vLLM engine: one ``AsyncLLM`` in the controller's process, its core and workers in processes of their own.

Invariants:

- A stream's versions are those that vLLM noted at the sampling step (see ``vllm_stream.py``), also for outputs that
  were merged because the consumer is slow.
- No request reads prefix cache of an older version: each is salted with the version it is submitted under, none is
  submitted while paused, and one that has sampled nothing when a load completes is submitted again under the new salt.
- While the weights are not whole (see ``vllm_weights.py``) open streams wait and new ones are refused.
- At most ``max_num_seqs`` streams are with vLLM at once; the others wait here, in order. vLLM has one slot more, so
  that a score is computed at once however many streams there are.
- The core's end ends every open stream with ``EngineDeadError`` and the last lines of its log. A core that should move
  and gives no token for ``engine.token_timeout_s`` is killed, so a stream never hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from prl.config import EngineConfig
from prl.engines.base import Decoding, EngineStatistics
from prl.engines.checks import bounded, check_tokens
from prl.engines.meter import Meter
from prl.engines.vllm_core import Core
from prl.engines.vllm_settings import score_params, stream_params
from prl.engines.vllm_stream import Stream
from prl.engines.vllm_weights import Weights
from prl.errors import EngineError, MissingExtraError
from prl.models import resolve_model
from prl.types import TokenChunk, WeightGroup, WeightUpdate

_CHECK_S = 1.0
"""How often a waiting stream looks whether its engine still lives and moves."""
_SEEDS = 2**31


class VllmEngine:
    """One vLLM engine; see ``engines/base.py`` for the protocol.

    Args:
        index: names the engine and its log, ``engine-<index>``.
        model: what the config names; a built-in, a folder, or a hub name.
        config: ``[engine]``.
        transport: vLLM's name of the weight-transfer backend.
        seed: of the run; engines of one run differ by their index.
        log_dir: where ``engine-<index>.log`` is written.
        cores: CPU cores to compute on; None: one thread, not bound. Only on a CPU.
        devices: GPU indices; None: the first ``tensor_parallel_size`` after those of the engines before.
    """

    def __init__(
        self,
        *,
        index: int,
        model: str,
        config: EngineConfig,
        transport: str,
        seed: int,
        log_dir: Path,
        cores: list[int] | None = None,
        devices: list[int] | None = None,
    ) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise MissingExtraError("vllm", "vllm" if shutil.which("nvidia-smi") else "cpu", "the vLLM engine")
        self.name = f"engine-{index}"
        self.num_workers = config.tensor_parallel_size
        self._model, self._config, self._transport = resolve_model(model), config, transport
        self._seed = (seed * 1_000_003 + index) % _SEEDS
        self._cores = cores
        self._devices = devices or [index * self.num_workers + rank for rank in range(self.num_workers)]
        self._core = Core(self.name, log_dir / f"{self.name}.log", config)
        self._ids = itertools.count()
        self._streams: set[Stream] = set()
        self._meter = Meter()
        self._slots = asyncio.Semaphore(config.max_num_seqs)
        self._weights = Weights(self._core, transport, self._streams)

    # Life ---------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the core, serve the checkpoint's weights as version 0, and compute one token.

        Raises:
            EngineError: the core did not start, or not within ``engine.start_timeout_s``; carries its last log lines.
        """
        timeout_s = self._config.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._core.start(
                    model=self._model,
                    transport=self._transport,
                    seed=self._seed,
                    cores=self._cores,
                    devices=self._devices,
                )
                await self._core.llm.update_weight_version("0")
                await self._score([0])  # what the model's kernels cannot do shows here
        except TimeoutError:
            why = self._core.why()
            await self.close()
            raise EngineError(
                f"{self.name} was not ready within engine.start_timeout_s = {timeout_s:g} s; {why}"
            ) from None
        except BaseException:
            await self.close()
            raise

    async def failed(self) -> str:
        """Wait until this engine is dead, then return why with its last log lines."""
        return await self._core.failed()

    async def close(self) -> None:
        """End the core and every open stream. Idempotent."""
        await self._core.close()

    def statistics(self) -> EngineStatistics:
        """What it holds and did so far."""
        return EngineStatistics(
            version=self._weights.version,
            running=len(self._streams),
            tokens_generated=self._meter.num_tokens,
            busy_s=self._meter.busy_s(),
            paused=self._weights.held,
            dead=self._core.dead,
        )

    # Streams ------------------------------------------------------------------------------------------------------

    async def generate(self, token_ids: list[int], decoding: Decoding) -> AsyncGenerator[TokenChunk, None]:
        """Continue ``token_ids``. Iterate under ``contextlib.aclosing``.

        Raises:
            EngineDeadError: the core ended, or was killed because it did not move.
            EngineError: the request cannot be served, or the last load failed.
        """
        self._core.check_alive()
        if self._weights.broken is not None:
            raise EngineError(f"{self.name} serves nothing until a load succeeds: {self._weights.broken}")
        check_tokens(self.name, token_ids, self._core.vocab_size)
        params = stream_params(bounded(decoding, len(token_ids), self._config.max_model_len))
        stream = Stream()
        self._streams.add(stream)
        self._meter.update(num_streams=len(self._streams))
        try:
            async with self._slots, contextlib.aclosing(self._run(stream, token_ids, params)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._streams.discard(stream)
            self._meter.update(num_streams=len(self._streams))

    async def _run(self, stream: Stream, token_ids: list[int], params: Any) -> AsyncGenerator[TokenChunk, None]:
        """One stream that has a slot."""
        ended = False
        try:
            while not ended:
                if stream.queue is None:
                    await self._submit(stream, token_ids, params)
                output = await self._next(stream)
                if stream.restart:
                    stream.queue, stream.restart = None, False
                    continue
                for chunk in stream.chunks(output):
                    self._meter.count(len(chunk.token_ids))
                    ended = chunk.finish is not None
                    yield chunk
        finally:
            if not ended and stream.request_id is not None and self._core.llm is not None:
                await self._core.llm.abort(stream.request_id)

    async def _submit(self, stream: Stream, token_ids: list[int], params: Any) -> None:
        """Hand the request to vLLM, salted with the version that will serve it."""
        while stream.queue is None:
            await self._weights.wait_moving()
            salt, llm = self._weights.version, self._core.llm
            stream.request_id = f"{self.name}-{next(self._ids)}"
            try:
                queue = await llm.add_request(stream.request_id, self._prompt(token_ids), params)
            except Exception as error:
                raise self._core.translated(error, "refused a request") from error
            if salt == self._weights.version:
                stream.queue = queue
            else:
                await llm.abort(stream.request_id)
        state = llm.output_processor.request_states.get(stream.queue.request_id)
        # Without a state all its outputs are in the queue already, and the last one has the spans.
        stream.starts = None if state is None else getattr(state, "weight_version_starts", None)

    def _prompt(self, token_ids: list[int]) -> dict[str, Any]:
        """Rendered input, as vLLM calls it: it is taken as it is, without a detour through a thread."""
        return {"type": "token", "prompt_token_ids": token_ids, "cache_salt": str(self._weights.version)}

    async def _next(self, stream: Stream) -> Any:
        """The next output of one stream. A stream may wait for its turn; the engine as a whole must move."""
        try:
            while (output := stream.queue.get_nowait()) is None:
                try:
                    async with asyncio.timeout(_CHECK_S):
                        return await stream.queue.get()
                except TimeoutError:
                    self._check_moving()
        except EngineError:
            raise
        except Exception as error:
            raise self._core.translated(error, "failed a request") from error
        return output

    def _check_moving(self) -> None:
        limit_s = self._config.token_timeout_s
        if self._meter.stalled_s() > limit_s:
            self._core.kill(f"{self.name} gave no token for engine.token_timeout_s = {limit_s:g} s")
        self._core.check_alive()

    # Weights ------------------------------------------------------------------------------------------------------

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """Join the weight group, leaving the one joined before; its workers take ranks ``rank_offset ...``.

        Raises:
            WeightSyncError: the group did not come together in its time, or is of another transport.
        """
        await self._weights.connect(group, rank_offset)

    async def pause(self) -> None:
        """Stop between two decode steps; everything sampled so far is on its way to the streams on return."""
        self._meter.update(paused=True)
        await self._weights.pause()

    async def stage(self, update: WeightUpdate) -> bool:
        """Begin to receive ``update`` beside generation, if the transport can.

        Raises:
            WeightSyncError: the workers are in no weight group.
        """
        return await self._weights.stage(update)

    async def load(self, update: WeightUpdate) -> None:
        """Receive ``update`` and serve it from the next token on.

        Raises:
            WeightSyncError: the update does not fit the model, or its transfer failed.
            EngineError: the engine is not paused.
        """
        await self._weights.load(update)

    async def resume(self) -> None:
        """Go on with the streams that were open; after a failed load only once a load has succeeded."""
        await self._weights.resume()
        self._meter.update(paused=self._weights.held)

    async def score(self, token_ids: list[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first, under the current weights (length L - 1).

        Raises:
            EngineError: paused (vLLM computes nothing then), or the tokens do not fit the context with one to spare.
        """
        self._core.check_alive()
        check_tokens(self.name, token_ids, self._core.vocab_size)
        if self._weights.held:
            raise EngineError(f"{self.name} is paused and cannot score; resume it first")
        return await self._core.call(self._score(token_ids), "did not score")

    async def _score(self, token_ids: list[int]) -> list[float]:
        outputs = self._core.llm.generate(self._prompt(token_ids), score_params(), f"{self.name}-{next(self._ids)}")
        async with contextlib.aclosing(outputs):
            output = await anext(outputs)
        found = zip(token_ids[1:], output.prompt_logprobs[1:], strict=True)
        return [by_token[token].logprob for token, by_token in found]
