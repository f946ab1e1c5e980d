"""What one rank did in a step, one thing after another: it computes, or it is in a collective.

Invariants:

- Each moment of the step is in exactly one phase, and the phases stand in the order in which they came.
- In a collective a rank moves data and waits for whoever comes last; the two are not told apart, and both are waiting.
- On a CPU every collective of the sharded model is timed where it is called. On an accelerator those inside the forward
  and backward pass run beside the computation, and only the sums at the end are waiting.
- However many collectives a step has, about ``MAX_WAITS`` of them are told by all ranks together, each its longest; in
  the others it computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from prl.trainer.base import Phase

MAX_WAITS = 16
MIN_WAIT_S = 0.002
"""A shorter one is computing: most of it is the call itself."""
SHARDS, SUMS = "the other ranks' shards", "the sums of all ranks"


class Phases:
    """Of one rank of ``num_ranks``; ``begin`` a step, then ``take`` what it was."""

    def __init__(self, num_ranks: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._max_waits = clock, max(1, MAX_WAITS // num_ranks)
        self._began = clock()
        self._waits: list[tuple[float, float, str]] = []

    def begin(self) -> None:
        """A step begins now."""
        self._began = self._clock()
        self._waits.clear()

    @contextmanager
    def waits(self, why: str) -> Iterator[None]:
        """The body is a collective."""
        since = self._clock()
        try:
            yield
        finally:
            until = self._clock()
            if until - since >= MIN_WAIT_S:
                self._waits.append((since, until, why))

    def take(self) -> list[Phase]:
        """From the step's beginning until now."""
        told = sorted(self._waits, key=lambda wait: wait[0] - wait[1])[: self._max_waits]
        found, at = list[Phase](), self._began
        for since, until, why in sorted(told):
            found += [Phase("training", since - at), Phase("waiting", until - since, why)]
            at = until
        return [*found, Phase("training", self._clock() - at)]

    def watch(self, policy: nn.Module) -> None:
        """Time the collectives of a model that is sharded on CPUs."""
        for module in policy.modules():
            if isinstance(module, FSDPModule):
                # what they should derive from has no public name
                module.set_custom_all_gather(_Gather(self))  # type: ignore[arg-type]
                module.set_custom_reduce_scatter(_Scatter(self))  # type: ignore[arg-type]


class _Collective:
    """What FSDP2 asks of a collective of ours: its own, and memory as it would take it."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for its output."""
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Collective):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        with self._phases.waits(SHARDS):
            return dist.all_gather_single(*arguments, **options)


class _Scatter(_Collective):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        with self._phases.waits(SHARDS):
            return dist.reduce_scatter_single(output_tensor, input_tensor, op, group, async_op)
