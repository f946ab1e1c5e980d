"""One weight push: every engine takes up the trainer's new version; one deadline, one error that names who failed.

Invariants:

- All or nothing: after ``push`` returns, every engine serves the new version; if it raises, the run ends. Until then an
  engine may serve either, and says of every token which; after a failure those that went on are stopped (``mend``).
- A staged version that is not whole on every engine is dropped: no engine is asked to serve it.
- A push that failed because of a side that was started again since is done again, from its beginning.
- Sending and receiving are one collective: when either side fails, the other is not waited for.
- The trainer takes no step before the last group has its weights, so what it sends is the same version for all.
- A push that is verified is followed by its proof (``proof.py``), by every engine of every group.
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
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from prl.deadlines import awake_timeout
from prl.errors import PrlError, WeightSyncError
from prl.failure import SideError, raise_as_it_was, together
from prl.proof import Proof
from prl.records import Proven, Unproven
from prl.trainer.base import Trainer
from prl.types import TensorSpec, WeightUpdate
from prl.update_ways import PushReport, Receivers, Sides
from prl.waits import Wait, current, waiting


async def _nothing() -> None:
    """All sides stay where they are."""


async def _not_mended(_: int) -> bool:
    """What failed stays failed."""
    return False


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
        staged: bool = True,
        lock: asyncio.Lock | None = None,
        join: Callable[[], Awaitable[None]] = _nothing,
        mend: Callable[[int], Awaitable[bool]] = _not_mended,
        record: Callable[[Unproven | Proven], None] = lambda _: None,
    ) -> None:
        """Make the pusher.

        ``probe``, ``tolerance`` and ``gap_of`` are of the proof; ``staged``: beside generation, where engines can;
        ``lock`` is held during a push; ``join`` brings all sides into one weight group; ``mend`` says whether a failed
        push may be done again; ``record`` writes down which weights are to be proven, and that they are.
        """
        self._record = record
        self._join, self._mend, self._lock = join, mend, lock or asyncio.Lock()
        self._trainer, self._engines, self._staged = trainer, engines, staged
        self._transport, self._manifest = transport, manifest
        self._judge, self._verify_every = Proof(probe, tolerance, gap_of), verify_every
        self._timeout_s = timeout_s
        self._num_pushes = 0
        self._expected: list[float] | None = None
        """The trainer's log-probabilities of the probe, where the push that ended last is not proven yet."""
        self._owes_proof = False
        """Whether the proof of a push found nobody to ask."""
        self._is_pushed = asyncio.Event()
        self._proof: Wait | None = None
        """What a proof under way waits for."""
        self.version = -1
        """The version that every engine serves; -1 before the first push."""
        self._under_way: str | None = None

    @property
    def gap_mean(self) -> float | None:
        """See ``Proof.gap_mean``."""
        return self._judge.gap_mean

    @property
    def verify_gap(self) -> float | None:
        """See ``Proof.gap``."""
        return self._judge.gap

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

    # ---- the push ----------------------------------------------------------------------------------------------------

    async def _push(self, version: int) -> PushReport:
        if self._under_way is not None:
            raise WeightSyncError(f"{self._under_way} was interrupted, so the engines' weights are unknown; restart")
        self._under_way = f"the update to version {version}"
        while True:
            what = f"weight update to version {version}"
            try:
                with waiting(what, "engines and trainer are joined"):
                    await self._join()
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
        update = WeightUpdate(version=version, transport=self._transport, manifest=self._manifest)
        pending: dict[str, str] = {}
        if self._is_verified():
            self._record(Unproven(version=version))
        turns = self._engines.turns(is_staged=self._staged)
        who = f"weight update to version {version}"
        async with self._in_time(who, f"the update to version {version}", pending, num_turns=len(turns)):
            sides = Sides(self._trainer, self._engines, pending)
            report = (await sides.staged(update) if self._staged else None) or await sides.plain(update)
            if self._is_verified():
                score = partial(self._trainer.score, self._judge.token_ids)
                self._expected = (await together(pending, "verification", trainer=score))["trainer"]
                self._is_pushed.set()
        return report

    @asynccontextmanager
    async def _in_time(
        self, who: str, what: str, pending: dict[str, str], *, num_turns: int = 1
    ) -> AsyncIterator[None]:
        """A deadline of ``weights.timeout_s`` for each turn, and one error, which names the side."""
        limit_s = num_turns * self._timeout_s
        try:
            with waiting(who, limit_s=limit_s):
                async with awake_timeout(limit_s):
                    yield
        except SideError as failed:
            raise WeightSyncError(f"{what} failed on the side of the {failed}") from failed.error
        except TimeoutError:
            waits = ", ".join(f"{side} ({doing})" for side, doing in pending.items())
            turns = f" for each of {num_turns} turns" if num_turns > 1 else ""
            limit = f"weights.timeout_s = {self._timeout_s:g} s{turns}"
            raise WeightSyncError(f"{what} took longer than {limit}; not done: {waits}") from None

    # ---- the proof ---------------------------------------------------------------------------------------------------

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
        # Where nobody is left who could be asked, whoever comes is pushed to, and that push is proven.
        self._owes_proof = not found
        if found:
            self._judge.judge(self.version, expected, found)
            self._record(Proven(version=self.version))
        self._expected = None
        self._is_pushed.clear()

    async def _asked(self, *, resume: bool) -> dict[str, list[float]]:
        """What the engines say of the probe; ``resume``: mending has paused them, and who is paused says nothing."""
        pending = dict[str, str]()
        what = f"the proof of version {self.version}"
        async with self._in_time(what, what, pending):
            if resume:
                await together(pending, "resume", engines=self._engines.resume)
            score = partial(self._engines.score, self._judge.token_ids)
            found: dict[str, list[float]] = (await together(pending, "verification", engines=score))["engines"]
        return found
