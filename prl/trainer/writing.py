"""Writing by all ranks together, to a disk that may not take it.

Invariants:

- A rank that cannot write tells all others before anybody goes on: none waits in a collective for one that has left.
- A disk's fault that people can mend is a value, the same kind on every rank, and nothing is left of what was written:
  the trainer is as it was, and can be asked again. Everything else is raised, on every rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from prl.disk import MENDABLE, append
from prl.errors import CheckpointError
from prl.trainer import checkpoint

_PROBE_BYTES = 1024 * 1024
"""A disk that takes no file of this size is full."""


def nothing() -> None:
    """What ranks do that have no part in it."""


def written(target: Path, part: Callable[[], None]) -> OSError | None:
    """Do this rank's ``part`` of writing ``target``, which goes to its partial folder. A collective.

    Returns:
        What the disk said, with words only on a rank that it said it to; nothing of the partial folder is left then.

    Raises:
        CheckpointError: a part failed on this rank, or on another, for another reason than the disk.
    """
    fault: OSError | None = None
    failed: BaseException | None = None
    try:
        part()
    except (Exception, CheckpointException) as error:  # noqa: BLE001 -- raised below, once all ranks know
        if (own := _own(error)) is not None:
            fault = _fault_behind(own, checkpoint.partial_of(target))
            failed = own if fault is None else None
    code, has_failed = _most(0 if fault is None else fault.errno or 0, int(failed is not None))
    if code or has_failed:
        if dist.get_rank() == 0:
            checkpoint.discard(target)
        dist.barrier()
    if failed is not None:
        raise CheckpointError(f"{target} could not be written: {failed}") from failed
    if has_failed:
        raise CheckpointError(f"{target} could not be written: another rank failed")
    if code and fault is None:
        fault = OSError(code, "")
    return fault


def _most(*numbers: int) -> list[int]:
    """The largest of all ranks' first numbers, second numbers and so on. A collective."""
    most = torch.tensor(numbers)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    found: list[int] = most.tolist()
    return found


def _fault_behind(error: BaseException, partial: Path) -> OSError | None:
    """The fault of a disk that ``error`` comes from; None where there is none that people can mend.

    Writers of tensors say in words of their own that a write was short, so the disk is asked again.
    """
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in MENDABLE:
            return cause
    probe = partial / f"probe-{os.getpid()}"
    try:
        partial.mkdir(parents=True, exist_ok=True)
        append(probe, bytes(_PROBE_BYTES), sync=True)
        probe.unlink()
    except OSError as fault:
        return fault if fault.errno in MENDABLE else None
    return None


def _own(error: BaseException) -> BaseException | None:
    """What went wrong on this rank; None where torch tells it what went wrong on another, which says so itself."""
    if not isinstance(error, CheckpointException):
        return error
    own = error.failures.get(dist.get_rank())
    return None if own is None else own[0]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """``error``, and the exceptions that it came of."""
    if error is not None:
        yield error
        yield from _causes(error.__cause__)
        yield from _causes(error.__context__)
