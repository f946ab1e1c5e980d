"""An engine of which only the pace is simulated: it leaps from one finished sequence to the next.

For ``prl simulate``, where a run has millions of decode steps; ``simulated.py`` takes every one of them, with contents
and faults of all kinds.

Invariants, besides those of ``paced_way.py`` (when a stream ends) and ``paced_versions.py`` (who wrote it):

- A stream gives its tokens when it ends, or its engine does.
- A stream's length depends on what ``length_of`` makes of its prompt and seed and on nothing else; one that is
  continued elsewhere has what is left of it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterator

from prl.engines.base import Decoding, EngineStatistics, Standstill, swap_by_steps
from prl.engines.paced_versions import ServedVersions
from prl.engines.paced_way import ROUNDING, Share, Stretch, Way
from prl.errors import EngineDeadError, EngineError
from prl.simulation import Meeting
from prl.types import Finish, TokenChunk, WeightGroup, WeightUpdate

TOKEN, LOGPROB = 1, -0.5


class PacedEngine:
    """See the module.

    Args:
        index: names it.
        max_num_seqs: streams that run at once.
        step_s: seconds of a decode step with so many streams.
        length_of: tokens that a stream behind these prompt tokens wants, by its seed.
        share: where it computes.
        open_s: how long its start takes.
        dies_after_s: seconds from its start to its death; infinite for never.
        fails: whether the stream with this seed fails half-way.
    """

    num_workers = 1

    def __init__(
        self,
        *,
        index: int,
        max_num_seqs: int,
        step_s: Callable[[int], float],
        length_of: Callable[[int, int], int],
        share: Share,
        open_s: float = 0.0,
        dies_after_s: float = math.inf,
        fails: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self.name = f"engine-{index}"
        self._length_of, self._fails = length_of, fails
        self._open_s, self._dies_after_s = open_s, dies_after_s
        self._way = Way(max_num_seqs=max_num_seqs, step_s=step_s, share=share)
        self._served = ServedVersions()
        self._paused, self._closed = False, True
        self._death: str | None = None
        self._died = asyncio.Event()
        self._death_timer: asyncio.TimerHandle | None = None
        self._meeting: Meeting | None = None

    async def open(self) -> None:
        """Take ``open_s`` to start."""
        await asyncio.sleep(self._open_s)
        self._closed = False
        if self._dies_after_s < math.inf:
            self._death_timer = asyncio.get_running_loop().call_later(self._dies_after_s, self.kill)

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """Join the weight group, a meeting inside this event loop."""
        self._check_alive()
        self._meeting = await Meeting.join(group, rank_offset)

    async def generate(self, token_ids: list[int], decoding: Decoding) -> AsyncGenerator[TokenChunk, None]:
        """Continue the prompt whose number is the first of ``token_ids``."""
        self._check_alive()
        length, finish = self._wanted(token_ids[0], decoding)
        stretch = self._way.admit(length)
        try:
            error = await stretch.over
            if error is None and finish is None:
                error = EngineError(f"{self.name} failed a stream")
            for chunk in self._chunks(stretch, finish if error is None else None):
                yield chunk
            if error is not None:
                raise error
        finally:
            self._way.drop(stretch)

    async def stage(self, update: WeightUpdate) -> bool:  # noqa: ARG002 -- the protocol's
        """It receives in ``load``."""
        return False

    async def swap(self, update: WeightUpdate) -> Standstill:
        """Its three steps."""
        return await swap_by_steps(self, update)

    async def pause(self) -> None:
        """Stand still, at once: what is left of a decode step is a part of the update's time."""
        self._check_alive()
        self._paused = True
        self._way.pause()

    async def load(self, update: WeightUpdate) -> None:
        """Receive the weights from the sender of the weight group."""
        self._check_alive()
        if self._meeting is None:
            raise EngineError(f"{self.name} is in no weight group; connect it")
        version, _ = await self._meeting.receive()
        self._check_alive()
        if version != update.version:
            raise EngineError(f"{self.name} was to load version {update.version} and was sent version {version}")
        self._served.serve(version, self._way.position)

    async def resume(self) -> None:
        """Go on."""
        self._check_alive()
        self._paused = False
        self._way.resume()

    async def score(self, token_ids: list[int]) -> list[float]:
        """The same for all weights, since there are none."""
        self._check_alive()
        return [LOGPROB] * (len(token_ids) - 1)

    async def failed(self) -> str:
        """Wait until it dies."""
        await self._died.wait()
        return str(self._death)

    def kill(self) -> None:
        """Die now; what the streams have is theirs."""
        if self._death is None:
            self._death = f"{self.name} died"
            self._stop(EngineDeadError(self._death))
            self._died.set()

    def statistics(self) -> EngineStatistics:
        """A snapshot; ``tokens_generated`` are whole ones."""
        way = self._way
        way.settle()
        return EngineStatistics(
            version=self._served.latest,
            running=way.num_streams(),
            tokens_generated=int(way.sampled + ROUNDING),
            busy_s=way.meter.busy_s(),
            stream_s=way.meter.stream_s(),
            paused=self._paused,
            dead=self._death is not None,
        )

    @property
    def most_held(self) -> float:
        """Most tokens that its running streams had sampled at once."""
        return self._way.most_held

    async def close(self) -> None:
        """Fail every open stream and stop."""
        if self._closed:
            return
        self._closed = True
        self._stop(EngineError(f"{self.name} was closed while the stream was open"))

    def _wanted(self, prompt: int, decoding: Decoding) -> tuple[int, Finish | None]:
        """How long a stream becomes, and how it ends; None: it fails."""
        seed = decoding.seed or 0
        wanted, left = self._length_of(prompt, seed) - decoding.num_known, decoding.max_tokens
        length = max(1, min(wanted, left))
        if self._fails(seed):
            return (length + 1) // 2, None
        return length, "stop" if wanted <= left else "length"

    def _chunks(self, stretch: Stretch, finish: Finish | None) -> Iterator[TokenChunk]:
        """What the stream sampled."""
        done = 0
        for until, version in self._served.spans(stretch.begin + ROUNDING, stretch.length):
            yield TokenChunk(
                token_ids=[TOKEN] * (until - done),
                logprobs=[LOGPROB] * (until - done),
                version=version,
                finish=finish if until == stretch.length else None,
            )
            done = until

    def _stop(self, error: EngineError) -> None:
        self._way.stop(error)
        if self._death_timer is not None:
            self._death_timer.cancel()

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(self._death)
        if self._closed:
            raise EngineError(f"{self.name} is not open")
