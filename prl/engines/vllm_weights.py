"""The weights of a vLLM engine: meeting the sender, standing still, swapping, going on.

Invariants:

- A load runs only while the engine stands still, and the version is bumped only after every worker serves it.
- After a failed or interrupted load the engine stays still, whatever ``resume`` is asked, until a load succeeds.
- A request that has sampled nothing when a load completes is aborted to be submitted again, so that neither its
  prompt's KV nor the salt of its prefix cache is of an older version.

Every transport goes through the same calls; ``gloo`` is prl's own (``gloo_transfer.py``), ``nccl`` is vLLM's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from prl.engines.vllm_core import Core
from prl.engines.vllm_settings import init_info, update_info
from prl.engines.vllm_stream import Stream
from prl.errors import EngineDeadError, EngineError, WeightSyncError
from prl.types import WeightGroup, WeightUpdate

_CHECK_S = 1.0
"""How often a stream that waits for a resume looks whether its engine still lives."""
_REPLY_MARGIN_S = 5.0
"""The workers' own deadline is the better told one, so the wait for their answer is this much longer."""

T = TypeVar("T")


class Weights:
    """What an engine serves, and whether it may."""

    def __init__(self, core: Core, transport: str, streams: set[Stream]) -> None:
        self.version = 0
        self.broken: str | None = None
        """Why nothing may be served until a load succeeds."""
        self._core, self._transport, self._streams = core, transport, streams
        self._paused = False
        self._moving = asyncio.Event()
        self._moving.set()
        self._update_open = False
        self._timeout_s = 0.0

    @property
    def held(self) -> bool:
        """Whether the engine stands still: paused, or kept so after a failed load."""
        return self._paused or self.broken is not None

    async def wait_moving(self) -> None:
        """Wait while the engine stands still."""
        while not self._moving.is_set():
            self._core.check_alive()
            try:
                async with asyncio.timeout(_CHECK_S):
                    await self._moving.wait()
            except TimeoutError:
                continue
        self._core.check_alive()

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """See ``VllmEngine.connect``."""
        self._core.check_alive()
        if group.transport != self._transport:
            raise WeightSyncError(f"{self._core.name} was started for {self._transport!r}, not for {group.transport!r}")
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest  # noqa: PLC0415 -- optional, heavy

        self._timeout_s = group.timeout_s + _REPLY_MARGIN_S
        request = WeightTransferInitRequest(init_info=init_info(group, rank_offset))
        await self._transfer(self._core.llm.init_weight_transfer_engine(request), "could not join the weight group")

    async def pause(self) -> None:
        """Admit nothing more, then stop between two decode steps."""
        self._core.check_alive()
        self._paused = True
        self._moving.clear()
        # ``AsyncLLM.pause_generation`` is this call and a sleep of 20 ms, for outputs still on their way inside this
        # process. They came before the answer, and are let through here instead.
        client = self._core.llm.engine_core
        await self._core.call(client.pause_scheduler_async(mode="keep", clear_cache=False), "did not pause")
        while not client.outputs_queue.empty() and not self._core.dead:  # noqa: ASYNC110 -- vLLM tells nobody
            await asyncio.sleep(0)

    async def resume(self) -> None:
        """Go on, unless the weights are not whole."""
        self._core.check_alive()
        if self.broken is None:
            await self._core.call(self._core.llm.resume_generation(), "did not resume")
            self._moving.set()
        self._paused = False

    async def load(self, update: WeightUpdate) -> None:
        """See ``VllmEngine.load``."""
        self._core.check_alive()
        if not self.held:
            raise EngineError(f"{self._core.name} must be paused before version {update.version} is loaded")
        self.broken = f"the load of version {update.version} was interrupted"
        try:
            await self._transfer(self._load(update), f"could not load version {update.version}")
        except WeightSyncError as error:
            self.broken = f"the load of version {update.version} failed: {error}"
            raise
        self.broken = None

    async def stage(self, update: WeightUpdate) -> bool:
        """See ``VllmEngine.stage``."""
        self._core.check_alive()
        if self._transport != "gloo":
            return False
        await self._transfer(self._update(update, stage=True), f"could not begin to receive version {update.version}")
        return True

    async def _update(self, update: WeightUpdate, *, stage: bool = False) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest  # noqa: PLC0415 -- optional, heavy

        llm = self._core.llm
        if not self._update_open:
            await llm.start_weight_update()
        self._update_open = True
        try:
            await llm.update_weights(WeightTransferUpdateRequest(update_info=update_info(update, stage=stage)))
        except Exception:
            self._update_open = False  # vLLM closes an update that failed
            raise

    async def _load(self, update: WeightUpdate) -> None:
        await self._update(update)
        llm = self._core.llm
        await llm.finish_weight_update(str(update.version))
        self._update_open = False
        self.version = update.version
        for stream in list(self._streams):
            if stream.queue is not None and not stream.sampled:
                stream.restart = True
                await llm.abort(stream.request_id)

    async def _transfer(self, call: Coroutine[Any, Any, T], what: str) -> T:
        """A call that waits for the other ranks of the weight group."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call
        except TimeoutError:
            limit = f"{self._timeout_s:g} s (weights.timeout_s and a margin)"
            raise WeightSyncError(f"{self._core.name} {what}: no answer within {limit}") from None
        except Exception as error:
            told = self._core.translated(error, what)
            raise (told if isinstance(told, EngineDeadError) else WeightSyncError(str(told))) from error
