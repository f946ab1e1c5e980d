"""Ranks that a person or a scheduler starts: how long they are waited for, and what is said meanwhile.

Invariants:

- Whoever watches the run is told at once how to start the ranks, and again when the missing ones change or a minute has
  passed: which are missing, and which are here, by host.
- The same wait follows the death of a rank, at the first start or later: the others left with it (their connections
  were closed), and whatever started them starts them again. Where they do not come, the error has the death too.
"""

from __future__ import annotations

import asyncio
from typing import Any

from prl.config import Config
from prl.errors import TrainerDeadError, TrainerError
from prl.log import get_logger
from prl.trainer import launch
from prl.trainer.gathering import Gathering
from prl.trainer.ranks import Ranks
from prl.waits import waiting

LOOK_S = 5.0
REPEAT_S = 60.0

_log = get_logger(__name__)


class External:
    """See the module; the methods are those of ``torchrun.Torchrun``."""

    spans_hosts = True

    def __init__(self, config: Config) -> None:
        self._config = config

    async def gather(self, gathering: Gathering, address: str, after: TrainerDeadError | None) -> float:
        """Wait until every rank has connected to ``address``; ``after`` the death of one while they started, if given.

        Returns how much of ``trainer.start_timeout_s`` that took: nothing, it has a deadline of its own.

        Raises:
            TrainerError: they did not within ``trainer.gather_timeout_s``, or one came that cannot be of this run.
        """
        ranks, timeout_s = gathering.ranks, self._config.trainer.gather_timeout_s
        limit, command = f"trainer.gather_timeout_s = {timeout_s:g} s", launch.by_hand(self._config, address)
        why = {} if after is None else {"why": str(after)}
        _log.warning(
            f"waiting for trainer {launch.named(ranks.missing())}", **why, limit=limit, start_them_with=command
        )
        try:
            async with asyncio.timeout(timeout_s):
                with waiting("the trainer", lambda: f"{_missing(ranks)} to connect to {address}", limit_s=timeout_s):
                    async with asyncio.TaskGroup() as group:
                        teller = group.create_task(_tell(ranks))
                        problem = await gathering.gather()
                        teller.cancel()
        except TimeoutError:
            raise TrainerError(
                f"trainer {launch.named(ranks.missing())} of {ranks.num_ranks} did not connect to {address} within"
                f" {limit} ({_present(ranks)}){'' if after is None else f', after this: {after}'};"
                f" start them with: {command}"
            ) from after
        if problem is not None:
            raise TrainerError(f"the trainer did not start: {problem}")
        _log.info("all trainer ranks are here", **_by_host(ranks))
        return 0.0

    async def how_it_ended(self, pid: int) -> str | None:  # noqa: ARG002 -- a process of another host
        """Nobody says here."""
        return None

    def last_lines(self, rank: int | None = None) -> str:  # noqa: ARG002 -- whichever it is
        """Where they are: with whoever started the ranks."""
        return "; look at the output of the torchrun that you started"

    async def ended(self, ranks: Ranks) -> None:
        """Wait until all ranks have left by themselves."""
        await ranks.all_ended.wait()

    async def stop(self, grace_s: float) -> None:
        """They leave when their connections are closed; there is no child to end."""


async def _tell(ranks: Ranks) -> None:
    """Say who is missing, now and then."""
    said, silent_s = ranks.missing(), 0.0
    while True:
        await asyncio.sleep(LOOK_S)
        silent_s += LOOK_S
        if ranks.missing() != said or silent_s >= REPEAT_S:
            said, silent_s = ranks.missing(), 0.0
            _log.warning(f"still waiting for trainer {launch.named(said)} of {ranks.num_ranks}", here=_present(ranks))


def _missing(ranks: Ranks) -> str:
    return f"waits for {launch.named(ranks.missing())} of {ranks.num_ranks}"


def _present(ranks: Ranks) -> str:
    """Who is here, in words."""
    here = [f"{launch.named(each)} on {host or 'an unnamed host'}" for host, each in ranks.present().items()]
    return f"here are {'; '.join(here)}" if here else "none is here"


def _by_host(ranks: Ranks) -> dict[str, Any]:
    return {"hosts": {host: launch.named(each) for host, each in ranks.present().items()}}
