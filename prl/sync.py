"""One weight push: stage || publish, pause, load, resume; one deadline, one error that names who failed; and its proof.

Invariants:

- All or nothing: after ``push`` returns, every engine serves the new version; if it raises, the run ends. Engines that
  may not all serve the new version are not resumed.
- A push that failed because of a side that was started again since is done again, from its beginning.
- Sending and receiving are one collective: when either side fails, the other is not waited for.
- A push that is verified is followed by proof: on a few fixed tokens the engines' log-probabilities under the new
  weights agree with the trainer's, and have moved where the trainer's have. A transfer that reports success and moved
  nothing does not pass, unless the trainer's own moved by less than ``STANDS_STILL`` of the tolerance since the last
  proof: old and new weights are then the same as far as can be told.
- Neither the engines nor the trainer wait for the proof: it is asked for beside what they do next. Nothing comes of
  weights that fail it: a step whose batch has a token of theirs begins, and the next version is pushed, after the
  proof. The first push has its proof before it returns.
- Who keeps the accounts is told before an engine can sample with weights that are to be proven, and once they are: a
  run that ends in between uses nothing of theirs later.
- Nobody leaves the weight group while a push or a proof is under way: each holds ``lock`` from beginning to end.
- A push that was interrupted is never followed by another as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import msgspec

from prl.deadlines import awake_timeout
from prl.errors import PrlError, WeightSyncError
from prl.failure import SideError, raise_as_it_was, together
from prl.records import Proven, Unproven
from prl.trainer.base import Trainer
from prl.types import TensorSpec, WeightUpdate
from prl.waits import Wait, current, waiting

STANDS_STILL = 0.1
"""Less than this part of how far the trainer's log-probabilities moved is no movement; less than this part of the
tolerance is too little of the trainer's to judge by, for rounding moves an engine's as far."""


class Receivers(Protocol):
    """The engines as one: the pool."""

    async def stage(self, update: WeightUpdate) -> bool:
        """Begin to receive the update beside generation; False where that is left to ``load``."""
        ...

    async def pause(self) -> None:
        """Stop every engine between two decode steps."""
        ...

    async def load(self, update: WeightUpdate) -> None:
        """Receive the update on every engine, if it was not staged, and serve it."""
        ...

    async def resume(self) -> None:
        """Go on everywhere."""
        ...

    async def score(self, token_ids: list[int]) -> dict[str, list[float]]:
        """Log-probabilities of the tokens after the first, by engine name."""
        ...


async def _nothing() -> None:
    """All sides stay where they are."""


async def _not_mended(_: int) -> bool:
    """What failed stays failed."""
    return False


class PushReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one push cost and how well it agrees."""

    version: int
    pause_s: float
    """Seconds from the request to stand still until the last engine went on."""
    drain_s: float
    """Of these, until the last engine had finished the step that it was in."""
    publish_s: float
    """Seconds of the transfer, until the last engine had received it; and loaded it, where it was not staged."""


class WeightSync:
    """Pushes versions of the weights from one trainer into many engines."""

    def __init__(
        self,
        trainer: Trainer,
        engines: Receivers,
        *,
        transport: str,
        manifest: list[TensorSpec],
        probe: list[int],
        tolerance: float,
        gap_of: Callable[[list[float]], float] = max,
        timeout_s: float,
        verify_every: int,
        lock: asyncio.Lock | None = None,
        join: Callable[[], Awaitable[None]] = _nothing,
        mend: Callable[[int], Awaitable[bool]] = _not_mended,
        record: Callable[[Unproven | Proven], None] = lambda _: None,
    ) -> None:
        """Make the pusher.

        ``gap_of`` makes one number of the probe's differences, their maximum or a mean; ``lock`` is held during a push;
        ``join`` brings all sides into one weight group; ``mend`` says whether a failed push may be done again;
        ``record`` writes down which weights are to be proven, and that they are.
        """
        self._record = record
        self._join, self._mend, self._lock = join, mend, lock or asyncio.Lock()
        self._trainer, self._engines = trainer, engines
        self._transport, self._manifest = transport, manifest
        self._probe = probe if len(probe) > 1 else probe * 2  # a log-probability needs a token before its own
        self._tolerance, self._gap_of, self._verify_every = tolerance, gap_of, verify_every
        self._timeout_s = timeout_s
        self._num_pushes = 0
        self._proven: tuple[list[float], dict[str, list[float]]] | None = None
        self._expected: list[float] | None = None
        """The trainer's log-probabilities of the probe, where the push that ended last is not proven yet."""
        self._owes_proof = False
        """Whether the proof of a push found nobody to ask."""
        self._is_pushed = asyncio.Event()
        self._proof: Wait | None = None
        """What a proof under way waits for."""
        self.gap_mean: float | None = None
        """The mean of the probe's differences at the last proof, of the worst engine; None before the first."""
        self.verify_gap: float | None = None
        """How far the probe's log-probabilities of the worst engine were from the trainer's at the last proof."""
        self.version = -1
        """The version that every engine serves; -1 before the first push."""
        self._under_way: str | None = None

    async def push(self, version: int) -> PushReport:
        """Make every engine serve the trainer's current weights as ``version``; the version before is proven first."""
        async with self._alone(f"weight update to version {version}"):
            await self._prove()
            report = await self._push(version)
            if self._num_pushes == 1:
                await self._prove()
            return report

    async def unproven(self) -> None:
        """Wait for a push that is not proven."""
        await self._is_pushed.wait()

    @property
    def is_proven(self) -> bool:
        """Whether nothing is to be proven of the version that every engine serves."""
        return self._expected is None

    async def prove(self) -> None:
        """Prove the last push, if it is to be verified and has not been.

        Raises:
            WeightSyncError: an engine does not serve the trainer's weights.
        """
        async with self._alone("the weights"):
            self._proof = current()
            await self._prove()

    @asynccontextmanager
    async def _alone(self, who: str) -> AsyncIterator[None]:
        """Nobody else pushes, proves, joins or leaves meanwhile."""
        with waiting(who, "the proof of the version before", on=lambda: [self._proof]):
            await self._lock.acquire()
        try:
            yield
        finally:
            self._proof = None
            self._lock.release()

    async def _push(self, version: int) -> PushReport:
        if self._under_way is not None:
            raise WeightSyncError(f"{self._under_way} was interrupted, so the engines' weights are unknown; restart")
        self._under_way = f"the update to version {version}"
        while True:
            what = f"weight update to version {version}"
            try:
                with waiting(what, "engines and trainer are joined"):
                    await self._join()
                with waiting(what, limit_s=self._timeout_s):
                    report = await self._attempt(version)
                break
            except PrlError as error:
                failed = error
            with waiting(what, "it failed, and who failed it is mended"):
                is_mended = await self._mend(version)
            if not is_mended:
                raise_as_it_was(failed)
        self._under_way = None
        self.version = version
        self._num_pushes += 1
        return report

    async def _attempt(self, version: int) -> PushReport:
        pending: dict[str, str] = {}
        try:
            async with awake_timeout(self._timeout_s):
                times = await self._swap(version, pending)
        except SideError as failed:
            raise WeightSyncError(f"{self._under_way} failed on the side of the {failed}") from failed.error
        except TimeoutError:
            raise self._late(self._under_way, pending) from None
        return PushReport(version=version, **times)

    async def _swap(self, version: int, pending: dict[str, str]) -> dict[str, float]:
        """Send and load, with the engines still for as little of it as they can be; returns the report's times."""
        clock = asyncio.get_running_loop().time
        update = WeightUpdate(version=version, transport=self._transport, manifest=self._manifest)
        engines, publish = self._engines, partial(self._trainer.publish, update)
        if self._is_verified():
            self._record(Unproven(version=version))
        begun = clock()
        staged = (await together(pending, "staging", engines=partial(engines.stage, update)))["engines"]
        if staged:
            await together(pending, "transfer", trainer=publish)
        arrived = clock()
        await together(pending, "pause", engines=engines.pause)
        still = clock()
        if staged:
            await together(pending, "load", engines=partial(engines.load, update))
        else:
            await together(
                pending, "transfer", patient={"trainer"}, trainer=publish, engines=partial(engines.load, update)
            )
        loaded = clock()
        await together(pending, "resume", engines=engines.resume)
        resumed = clock()
        if self._is_verified():
            score = partial(self._trainer.score, self._probe)
            self._expected = (await together(pending, "verification", trainer=score))["trainer"]
            self._is_pushed.set()
        return {
            "pause_s": resumed - arrived,
            "drain_s": still - arrived,
            "publish_s": arrived - begun if staged else loaded - still,
        }

    def _is_verified(self) -> bool:
        """Whether the push under way is to be proven; the first always is."""
        every = self._verify_every
        return self._num_pushes == 0 or self._owes_proof or (every > 0 and self._num_pushes % every == 0)

    async def _prove(self) -> None:
        """Compare both sides on the probe. An engine that dies of it is mended; the others are asked again."""
        mended = False
        while (expected := self._expected) is not None:
            try:
                found = await self._asked(resume=mended)
                break
            except PrlError as error:
                failed = error
            if not (mended := await self._mend(self.version)):
                raise_as_it_was(failed)
        else:
            return
        if not found:  # nobody is left who could be asked: whoever comes is pushed to, and that push is proven
            self._expected, self._owes_proof = None, True
            self._is_pushed.clear()
            return
        self.verify_gap = self._largest_gap(self.version, expected, found)
        self.gap_mean = max(statistics.fmean(_differences(expected, of_one)) for of_one in found.values())
        self._check_moved(self.version, expected, found)
        self._proven, self._expected, self._owes_proof = (expected, found), None, False
        self._record(Proven(version=self.version))
        self._is_pushed.clear()

    async def _asked(self, *, resume: bool) -> dict[str, list[float]]:
        """What the engines say of the probe; ``resume``: mending has paused them, and who is paused says nothing."""
        what, pending = f"the proof of version {self.version}", dict[str, str]()
        try:
            with waiting(what, limit_s=self._timeout_s):
                async with awake_timeout(self._timeout_s):
                    if resume:
                        await together(pending, "resume", engines=self._engines.resume)
                    score = partial(self._engines.score, self._probe)
                    found: dict[str, list[float]] = (await together(pending, "verification", engines=score))["engines"]
        except SideError as failed:
            raise WeightSyncError(f"{what} failed on the side of the {failed}") from failed.error
        except TimeoutError:
            raise self._late(what, pending) from None
        return found

    def _late(self, what: str | None, pending: dict[str, str]) -> WeightSyncError:
        waits = ", ".join(f"{side} ({doing})" for side, doing in pending.items())
        return WeightSyncError(f"{what} took longer than weights.timeout_s = {self._timeout_s:g} s; not done: {waits}")

    def _largest_gap(self, version: int, expected: list[float], by_engine: dict[str, list[float]]) -> float:
        largest = 0.0
        for engine, found in by_engine.items():
            gap = self._gap_of(_differences(expected, found))
            if gap > self._tolerance:
                raise WeightSyncError(
                    f"{engine} does not serve the trainer's weights of version {version}: on {len(expected)} tokens the"
                    f" log-probabilities differ by {gap:.3g}, above weights.verify_tolerance = {self._tolerance:g}"
                )
            largest = max(largest, gap)
        return largest

    def _check_moved(self, version: int, expected: list[float], by_engine: dict[str, list[float]]) -> None:
        """Refuse an engine that agrees within the tolerance, but says what it said at the last proof."""
        if self._proven is None:
            return
        before, before_by_engine = self._proven
        moved = self._gap_of(_differences(before, expected))
        if moved <= STANDS_STILL * self._tolerance:
            return
        for engine, found in by_engine.items():
            if engine not in before_by_engine:
                continue
            stood = self._gap_of(_differences(before_by_engine[engine], found))
            if stood < STANDS_STILL * moved:
                raise WeightSyncError(
                    f"{engine} does not serve the trainer's weights of version {version}: on {len(expected)} tokens the"
                    f" trainer's log-probabilities moved by {moved:.3g} since the last proof, its own by {stood:.3g}"
                )


def _differences(expected: list[float], found: list[float]) -> list[float]:
    """Differences between two lists of log-probabilities; infinite where they cannot be compared."""
    if not len(expected) == len(found) > 0:
        return [math.inf]
    gaps = [abs(a - b) for a, b in zip(expected, found, strict=True)]
    return gaps if all(map(math.isfinite, gaps)) else [math.inf]
