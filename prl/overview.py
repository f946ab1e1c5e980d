"""How a run is at any moment from before it starts to after it has ended, for people and for its watchdog.

Invariants:

- Asking changes nothing and waits for nothing, and may be done at any time: what is not there yet is absent.
- What the run begins is said once, here, and is then the same for those who look on, for ``/status`` and in the chain
  of who waits for whom.
- The watchdog sees tokens, slots and steps. On a stall it gives up engines that owe tokens; nothing else is touched.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from prl.chain import Waiting
from prl.config import Config
from prl.controller import Controller
from prl.engines.seat import EngineStatus
from prl.fleet import Fleet
from prl.status import Stage, Status, TrainerStatus
from prl.waits import Waits
from prl.watchdog import Watchdog, Why


class Overview:
    """See the module. ``watch`` it beside the run, from its first moment to its last."""

    def __init__(self, config: Config, run_dir: Path, on_stage: Callable[[str], None]) -> None:
        """``on_stage`` is told, in a few words, what is being waited for while the run starts and ends."""
        self._run_dir, self._num_steps = run_dir, config.run.num_steps
        self._num_engines, self._stall_timeout_s = config.engine.num_engines, config.run.stall_timeout_s
        self.stage, self._waits = Stage(on_stage), Waits()
        self.fleet: Fleet | None = None
        """From when engines and trainer start."""
        self.controller: Controller | None = None
        """From when the parts are put together."""
        self._watchdog = Watchdog(
            self._waits,
            run_dir,
            stall_timeout_s=self._stall_timeout_s,
            progress=self._progress,
            on_lag=self._note_lag,
            act=self._act,
        )

    def begins(self, what: str) -> None:
        """The run begins something that takes a while."""
        self._waits.says(what)
        self.stage(what)

    def doing(self, what: str, *, aside: bool = False) -> AbstractContextManager[None]:
        """The run does this at the wish of its caller, while the body lasts; see ``Waits.doing``."""
        return self._waits.doing(what, aside=aside)

    @contextmanager
    def while_doing(self, what: str) -> Iterator[None]:
        """The same, said to whoever looks on; afterwards the run is where it was."""
        before = self.stage.text
        self.stage(what)
        try:
            with self.doing(what):
                yield
        finally:
            self.stage.quietly(before)

    # ---- asked -------------------------------------------------------------------------------------------------------

    def why(self) -> Why:
        """Who waits for whom now."""
        return Why.of(self._waits, asyncio.get_running_loop().time())

    async def dump_stacks(self) -> str:
        """Write that, and the stacks of every process of the run, to a file in ``stalls/``; says where."""
        return await self._watchdog.dumped("asked for")

    def engines(self) -> list[EngineStatus]:
        """Each engine; none before they are started."""
        return [] if self.fleet is None else self.fleet.engines.status()

    @property
    def num_engines(self) -> int:
        """Engines that the run has; as many as it is to have, before they are started."""
        return self._num_engines if self.fleet is None else self.fleet.engines.num_engines

    def status(self) -> Status:
        """All of it in one object."""
        controller = self.controller
        return Status(
            run_dir=str(self._run_dir.absolute()),
            pid=os.getpid(),
            stage=self.stage.text,
            stage_s=self.stage.seconds,
            step=None if controller is None else controller.step_number,
            num_steps=self._num_steps,
            version=None if controller is None or controller.version < 0 else controller.version,
            engines=self.engines(),
            trainer=self._trainer(),
            slots=None if controller is None else controller.slots(),
            why=self.why().chain,
        )

    def _trainer(self) -> TrainerStatus | None:
        if self.fleet is None:
            return None
        state = "starts"
        if self.controller is not None and self.controller.version >= 0:
            state = "waits for a batch" if self.controller.waits_for_batch else "works"
        return TrainerStatus(state=state, restarts=self.fleet.trainer.num_restarts)

    # ---- watched -----------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look on until cancelled. Raises StallError: the run stands still, and nothing helped."""
        await self._watchdog.run()

    def _progress(self) -> object:
        """Changes when a token was sampled, a slot changed or a step was done."""
        if self.controller is None or self.fleet is None:
            return None
        tokens = self.fleet.engines.statistics().tokens_generated
        return tokens, self.controller.slots(), self.controller.step_number

    def _note_lag(self, lag_s: float) -> None:
        if self.controller is not None:
            meter = self.controller.reporter.meter
            meter.loop_lag_s = max(meter.loop_lag_s, lag_s)

    def _act(self, stalled: Waiting) -> str | None:
        """Engines that owe tokens are given up: others go on behind theirs."""
        why = f"gave no token for run.stall_timeout_s = {self._stall_timeout_s:g} s"
        silent = [] if self.fleet is None else self.fleet.engines.give_up_silent(stalled, why)
        return f"gave up {', '.join(silent)}" if silent else None
