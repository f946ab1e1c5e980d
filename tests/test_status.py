"""How a run says that it is, in the library and at its control address."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

import prl
from prl import machinery
from prl.config_control import ControlConfig
from prl.control import address as control_file
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script
from tests.test_pipeline import simulated, take_steps
from tests.virtual import in_virtual_time


@in_virtual_time
async def test_a_run_says_how_it_is_from_the_start_to_the_end(tmp_path: Path) -> None:
    """While it starts there are no engines, then steps, versions and slots; times are seconds until now."""
    stages: list[tuple[str, str | None]] = []

    def note(stage: str) -> None:
        status = pipeline.status()
        stages.append((status.stage, status.trainer and status.trainer.state))
        assert status.stage == stage

    pipeline = prl.Pipeline(simulated(), run_dir=tmp_path / "run", on_stage=note)
    async with pipeline:
        await take_steps(pipeline, 2)
        await asyncio.sleep(5)
        status = pipeline.status()
        assert (status.stage, status.step, status.num_steps, status.version) == ("training", 2, 4, 2)
        assert status.stage_s >= 5
        assert [(engine.name, engine.state, engine.version) for engine in status.engines] == [
            ("engine-0", "serving", 2),
            ("engine-1", "serving", 2),
        ]
        assert sum(engine.tokens_generated for engine in status.engines) > 0
        assert status.slots is not None
        assert status.slots.trained == 4
        assert status.why is not None
        assert msgspec.json.decode(msgspec.json.encode(status), type=type(status)) == status
    assert stages[0] == ("reading tokenizer and data", None)
    assert ("joining engines and trainer", "starts") in stages
    assert stages[-1][0] == "ending the processes"


def ask(run: Path, path: str) -> tuple[int, Any]:
    """Ask a run as its folder says."""
    address = control_file.read(run)
    question = urllib.request.Request(address.url + path, headers={"Authorization": f"Bearer {address.token}"})
    with urllib.request.urlopen(question, timeout=10) as answer:
        return answer.status, json.load(answer)


async def test_a_run_answers_while_it_starts_and_while_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is there before the engines are, tells the same as the library, and ends with the run."""
    run, early = tmp_path / "run", list[Any]()

    class Asked(SimulatedEngine):
        """Is open when the run was asked."""

        async def open(self) -> None:
            """Ask."""
            early.append(await asyncio.to_thread(ask, run, "/status"))
            await super().open()

    def make(*_: Any, index: int, **__: Any) -> SimulatedEngine:
        return Asked(index=index, max_num_seqs=8, script=Script(), seed=0)

    monkeypatch.setattr(machinery, "make_engine", make)
    async with prl.Pipeline(simulated(control=ControlConfig()), run_dir=run) as pipeline:
        await take_steps(pipeline, 1)
        status, answer = await asyncio.to_thread(ask, run, "/status")
        engines = await asyncio.to_thread(ask, run, "/engines")
    assert (status, answer["step"], answer["pid"]) == (200, 1, os.getpid())
    assert [engine["name"] for engine in engines[1]] == ["engine-0", "engine-1"]
    assert [(code, answer["step"], answer["trainer"]["state"]) for code, answer in early] == [(200, None, "starts")] * 2
    with pytest.raises(prl.ConfigError, match="no run goes on there"):
        control_file.read(run)
