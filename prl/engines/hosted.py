"""The controller's half of an engine that lives in a host process: its streams, its state, and nothing heavy.

The other half is what the process runs: ``vllm_host.py`` or ``transformers_host.py``. The controller imports neither
torch nor vLLM nor transformers, decodes one message for many streams, and wakes a stream when it has news.

Invariants:

- A stream's news queue up, at most ``max_tokens`` tokens of them, so a slow consumer delays nobody; what it did not
  take in time reaches it in fewer, longer chunks, each still of one version.
- The host's end ends every open stream with ``EngineDeadError`` and the last lines of its log; a host that should move
  and sends no token for ``engine.token_timeout_s`` is killed, so a stream never hangs.
- After a failed or interrupted load the host stays paused until a load succeeds: until then it does not resume, new
  streams are refused, open ones wait.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import ClassVar

from prl.config import EngineConfig
from prl.engines.base import Decoding, EngineStatistics, Standstill
from prl.engines.checks import bounded, check_tokens
from prl.engines.host_link import Link
from prl.engines.host_protocol import (
    Cancel,
    Connect,
    Failed,
    Generate,
    Load,
    Pause,
    Reply,
    Resume,
    Score,
    Stage,
    Start,
    Swap,
    Tokens,
)
from prl.engines.inbox import Inbox
from prl.engines.meter import Meter
from prl.errors import EngineDeadError, EngineError, WeightSyncError
from prl.process import tail
from prl.types import TokenChunk, WeightGroup, WeightUpdate
from prl.waits import waiting

_REPLY_MARGIN_S = 5.0
"""The host's own deadline is the better told one, so the wait for its answer is this much longer."""


class HostedEngine:
    """One host process; see ``engines/base.py`` for the protocol.

    Args:
        name: stands in every message about the engine; ``<name>.log`` is where the process prints.
        module: what the process runs.
        environment: what it sees besides the controller's environment.
        start: the first request.
        log_dir: where its log is written.
    """

    library: ClassVar[str] = "the host"
    """What samples there, as people call it."""

    def __init__(self, *, name: str, module: str, environment: Mapping[str, str], start: Start, log_dir: Path) -> None:
        self.name = name
        self.num_workers = start.config.tensor_parallel_size
        self._start: Start = start
        self._config: EngineConfig = start.config
        self._log = log_dir / f"{name}.log"
        self._link = Link(
            name,
            module,
            environment,
            self._log,
            on_news=self._take,
            on_end=self._end,
            stalled=self._stalled,
            send_timeout_s=start.config.token_timeout_s,
        )
        self._ids = itertools.count()
        self._streams: dict[int, Inbox] = {}
        self._meter = Meter()
        self._vocab_size = 0
        self._version = 0
        self._paused = False
        self._broken: str | None = None
        self._transfer_timeout_s = 0.0

    # Life ---------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the host and wait until it serves the checkpoint's weights as version 0.

        Raises:
            EngineDeadError: the host ended; carries the last lines of its log.
            EngineError: it was not ready within ``engine.start_timeout_s``.
        """
        timeout_s = self._config.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                with waiting(self.name, "its process starts", limit_s=timeout_s):
                    await self._link.start()
                loads = f"{self.library} loads the model"
                reply = await self._link.call(self._start, timeout_s, EngineError, doing=loads)
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

    async def failed(self) -> str:
        """Wait until this engine is dead, then return why with its last log lines."""
        return await self._link.failed()

    async def close(self) -> None:
        """End the host, all that it started, and every open stream. Idempotent."""
        await self._link.close()

    def statistics(self) -> EngineStatistics:
        """What it holds and did so far."""
        return EngineStatistics(
            version=self._version,
            running=len(self._streams),
            tokens_generated=self._meter.num_tokens,
            busy_s=self._meter.busy_s(),
            stream_s=self._meter.stream_s(),
            paused=self._paused,
            dead=self._link.reason is not None,
        )

    # Streams ------------------------------------------------------------------------------------------------------

    async def generate(self, token_ids: list[int], decoding: Decoding) -> AsyncGenerator[TokenChunk, None]:
        """Continue ``token_ids``. Iterate under ``contextlib.aclosing``.

        Raises:
            EngineDeadError: the host ended, or was killed because it did not move.
            EngineError: the request cannot be served, or the last load failed.
        """
        self._check_serves()
        check_tokens(self.name, token_ids, self._vocab_size)
        decoding = bounded(decoding, len(token_ids), self._config.max_model_len)
        number, inbox = next(self._ids), Inbox()
        self._streams[number] = inbox
        self._meter.update(num_streams=len(self._streams))
        ended = False
        try:
            await self._link.send(Generate(stream=number, token_ids=token_ids, decoding=decoding))
            while not ended:
                chunk = await inbox.take()
                ended = chunk.finish is not None
                yield chunk
        except EngineError:
            ended = True  # told by the host, or it is gone: there is nothing to free
            raise
        finally:
            del self._streams[number]
            self._meter.update(num_streams=len(self._streams))
            if not ended and self._link.reason is None:
                await self._link.send(Cancel(stream=number))

    def _take(self, message: Tokens | Failed) -> None:
        """What the host sampled; that of a stream that was just closed is of no use any more."""
        if isinstance(message, Failed):
            if (inbox := self._streams.get(message.stream)) is not None:
                inbox.fail(EngineError(f"{self.name}: {message.error}"))
            return
        num_tokens, streams = 0, self._streams
        for delta in message.deltas:
            num_tokens += len(delta.token_ids)
            if (inbox := streams.get(delta.stream)) is not None:
                inbox.put(delta.token_ids, delta.logprobs, message.version, delta.finish)
        self._meter.count(num_tokens)

    def _end(self) -> None:
        for inbox in self._streams.values():
            inbox.fail(EngineDeadError(self._link.reason))

    def _stalled(self) -> str | None:
        limit_s = self._config.token_timeout_s
        if self._meter.stalled_s() <= limit_s:
            return None
        return f"{self.name} gave no token for engine.token_timeout_s = {limit_s:g} s"

    def _check_serves(self) -> None:
        self._link.check_alive()
        if self._broken is not None:
            raise EngineError(f"{self.name} serves nothing until a load succeeds: {self._broken}")

    # Weights ------------------------------------------------------------------------------------------------------

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """Join the weight group, leaving the one joined before; its workers take ranks ``rank_offset ...``.

        Raises:
            WeightSyncError: the group did not come together in its time, or is of another transport.
        """
        self._link.check_alive()
        if group.transport != self._start.transport:
            raise WeightSyncError(
                f"{self.name} receives weights over {self._start.transport!r}, not over {group.transport!r}"
            )
        self._transfer_timeout_s = group.timeout_s + _REPLY_MARGIN_S
        await self._link.call(Connect(group=group, rank=rank_offset), self._transfer_timeout_s, WeightSyncError)

    async def stage(self, update: WeightUpdate) -> bool:
        """Begin to receive ``update`` beside generation, if the transport can.

        Raises:
            WeightSyncError: the host is in no weight group.
        """
        self._link.check_alive()
        if self._start.transport != "gloo":
            return False
        await self._link.call(Stage(update=update), self._transfer_timeout_s, WeightSyncError)
        return True

    async def pause(self) -> None:
        """Stop between two decode steps; everything sampled so far is with the streams on return."""
        self._link.check_alive()
        self._paused = True
        self._meter.update(paused=True)
        await self._link.call(Pause(), self._config.token_timeout_s)

    async def load(self, update: WeightUpdate) -> None:
        """Receive ``update`` and serve it from the next token on.

        Raises:
            WeightSyncError: the update does not fit the model, or its transfer failed.
            EngineError: the engine is not paused.
        """
        self._link.check_alive()
        if not self._paused:
            raise EngineError(f"{self.name} must be paused before version {update.version} is loaded")
        await self._loaded(update, Load(update=update))

    async def swap(self, update: WeightUpdate) -> Standstill:
        """Pause, serve what was staged from the next token on, and resume, in one message.

        Raises:
            WeightSyncError: the update does not fit the model, or another was staged.
        """
        self._link.check_alive()
        self._paused = True
        self._meter.update(paused=True)
        reply = await self._loaded(update, Swap(update=update))
        self._paused = False
        self._meter.update(paused=False)
        return reply.standstill

    async def _loaded(self, update: WeightUpdate, request: Load | Swap) -> Reply:
        """Ask for new weights; the engine serves nothing while that is not known to have succeeded."""
        self._broken = f"the load of version {update.version} was interrupted"
        try:
            reply = await self._link.call(request, self._transfer_timeout_s, WeightSyncError)
        except WeightSyncError as error:
            self._broken = f"the load of version {update.version} failed: {error}"
            raise
        self._broken = None
        self._version = update.version
        return reply

    async def resume(self) -> None:
        """Go on with the streams that were open.

        Raises:
            EngineError: the last load failed.
        """
        self._check_serves()
        await self._link.call(Resume(), self._config.token_timeout_s)
        self._paused = False
        self._meter.update(paused=False)

    async def score(self, token_ids: list[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first, under the current weights (length L - 1).

        Raises:
            EngineError: the tokens do not fit, or a kind that computes nothing while paused (vLLM) is paused.
        """
        self._link.check_alive()
        check_tokens(self.name, token_ids, self._vocab_size)
        return (await self._link.call(Score(token_ids=token_ids), self._config.token_timeout_s)).logprobs
