from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from prl.config import Config
from prl.errors import TrainerError
from prl.trainer import external, protocol
from prl.trainer.external import gather_external
from prl.trainer.ranks import Ranks
from prl.waits import Waits
from prl.wire import Channel
from tests.trainer.cases import make_config
from tests.virtual import in_virtual_time


def _config(**trainer: Any) -> Config:
    return make_config(Path("m"), trainer={"launch": "external", **trainer})


class Scripted(Ranks):
    """Ranks of which some come at a given second, without a network."""

    def __init__(self, num_ranks: int, comes: dict[int, tuple[float, str]]) -> None:
        super().__init__(num_ranks, "secret")
        self._comes = comes
        self._here: dict[int, str] = {}

    def missing(self) -> list[int]:
        """Those whose second has not come."""
        return [rank for rank in range(self.num_ranks) if rank not in self._here]

    def present(self) -> dict[str, list[int]]:
        """The others."""
        found: dict[str, list[int]] = {}
        for rank, host in self._here.items():
            found.setdefault(host, []).append(rank)
        return found

    async def gather(self) -> str | None:
        """Let them come."""
        began_at = asyncio.get_running_loop().time()
        for rank, (at_s, host) in sorted(self._comes.items(), key=lambda each: each[1]):
            await asyncio.sleep(began_at + at_s - asyncio.get_running_loop().time())
            self._here[rank] = host
        if self.missing():
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
    ranks = Scripted(4, {0: (12, "node-1"), 1: (12, "node-1"), 2: (98, "node-2"), 3: (98, "node-2")})
    await gather_external(ranks, _config(num_ranks=4, num_replicas=2), "10.0.0.1:29400")
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
            await gather_external(Scripted(3, {1: (1, "node-7")}), config, "h:1")
    assert seen == ["the trainer waits for ranks 0, 2 of 3 to connect to h:1"]


async def test_a_rank_that_left_before_all_were_there_may_come_again() -> None:
    """It is missing again, and the next with its number takes its place; nobody says that it came twice."""
    ranks = Ranks(2, "secret")
    host, _, port = ranks.listen("127.0.0.1", 0).rpartition(":")

    async def greet(rank: int) -> Channel[protocol.FromController]:
        reader, writer = await asyncio.open_connection(host, int(port))
        channel = Channel[protocol.FromController](reader, writer, protocol.FromController)
        await channel.send(protocol.Hello(rank=rank, world_size=2, pid=7, token="secret", host="node-3"))
        return channel

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        gathering = group.create_task(ranks.gather())
        first = await greet(0)
        while ranks.missing() == [0, 1]:  # noqa: ASYNC110 -- the socket's turn
            await asyncio.sleep(0)
        assert ranks.present() == {"node-3": [0]}
        first.close()
        while ranks.missing() == [1]:  # noqa: ASYNC110 -- the same
            await asyncio.sleep(0)
        channels = [await greet(rank) for rank in (0, 1)]
    assert gathering.result() is None
    assert (ranks.ends, ranks.host(1)) == ([], "node-3")
    for channel in channels:
        channel.close()
    ranks.close()
