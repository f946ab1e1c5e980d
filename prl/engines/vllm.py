"""The vLLM engine: one ``AsyncLLM`` in the controller's process, its core and workers in processes of their own.

Invariants:

- A stream's versions are those that vLLM noted at the sampling step (see ``vllm_stream.py``), also for outputs that
  were merged because the consumer is slow.
- No request reads prefix cache of an older version: each is salted with the version it is submitted under, none is
  submitted while paused, and one that has sampled nothing when a load completes is submitted again under the new salt.
- After a failed or interrupted load the engine stays paused, whatever ``resume`` is asked, until a load succeeds; open
  streams wait, new ones are refused.
- The core's end ends every open stream with ``EngineDeadError`` and the last lines of its log. A core that should move
  and gives no token for ``engine.token_timeout_s`` is killed, so a stream never hangs.

Every transport goes through the same calls; ``gloo`` is prl's own (``gloo_transfer.py``), ``nccl`` is vLLM's.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import math
import shutil
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from prl.config import EngineConfig
from prl.engines.base import Decoding, EngineStatistics
from prl.engines.meter import Meter
from prl.engines.vllm_core import Core
from prl.engines.vllm_settings import init_info, score_params, stream_params, update_info
from prl.engines.vllm_stream import Stream
from prl.errors import EngineDeadError, EngineError, MissingExtraError, WeightSyncError
from prl.models import resolve_model
from prl.types import TokenChunk, WeightGroup, WeightUpdate

_CHECK_S = 1.0
"""How often a waiting stream looks whether its engine still lives and moves."""
_REPLY_MARGIN_S = 5.0
"""The workers' own deadline is the better told one, so the wait for their answer is this much longer."""
_SEEDS = 2**31

T = TypeVar("T")


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
        self._version = 0
        self._unpaused = asyncio.Event()
        self._stopped = False
        self._broken: str | None = None
        self._transfer_timeout_s = 0.0
        self._update_open = False

    # Life ---------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the core, serve the checkpoint's weights as version 0, and compute one token.

        Raises:
            EngineDeadError: the core did not start; carries the last lines of its log.
            EngineError: it was not ready within ``engine.start_timeout_s``.
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
                self._unpaused.set()
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
            version=self._version,
            running=len(self._streams),
            tokens_generated=self._meter.num_tokens,
            busy_s=self._meter.busy_s(),
            paused=self._held,
            dead=self._core.dead,
        )

    # Streams ------------------------------------------------------------------------------------------------------

    async def generate(self, token_ids: list[int], decoding: Decoding) -> AsyncGenerator[TokenChunk, None]:
        """Continue ``token_ids``. Iterate under ``contextlib.aclosing``.

        Raises:
            EngineDeadError: the core ended, or was killed because it did not move.
            EngineError: the request cannot be served, or the last load failed.
        """
        params = self._params(token_ids, decoding)
        stream = Stream()
        self._streams.add(stream)
        self._meter.update(num_streams=len(self._streams))
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
            self._streams.discard(stream)
            self._meter.update(num_streams=len(self._streams))
            if not ended and stream.queue is not None and self._core.llm is not None:
                await self._core.llm.abort(stream.queue.request_id, internal=True)

    def _params(self, token_ids: list[int], decoding: Decoding) -> Any:
        """The ``SamplingParams`` of vLLM; refuses what vLLM would refuse late or not survive."""
        self._core.check_alive()
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
        return stream_params(decoding, min(decoding.max_tokens, room))

    def _check_ids(self, token_ids: list[int]) -> None:
        """An id outside the vocabulary would end the core."""
        if not token_ids:
            raise EngineError(f"{self.name} was given no tokens; it needs at least one")
        if not 0 <= min(token_ids) <= max(token_ids) < self._core.vocab_size:
            raise EngineError(
                f"token ids range from {min(token_ids)} to {max(token_ids)}; the model of {self.name} knows 0 to "
                f"{self._core.vocab_size - 1}. Is the tokenizer the model's?"
            )

    async def _submit(self, stream: Stream, token_ids: list[int], params: Any) -> None:
        """Hand the request to vLLM under the version that will serve it."""
        while stream.queue is None:
            await self._wait_unpaused()
            salt, llm = self._version, self._core.llm
            prompt = {"prompt_token_ids": token_ids, "cache_salt": str(salt)}
            try:
                queue = await llm.add_request(f"{self.name}-{next(self._ids)}", prompt, params)
            except Exception as error:
                raise self._core.translated(error, "refused a request") from error
            if salt != self._version:
                await llm.abort(queue.request_id, internal=True)
                continue
            stream.queue = queue
            state = llm.output_processor.request_states.get(queue.request_id)
            # Without a state all its outputs are in the queue already, and the last one has the spans.
            stream.starts = None if state is None else getattr(state, "weight_version_starts", None)

    async def _wait_unpaused(self) -> None:
        while not self._unpaused.is_set():
            self._core.check_alive()
            try:
                async with asyncio.timeout(_CHECK_S):
                    await self._unpaused.wait()
            except TimeoutError:
                continue
        self._core.check_alive()

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

    @property
    def _held(self) -> bool:
        """Whether the engine stands still: paused, or kept so after a failed load."""
        return self._stopped or self._broken is not None

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """Join the weight group; its workers take ranks ``rank_offset ...``.

        Raises:
            WeightSyncError: the group did not come together in its time, or is of another transport.
        """
        if group.transport != self._transport:
            raise WeightSyncError(f"{self.name} was started for {self._transport!r}, not for {group.transport!r}")
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest  # noqa: PLC0415 -- optional, heavy

        self._transfer_timeout_s = group.timeout_s + _REPLY_MARGIN_S
        request = WeightTransferInitRequest(init_info=init_info(group, rank_offset))
        await self._transfer(self._core.llm.init_weight_transfer_engine(request), "could not join the weight group")

    async def pause(self) -> None:
        """Stop between two decode steps; everything sampled so far is on its way to the streams on return."""
        self._core.check_alive()
        self._stopped = True
        self._unpaused.clear()
        self._meter.update(paused=True)
        await self._control(self._core.llm.pause_generation(mode="keep", clear_cache=False), "did not pause")

    async def load(self, update: WeightUpdate) -> None:
        """Receive ``update`` and serve it from the next token on.

        Raises:
            WeightSyncError: the update does not fit the model, or its transfer failed.
            EngineError: the engine is not paused.
        """
        self._core.check_alive()
        if not self._held:
            raise EngineError(f"{self.name} must be paused before version {update.version} is loaded")
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest  # noqa: PLC0415 -- optional, heavy

        request = WeightTransferUpdateRequest(update_info=update_info(update))
        what = f"could not load version {update.version}"
        self._broken = f"the load of version {update.version} was interrupted"
        try:
            await self._transfer(self._load(request, update.version), what)
        except WeightSyncError as error:
            self._broken = f"the load of version {update.version} failed: {error}"
            raise
        self._broken = None

    async def _load(self, request: Any, version: int) -> None:
        llm = self._core.llm
        if not self._update_open:
            await llm.start_weight_update()
        self._update_open = True
        try:
            await llm.update_weights(request)
        except Exception:
            self._update_open = False  # vLLM closes an update that failed
            raise
        await llm.finish_weight_update(str(version))
        self._update_open = False
        self._version = version
        for stream in self._streams:
            if stream.queue is not None and not stream.sampled:
                stream.restart = True
                await llm.abort(stream.queue.request_id, internal=True)

    async def resume(self) -> None:
        """Go on with the streams that were open; after a failed load only once a load has succeeded."""
        self._core.check_alive()
        if self._broken is None:
            await self._control(self._core.llm.resume_generation(), "did not resume")
            self._unpaused.set()
        self._stopped = False
        self._meter.update(paused=self._held)

    async def score(self, token_ids: list[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first, under the current weights (length L - 1).

        Raises:
            EngineError: paused (vLLM computes nothing then), or the tokens do not fit the context with one to spare.
        """
        self._core.check_alive()
        self._check_ids(token_ids)
        if self._held:
            raise EngineError(f"{self.name} is paused and cannot score; resume it first")
        return await self._control(self._score(token_ids), "did not score")

    async def _score(self, token_ids: list[int]) -> list[float]:
        prompt = {"prompt_token_ids": token_ids, "cache_salt": str(self._version)}
        outputs = self._core.llm.generate(prompt, score_params(), f"{self.name}-{next(self._ids)}")
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                by_token = zip(token_ids[1:], output.prompt_logprobs[1:], strict=True)
                return [found[token].logprob for token, found in by_token]
        raise EngineError("vLLM gave no output")

    async def _control(self, call: Coroutine[Any, Any, T], what: str) -> T:
        """A call to the core that computes at most one step."""
        limit_s = self._config.token_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await call
        except TimeoutError:
            self._core.kill(f"{self.name} {what} within engine.token_timeout_s = {limit_s:g} s")
            raise EngineDeadError(self._core.why()) from None
        except Exception as error:
            raise self._core.translated(error, what) from error

    async def _transfer(self, call: Coroutine[Any, Any, T], what: str) -> T:
        """A call that waits for the other ranks of the weight group."""
        try:
            async with asyncio.timeout(self._transfer_timeout_s):
                return await call
        except TimeoutError:
            limit = f"{self._transfer_timeout_s:g} s (weights.timeout_s and a margin)"
            raise WeightSyncError(f"{self.name} {what}: no answer within {limit}") from None
        except Exception as error:
            told = self._core.translated(error, what)
            raise (told if isinstance(told, EngineDeadError) else WeightSyncError(str(told))) from error
