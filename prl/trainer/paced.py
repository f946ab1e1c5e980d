"""A trainer of which only the pace is simulated, for ``prl simulate``: no weights, no gradient.

Invariants:

- A step takes what ``work`` makes of its tokens, prompts included; a death costs the start of another trainer and the
  steps since the last checkpoint once more, as ``kept.py`` does them.
- The effective sample size is that of a policy which drifts at a constant rate: the log-ratio of a token sampled ``k``
  versions ago has mean -drift k / 2 and variance ``drift * k``, so that E[w] = 1, E[w^2] = exp(drift k), and
  ESS = (sum w)^2 / (n sum w^2) tends to 1 / mean(exp(drift k)).
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from prl.errors import TrainerError
from prl.simulation import CHECKPOINT, MANIFEST, Meeting
from prl.trainer.base import TrainerReady, TrainReport
from prl.types import Batch, WeightGroup, WeightUpdate


class PacedTrainer:
    """See the module.

    Args:
        work: does a step on so many samples with so many sampled tokens, at the speed that the machine leaves it.
        update_s: seconds that the engines stand still for an update.
        lags: trained tokens by lag, of the batch.
        drift: variance of a token's log-ratio per step of lag.
    """

    def __init__(
        self,
        *,
        work: Callable[[int, int], Awaitable[None]],
        update_s: float,
        lags: Callable[[Batch], Mapping[int, int]],
        drift: float,
    ) -> None:
        self._work, self._update_s, self._lags, self._drift = work, update_s, lags, drift
        self._step = 0
        self._busy_s = 0.0
        self._meetings: dict[int, Meeting] = {}
        """By the part of the engines that is in the weight group."""
        self._ports = itertools.count(1)

    async def open(self) -> TrainerReady:
        """Be ready at once."""
        return TrainerReady(step=0, manifest=MANIFEST, state={}, num_parameters=len(CHECKPOINT), memory_bytes=0)

    async def meeting(self, hosts: list[str]) -> tuple[str, int]:  # noqa: ARG002 -- all are in this event loop
        """A place that no group before had: simulated groups meet by its name."""
        return "simulated", next(self._ports)

    async def connect(self, group: WeightGroup) -> None:
        """Join the weight group as rank 0."""
        self._meetings[group.part] = await Meeting.join(group, 0)

    async def train(self, batch: Batch) -> TrainReport:
        """Take the time of a step."""
        clock = asyncio.get_running_loop().time
        begun, lags = clock(), self._lags(batch)
        num_tokens = sum(lags.values())
        await self._work(len(batch.samples), num_tokens)
        train_s = clock() - begun
        self._step += 1
        self._busy_s += train_s
        second_moment = sum(math.exp(min(700.0, self._drift * lag)) * count for lag, count in lags.items())
        return TrainReport(
            step=batch.step,
            loss=0.0,
            grad_norm=0.0,
            lr=0.0,
            ess=num_tokens / second_moment if num_tokens else 1.0,
            kl_behaviour=self._drift / 2 * sum(lag * count for lag, count in lags.items()) / max(1, num_tokens),
            clip_frac=0.0,
            entropy=0.0,
            tokens_trained=num_tokens,
            skipped=False,
            train_s=train_s,
        )

    async def publish(self, update: WeightUpdate) -> None:
        """Take ``update_s`` and hand the version to every engine of the weight group."""
        if update.part not in self._meetings:
            raise TrainerError("the trainer is in no weight group; connect it before it publishes")
        await asyncio.sleep(self._update_s)
        await self._meetings[update.part].send(update.version, CHECKPOINT)

    async def score(self, token_ids: list[int]) -> list[float]:
        """As the engines do."""
        return [-0.5] * (len(token_ids) - 1)

    async def save(self, folder: Path, state: dict[str, Any]) -> None:
        """There is nothing to keep."""

    async def export(self, folder: Path) -> None:
        """Nor to export."""

    async def failed(self) -> str:
        """Never: its deaths are a part of a step's time."""
        await asyncio.get_running_loop().create_future()
        return ""

    def statistics(self) -> dict[str, float]:
        """Busy seconds and steps."""
        return {"busy_s": self._busy_s, "steps": float(self._step)}

    async def close(self) -> None:
        """Nothing runs."""
