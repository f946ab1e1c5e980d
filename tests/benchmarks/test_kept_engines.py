"""Engines that outlive the runs of a benchmark keep the engine protocol."""

from __future__ import annotations

from typing import Any

import pytest
from kept_engines import Kept, KeptEngines, Layout

from prl.engines.base import Engine
from tests.test_pipeline import simulated
from tests.virtual import in_virtual_time


def test_nothing_of_the_protocol_is_missing() -> None:
    """Whatever a run may ask of an engine it may ask of a kept one."""
    asked = {name for name in dir(Engine) if not name.startswith("_")}
    assert asked - set(dir(Kept)) - set(Engine.__annotations__) == set()


@in_virtual_time
async def test_two_runs_in_turn_on_the_same_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins at version 0 and takes its steps; the engines have been opened once."""
    opened: list[str] = []

    async def open_again(self: Any) -> None:
        opened.append(self.name)

    async with KeptEngines(simulated(), Layout("shared", num_engines=2, num_ranks=1), 8) as engines:
        monkeypatch.setattr(type(engines._engines[0]), "open", open_again)
        versions = [[report.version for report in await engines.run(simulated(), 3)] for _ in range(2)]
    assert versions == [[1, 2, 3], [1, 2, 3]]
    assert opened == []
