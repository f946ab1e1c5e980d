"""How full a run is at this moment: its slots, streams and queues, as numbers for ``gauges.jsonl``."""

from __future__ import annotations

from typing import Any

import msgspec

from prl.controller import Controller
from prl.engines.pool import EnginePool
from prl.rollout import Rollout
from prl.timeline import unix_time


class Gauges:
    """Of one run. Reading them changes nothing but the moment from which ``tok_s`` counts."""

    def __init__(self, controller: Controller, engines: EnginePool, rollout: Rollout) -> None:
        self._controller, self._engines, self._rollout = controller, engines, rollout
        self._before: tuple[float, int] | None = None

    def __call__(self) -> dict[str, Any]:
        """The numbers of now; ``tok_s`` of the time since the call before, None at the first."""
        now, pool = unix_time(), self._engines.statistics()
        before, self._before = self._before, (now, pool.tokens_generated)
        tok_s = None
        if before is not None and now > before[0]:
            tok_s = round((pool.tokens_generated - before[1]) / (now - before[0]), 1)
        return {
            "step": self._controller.step_number,
            "version": self._controller.version,
            "slots": msgspec.to_builtins(self._controller.slots()),
            "streams": sum(pool.running.values()),
            "running": pool.running,
            "tok_s": tok_s,
            "queue": {"streams": pool.waiting, "rollouts": len(self._rollout.under_way)},
        }
