"""An engine that is a ``vllm serve`` process elsewhere, driven through its own routes (``docs/servers.md``).

Invariants, besides those of ``base.py``:

- The server is *claimed* when it is opened: the weight versions that it names from then on begin with a word of this
  engine's. Another word means that it was started again, or that another run has taken it: its weights are not this
  run's, and the engine is dead. Its tokens cannot be taken for ours.
- At most ``engine.max_num_seqs`` requests are with the server; the others wait here, in order; none is handed over
  while it stands still. Each is salted with the claim and the number of the load whose weights will serve it; one that
  has sampled nothing when a load completes is submitted again.
- A server that cannot be reached, does not answer in time, or gives no token for ``engine.token_timeout_s`` though it
  should, is given up, not killed: it is not ours. When its seat opens it again it is claimed anew, and serves once it
  has received weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator

from prl.config import EngineConfig
from prl.engines.base import Decoding, EngineStatistics, Standstill, swap_by_steps
from prl.engines.checks import bounded, check_tokens
from prl.engines.meter import Meter
from prl.engines.server_link import ServerAwayError, ServerLink, ServerRefusedError
from prl.engines.server_questions import Wanted, examine, scores
from prl.engines.server_stream import ServerStream, Superseded, body_of
from prl.engines.server_weights import ServerWeights
from prl.errors import EngineDeadError, EngineError, EngineStalledError, WeightSyncError
from prl.log import get_logger
from prl.types import TokenChunk, WeightGroup, WeightUpdate

_CHECK_S = 1.0
"""How often a server is asked whether it is there, and still ours."""
_LEAVE_S = 2.0
"""Longest wait for a server that is let go to take notice."""
log = get_logger(__name__)


class ServerEngine:
    """One address, with however many data-parallel ranks behind it.

    Args:
        index: names the engine, ``engine-<index>``.
        url: where the server listens.
        config: ``[engine]``.
        wanted: what the server must be.
    """

    def __init__(self, *, index: int, url: str, config: EngineConfig, wanted: Wanted) -> None:
        self.name, self.num_workers, self._num_ranks = f"engine-{index}", 1, 1
        self._config, self._wanted = config, wanted
        self._link = ServerLink(self.name, url, config.api_key_env)
        self._claim = secrets.token_hex(4)
        self._weights = ServerWeights(self._link, self._claim)
        self._streams: set[ServerStream] = set()
        self._room = asyncio.Semaphore(config.max_num_seqs)
        self._meter = Meter()
        self._num_open = 0
        self._going, self._ended = asyncio.Event(), asyncio.Event()
        self._is_open = self._paused = False
        self._reason: str | None = None

    # Life ---------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Wait for the server, see whether it will do, and claim it.

        Raises:
            EngineError: it will not do, or did not answer within ``engine.start_timeout_s``.
        """
        timeout_s = self._config.start_timeout_s
        try:
            await self._link.open()
            async with asyncio.timeout(timeout_s):
                await self._link.answers(timeout_s=timeout_s)
                facts = await examine(self._link, self._wanted)
                await self._weights.take_over()
                if facts.is_paused:  # as a run left it that was killed, so that it could not be asked everything
                    facts = await examine(self._link, self._wanted)
        except TimeoutError:
            await self.close()
            raise EngineError(
                f"nobody answered at the address of {self._link.who} within engine.start_timeout_s = {timeout_s:g} s:"
                " is vllm serve running there, and is the address in engine.servers right?"
            ) from None
        except BaseException:
            await self.close()
            raise
        if not facts.names_versions:
            log.warning(
                "a server has no plug-in of prl: tokens of sequences that live through an update come at their end",
                server=self._link.who,
            )
        self.num_workers, self._num_ranks = facts.num_workers, facts.num_ranks
        self._is_open = True
        self._going.set()

    async def failed(self) -> str:
        """Wait until this engine is dead, then return why; asks the server every second."""
        while self._reason is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await self._ended.wait()
            if self._reason is None:
                await self._check()
        return self._reason

    async def close(self) -> None:
        """Let the server go, as it was found: not paused, in no weight group. Idempotent."""
        was_alive = self._is_open and self._reason is None
        self._end(f"{self._link.who} is closed")
        if was_alive:
            await self._weights.let_go(timeout_s=_LEAVE_S)
        await self._link.close()

    def statistics(self) -> EngineStatistics:
        """What it holds and did so far."""
        return EngineStatistics(
            version=self._weights.version,
            running=self._num_open,
            tokens_generated=self._meter.num_tokens,
            busy_s=self._meter.busy_s(),
            stream_s=self._meter.stream_s(),
            paused=self._paused,
            dead=self._reason is not None,
        )

    async def _check(self) -> None:
        """Give it up if it is gone, not ours, or should move and does not."""
        limit_s = self._config.token_timeout_s
        if self._meter.stalled_s() > limit_s:
            self._end(f"{self._link.who} gave no token for engine.token_timeout_s = {limit_s:g} s")
        elif self._is_open and not self._weights.is_moving:
            num_moves = self._weights.num_moves
            try:
                self._version_of(await self._weights.label(timeout_s=limit_s))
            except TimeoutError:
                if self._weights.num_moves == num_moves:
                    self._end(f"{self._link.who} did not answer within engine.token_timeout_s = {limit_s:g} s")
            except EngineError as error:
                # Between the ranks' taking up a version a server says that they do not agree: it is asked again.
                if self._weights.num_moves == num_moves:
                    self._end(str(error))

    def _version_of(self, label: str) -> int:
        """The version of this run that a label stands for. Raises EngineDeadError: it is none of this run's."""
        claim, _, version = label.partition("/")
        if claim != self._claim:
            self._end(
                f"{self._link.who} serves the weights of somebody else ({label!r}): it was started again, or another"
                " run uses it"
            )
            raise EngineDeadError(self._reason)
        return int(version)

    def _end(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
            self._ended.set()
            self._going.set()
            for stream in self._streams:
                stream.drop()

    def _check_alive(self) -> None:
        if self._reason is not None:
            raise EngineDeadError(self._reason)
        if not self._is_open:
            raise EngineError(f"{self.name} is not open")

    def _check_serves(self) -> None:
        self._check_alive()
        if self._weights.broken is not None:
            raise EngineError(f"{self.name} serves nothing until a load succeeds: {self._weights.broken}")

    # Streams ------------------------------------------------------------------------------------------------------

    async def generate(self, token_ids: list[int], decoding: Decoding) -> AsyncGenerator[TokenChunk, None]:
        """Continue ``token_ids``. Iterate under ``contextlib.aclosing``.

        Raises:
            EngineDeadError: the server is gone, or not ours any more.
            EngineStalledError: the connection of this stream broke, and the server is there.
            EngineError: the request cannot be served, or the last load failed.
        """
        self._check_serves()
        check_tokens(self.name, token_ids, self._wanted.sizes.get("vocab_size"))
        decoding = bounded(decoding, len(token_ids), self._config.max_model_len)
        self._num_open += 1
        self._meter.update(num_streams=self._num_open)
        try:
            async with self._room, contextlib.aclosing(self._sampled(token_ids, decoding)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._num_open -= 1
            self._meter.update(num_streams=self._num_open)

    async def _sampled(self, token_ids: list[int], decoding: Decoding) -> AsyncGenerator[TokenChunk, None]:
        while True:
            await self._going.wait()
            self._check_alive()
            body = body_of(token_ids, decoding, salt=self._weights.salt, stream_interval=self._config.stream_interval)
            stream = ServerStream(self._link, body, version=self._weights.version, version_of=self._version_of)
            self._streams.add(stream)
            try:
                async with contextlib.aclosing(stream.chunks()) as chunks:
                    async for chunk in chunks:
                        self._meter.count(len(chunk.token_ids))
                        yield chunk
                        if chunk.finish is not None:
                            return
            except Superseded:
                continue
            except ServerAwayError as error:
                await self._explain(error)
            finally:
                self._streams.discard(stream)

    async def _explain(self, error: ServerAwayError) -> None:
        """Say what a stream that broke means: the server is gone, or only the connection is."""
        if self._reason is None:
            await self._check()
        self._check_alive()
        raise EngineStalledError(str(error)) from error

    # Weights ------------------------------------------------------------------------------------------------------

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """Join the weight group, leaving the one joined before; its workers take ranks ``rank_offset ...``.

        Raises:
            WeightSyncError: the group did not come together in its time, or is of another transport.
        """
        self._check_alive()
        if group.transport != self._wanted.transport:
            raise WeightSyncError(
                f"{self.name} receives weights over {self._wanted.transport!r}, not over {group.transport!r}"
            )
        await self._weights.connect(group, rank_offset)

    async def stage(self, update: WeightUpdate) -> bool:
        """Begin to receive ``update`` beside generation, if the transport can. Raises WeightSyncError."""
        self._check_alive()
        if self._wanted.transport != "gloo":
            return False
        await self._weights.stage(update)
        return True

    async def swap(self, update: WeightUpdate) -> Standstill:
        """Pause, load, resume: the server has a route for each."""
        return await swap_by_steps(self, update)

    async def pause(self) -> None:
        """Stop between two decode steps."""
        self._check_alive()
        self._paused = True
        self._going.clear()
        self._meter.update(paused=True)
        await self._control("/pause?mode=keep&clear_cache=false")

    async def load(self, update: WeightUpdate) -> None:
        """Receive ``update`` and serve it from the next token on.

        Raises:
            WeightSyncError: the update does not fit the model, or its transfer failed.
            EngineError: the engine is not paused.
        """
        self._check_alive()
        if not self._paused:
            raise EngineError(f"{self.name} must be paused before version {update.version} is loaded")
        await self._weights.load(update)
        for stream in list(self._streams):
            stream.updated()

    async def resume(self) -> None:
        """Go on with the streams that were open.

        Raises:
            EngineError: the last load failed.
        """
        self._check_serves()
        await self._control("/resume")
        self._going.set()
        self._paused = False
        self._meter.update(paused=False)

    async def score(self, token_ids: list[int]) -> list[float]:
        """Log-probability at temperature 1 of each token after the first, under the current weights (length L - 1).

        Of every data-parallel rank, one behind the other.

        Raises:
            EngineError: the tokens do not fit, or the engine is paused.
        """
        self._check_alive()
        check_tokens(self.name, token_ids, self._wanted.sizes.get("vocab_size"))
        if self._paused:
            raise EngineError(f"{self.name} is paused and cannot score; resume it first")
        try:
            told = await scores(
                self._link,
                token_ids,
                salt=self._weights.salt,
                timeout_s=self._config.token_timeout_s,
                num_ranks=self._num_ranks,
            )
            return [logprob for rank in told for logprob in rank]
        except (TimeoutError, ServerAwayError) as error:
            self._lost("score", error)
            raise EngineDeadError(self._reason) from None

    async def _control(self, path: str) -> None:
        """Ask it to stand still or go on. One that does not is given up: nobody knows what state it is in."""
        try:
            await self._link.ask("POST", path, timeout_s=self._config.token_timeout_s)
        except (TimeoutError, ServerAwayError, ServerRefusedError) as error:
            self._lost(path, error)
            raise EngineDeadError(self._reason) from None

    def _lost(self, asked: str, error: Exception) -> None:
        limit_s = self._config.token_timeout_s
        late = f"{self._link.who} did not answer {asked} within engine.token_timeout_s = {limit_s:g} s"
        self._end(late if isinstance(error, TimeoutError) else str(error))
