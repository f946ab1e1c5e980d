"""An engine of which only the pace is simulated: it leaps from one finished sequence to the next.

For ``prl simulate``, where a run has millions of decode steps; ``simulated.py`` takes every one of them, with contents
and faults of all kinds.

Invariants:

- Decode steps are a continuous position: all running streams move along it together, one token per unit, and a unit
  takes ``step_s(streams)`` seconds divided by the speed that the machine leaves it. Between two events (a stream comes,
  ends or is closed, a pause, another speed) the pace is constant, so one timer for the next end is all there is to do.
- Token i of a stream that began at position s was sampled at s + i, by the weights that served there. A stream gives
  its tokens when it ends, or its engine does, each with its own version as long as at most ``MOST_SPANS`` versions
  wrote it. Where more did, the first token has its own, so that the largest lag is exact, and the others have that of
  the middle of their span, one of ``MOST_SPANS - 1`` equal ones, which leaves the mean lag what it was.
- A stream's length depends on what ``length_of`` makes of its prompt and seed and on nothing else; one that is
  continued elsewhere has what is left of it.
- At most ``max_num_seqs`` streams run; the others wait, first in first out.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Protocol

from prl.engines.base import Decoding, EngineStatistics, Standstill, swap_by_steps
from prl.engines.meter import Meter
from prl.errors import EngineDeadError, EngineError
from prl.simulation import Meeting
from prl.types import Finish, TokenChunk, WeightGroup, WeightUpdate

ROUNDING = 1e-6
"""Positions that differ by less are the same."""
TOKEN, LOGPROB = 1, -0.5
MOST_SPANS = 5
"""Chunks of one stream at most: each costs as much as all tokens in it."""


class Share(Protocol):
    """The part of the machine that an engine computes on."""

    def speed(self) -> float:
        """How fast it is now, 1 where nobody else is at work on it."""
        ...

    def busy(self, engine: PacedEngine, *, is_busy: bool) -> None:
        """The engine begins or ends computing; whoever's speed that changes is told by ``retime``."""
        ...


class _Stream:
    """One request: where on the engine's way it began and ends."""

    __slots__ = ("begin", "end", "finish", "is_over", "length", "over")

    def __init__(self, length: int, finish: Finish | None, over: asyncio.Future[EngineError | None]) -> None:
        self.length, self.finish, self.over = length, finish, over
        self.begin = self.end = 0.0
        self.is_over = False


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
        self._max_num_seqs, self._step_s, self._length_of = max_num_seqs, step_s, length_of
        self._share, self._open_s, self._dies_after_s, self._fails = share, open_s, dies_after_s, fails
        self._numbers = itertools.count()
        self._ends: list[tuple[float, int, _Stream]] = []
        self._num_running = 0
        self._waiting: deque[_Stream] = deque()
        self._position = self._sampled = self._since = self._begins = 0.0
        self.most_held = 0.0
        """Most tokens that its running streams had sampled at once."""
        self._loads, self._versions = [-math.inf], [0]
        self._meter = Meter()
        self._paused, self._is_busy, self._closed = False, False, True
        self._death: str | None = None
        self._died = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._death_timer: asyncio.TimerHandle | None = None
        self._meeting: Meeting | None = None
        self._loop: asyncio.AbstractEventLoop

    async def open(self) -> None:
        """Take ``open_s`` to start."""
        self._loop = asyncio.get_running_loop()
        await asyncio.sleep(self._open_s)
        self._closed, self._since = False, self._now()
        if self._dies_after_s < math.inf:
            self._death_timer = self._loop.call_later(self._dies_after_s, self.kill)

    async def connect(self, group: WeightGroup, rank_offset: int) -> None:
        """Join the weight group, a meeting inside this event loop."""
        self._check_alive()
        self._meeting = await Meeting.join(group, rank_offset)

    async def generate(self, token_ids: list[int], decoding: Decoding) -> AsyncGenerator[TokenChunk, None]:
        """Continue the prompt whose number is the first of ``token_ids``."""
        self._check_alive()
        stream = self._admit(token_ids[0], decoding)
        try:
            error = await stream.over
            for chunk in self._chunks(stream, error):
                yield chunk
            if error is not None:
                raise error
        finally:
            if not stream.is_over:
                self._drop(stream)

    async def stage(self, update: WeightUpdate) -> bool:  # noqa: ARG002 -- the protocol's
        """It receives in ``load``."""
        return False

    async def swap(self, update: WeightUpdate) -> Standstill:
        """Its three steps."""
        return await swap_by_steps(self, update)

    async def pause(self) -> None:
        """Stand still, at once: what is left of a decode step is a part of the update's time."""
        self._check_alive()
        self._advance()
        self._paused = True
        self._meter.update(paused=True)
        self._set_timer()

    async def load(self, update: WeightUpdate) -> None:
        """Receive the weights from the sender of the weight group."""
        self._check_alive()
        if self._meeting is None:
            raise EngineError(f"{self.name} is in no weight group; connect it")
        version, _ = await self._meeting.receive()
        self._check_alive()
        if version != update.version:
            raise EngineError(f"{self.name} was to load version {update.version} and was sent version {version}")
        self._loads.append(self._position)
        self._versions.append(version)

    async def resume(self) -> None:
        """Go on."""
        self._check_alive()
        self._paused, self._since = False, self._now()
        self._meter.update(paused=False)
        self._set_timer()

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
        self._advance()
        return EngineStatistics(
            version=self._versions[-1],
            running=self._num_running + len(self._waiting),
            tokens_generated=int(self._sampled + ROUNDING),
            busy_s=self._meter.busy_s(),
            stream_s=self._meter.stream_s(),
            paused=self._paused,
            dead=self._death is not None,
        )

    async def close(self) -> None:
        """Fail every open stream and stop."""
        if self._closed:
            return
        self._closed = True
        self._stop(EngineError(f"{self.name} was closed while the stream was open"))

    # ---- on its way --------------------------------------------------------------------------------------------------

    def retime(self) -> None:
        """The machine leaves it another speed from now on. Call ``settle`` before the speed changes."""
        self._set_timer()

    def settle(self) -> None:
        """Count what was sampled until now, at the speed there was."""
        self._advance()

    def _admit(self, prompt: int, decoding: Decoding) -> _Stream:
        seed = decoding.seed or 0
        wanted, left = self._length_of(prompt, seed) - decoding.num_known, decoding.max_tokens
        length = max(1, min(wanted, left))
        finish: Finish | None = "stop" if wanted <= left else "length"
        if self._fails(seed):
            length, finish = (length + 1) // 2, None
        stream = _Stream(length, finish, self._loop.create_future())
        self._waiting.append(stream)
        self._advance()
        self._start_waiting()
        self._set_timer()
        self._note_streams()
        return stream

    def _start_waiting(self) -> None:
        while self._waiting and self._num_running < self._max_num_seqs:
            stream = self._waiting.popleft()
            stream.begin, stream.end = self._position, self._position + stream.length
            self._begins += stream.begin
            self._num_running += 1
            heapq.heappush(self._ends, (stream.end, next(self._numbers), stream))

    def _advance(self) -> None:
        """Be where the time since the last event has brought it."""
        now = self._now()
        if self._num_running and not self._paused and now > self._since:
            moved = (now - self._since) / self._step_s(self._num_running) * self._share.speed()
            self._position += moved
            self._sampled += moved * self._num_running
            self.most_held = max(self.most_held, self._position * self._num_running - self._begins)
        self._since = now

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        is_busy = self._num_running > 0 and not self._paused
        if is_busy != self._is_busy:
            self._is_busy = is_busy
            self._share.busy(self, is_busy=is_busy)
        if is_busy and self._timer is None:  # telling the share may have set it
            left = max(0.0, self._ends[0][0] - self._position)
            delay_s = left * self._step_s(self._num_running) / self._share.speed()
            self._timer = self._loop.call_later(delay_s, self._arrive)

    def _arrive(self) -> None:
        """The next streams end here."""
        self._timer = None
        self._advance()
        here = self._position = max(self._position, self._ends[0][0])
        while self._ends and self._ends[0][0] <= here + ROUNDING:
            _, _, stream = heapq.heappop(self._ends)
            if not stream.is_over:
                failed = None if stream.finish else EngineError(f"{self.name} failed a stream")
                self._end(stream, failed)
        self._forget_closed()
        self._start_waiting()
        self._set_timer()
        self._note_streams()

    def _end(self, stream: _Stream, error: EngineError | None) -> None:
        stream.is_over = True
        self._num_running -= 1
        self._begins -= stream.begin
        if not stream.over.done():
            stream.over.set_result(error)

    def _drop(self, stream: _Stream) -> None:
        """Its consumer closed it."""
        if stream in self._waiting:
            self._waiting.remove(stream)
            stream.is_over = True
        else:
            self._advance()
            stream.over.cancel()
            self._end(stream, None)
            self._forget_closed()
            self._start_waiting()
            self._set_timer()
        self._note_streams()

    def _forget_closed(self) -> None:
        """The next end is that of a stream which still runs."""
        while self._ends and self._ends[0][2].is_over:
            heapq.heappop(self._ends)

    def _chunks(self, stream: _Stream, error: EngineError | None) -> Iterator[TokenChunk]:
        """What the stream sampled."""
        begin, length = stream.begin + ROUNDING, stream.length
        if error is not None:
            length = min(length, max(0, int(self._position - stream.begin + ROUNDING)))
        done = 0
        for until, version in self._spans(begin, length):
            yield TokenChunk(
                token_ids=[TOKEN] * (until - done),
                logprobs=[LOGPROB] * (until - done),
                version=version,
                finish=stream.finish if until == stream.length and error is None else None,
            )
            done = until

    def _spans(self, begin: float, length: int) -> list[tuple[int, int]]:
        """Tokens in a row as (the end, exclusive; the version), as told in the module."""
        loads, versions = self._loads, self._versions
        first, last = bisect_right(loads, begin), bisect_right(loads, begin + length - 1)
        if last - first < MOST_SPANS:
            ends = [min(length, math.ceil(loads[at] - begin)) for at in range(first, last)]
            found = zip([*ends, length], versions[first - 1 : last], strict=True)
            return [(end, version) for (end, version), before in zip(found, [0, *ends], strict=True) if end > before]
        spans = [(1, versions[first - 1])]
        for piece in range(1, MOST_SPANS):
            before, end = spans[-1][0], 1 + (length - 1) * piece // (MOST_SPANS - 1)
            if end > before:
                spans.append((end, versions[bisect_right(loads, begin + (before + end - 1) / 2) - 1]))
        return spans

    def _stop(self, error: EngineError) -> None:
        self._advance()
        for stream in [entry for _, _, entry in self._ends if not entry.is_over]:
            self._end(stream, error)
        for stream in self._waiting:
            stream.is_over, stream.length = True, 0
            stream.over.set_result(error)
        self._ends.clear()
        self._waiting.clear()
        self._set_timer()
        self._note_streams()
        if self._death_timer is not None:
            self._death_timer.cancel()

    # ---- state -------------------------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(self._death)
        if self._closed:
            raise EngineError(f"{self.name} is not open")

    def _note_streams(self) -> None:
        self._meter.update(num_streams=self._num_running + len(self._waiting))

    def _now(self) -> float:
        return self._loop.time()
