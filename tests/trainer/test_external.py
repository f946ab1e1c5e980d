from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from prl.config import Config
from prl.errors import TrainerError
from prl.trainer import external
from prl.trainer.external import External
from prl.trainer.gathering import Gathering
from prl.trainer.ranks import Ranks
from prl.waits import Waits
from tests.trainer.cases import make_config
from tests.virtual import in_virtual_time


def _config(**trainer: Any) -> Config:
    return make_config(Path("m"), trainer={"launch": "external", **trainer})


class ScriptedRanks(Ranks):
    """Ranks without a network."""

    def __init__(self, num_ranks: int) -> None:
        super().__init__(num_ranks)
        self.here: dict[int, str] = {}

    def missing(self) -> list[int]:
        """Those that have not come."""
        return [rank for rank in range(self.num_ranks) if rank not in self.here]

    def present(self) -> dict[str, list[int]]:
        """The others."""
        found: dict[str, list[int]] = {}
        for rank, host in self.here.items():
            found.setdefault(host, []).append(rank)
        return found


class Scripted(Gathering):
    """Ranks of which some come at a given second."""

    def __init__(self, num_ranks: int, comes: dict[int, tuple[float, str]]) -> None:
        self._ranks = ScriptedRanks(num_ranks)
        super().__init__(self._ranks, "secret")
        self._comes = comes

    async def gather(self) -> str | None:
        """Let them come."""
        began_at = asyncio.get_running_loop().time()
        for rank, (at_s, host) in sorted(self._comes.items(), key=lambda each: each[1]):
            await asyncio.sleep(began_at + at_s - asyncio.get_running_loop().time())
            self._ranks.here[rank] = host
        if self._ranks.missing():
            await asyncio.Event().wait()
        return None


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What people are told."""
    lines: list[tuple[str, dict[str, Any]]] = []

    class Log:
        def warning(self, event: str, **values: Any) -> None:
            lines.append((event, values))

        info = warning

    monkeypatch.setattr(external, "_log", Log())
    return lines


@in_virtual_time
async def test_it_is_told_who_is_missing_and_who_is_here(told: list[tuple[str, dict[str, Any]]]) -> None:
    """At once with the command, then when something changed or a minute has passed, and at the end who is where."""
    gathering = Scripted(4, {0: (12, "node-1"), 1: (12, "node-1"), 2: (98, "node-2"), 3: (98, "node-2")})
    await External(_config(num_ranks=4, num_replicas=2)).gather(gathering, "10.0.0.1:29400", None)
    (first, how), *rest, last = told
    assert first == "waiting for trainer ranks 0-3"
    assert how["limit"] == "trainer.gather_timeout_s = 1800 s"
    command = "PRL_TRAINER_ADDRESS=10.0.0.1:29400 PRL_TOKEN=... torchrun --nnodes 2 --nproc-per-node 2 "
    assert how["start_them_with"].startswith(command)
    here = {"here": "here are ranks 0, 1 on node-1"}
    assert rest == [("still waiting for trainer ranks 2, 3 of 4", here)] * 2
    assert last == (
        "all trainer ranks are here",
        {"hosts": {"node-1": "ranks 0, 1", "node-2": "ranks 2, 3"}},
    )


@in_virtual_time
async def test_ranks_that_do_not_come_back_are_named_at_the_deadline() -> None:
    """Which, where they should connect, who is here, how to start them; and before that the run says so when asked."""
    waits, config = Waits(), _config(num_ranks=3, gather_timeout_s=20)
    seen: list[str] = []

    async def look() -> None:
        await asyncio.sleep(10)
        seen.extend(f"{each.who} {each.what}" for each in waits.run_at(asyncio.get_running_loop().time()).on)

    async with asyncio.TaskGroup() as group:
        group.create_task(look())
        with (
            waits.doing("the run"),
            pytest.raises(
                TrainerError,
                match=r"trainer ranks 0, 2 of 3 did not connect to h:1 within trainer\.gather_timeout_s = 20 s"
                r" \(here are rank 1 on node-7\); start them with: PRL_TRAINER_ADDRESS=h:1 ",
            ),
        ):
            await External(config).gather(Scripted(3, {1: (1, "node-7")}), "h:1", None)
    assert seen == ["the trainer waits for ranks 0, 2 of 3 to connect to h:1"]
