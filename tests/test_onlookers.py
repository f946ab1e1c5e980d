"""Who looks on at a run, over real sockets: from when on, for how long, and what they are told."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from prl.config import Config
from prl.config_control import ControlConfig
from prl.control.address import CONTROL_FILE
from prl.errors import ConfigError
from prl.figures import Snapshot
from prl.onlookers import Onlookers
from tests.test_metrics import report

CONFIG = Config(model="m")


def nothing() -> Snapshot:
    """A run that nobody asks."""
    pytest.fail("nobody asks")


def files_in(folder: Path) -> list[str]:
    """What is there."""
    return [path.name for path in folder.iterdir()]


async def test_they_are_answered_from_open_until_the_stack_is_closed(tmp_path: Path) -> None:
    """The run folder says where, of the control address and of the page, and no more once the run has ended."""
    told: list[str] = []
    onlookers = Onlookers(CONFIG, tmp_path, told.append)
    async with AsyncExitStack() as stack:
        onlookers.bind(stack, [], nothing)
        assert (told, files_in(tmp_path)) == ([], [])
        await onlookers.open(stack, 0)
        assert [url.startswith("http://127.0.0.1:") for url in told] == [True]
        assert CONTROL_FILE in files_in(tmp_path)
    assert files_in(tmp_path) == []
    await onlookers.close(0)


async def test_an_address_that_cannot_be_had_starts_nothing(tmp_path: Path) -> None:
    """It is said when the ports are taken; those that were taken are given back."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = Config(model="m", control=ControlConfig(port=other.getsockname()[1]))
        onlookers = Onlookers(config, tmp_path, None)
        async with AsyncExitStack() as stack:
            with pytest.raises(ConfigError, match=r"control\.port = "):
                onlookers.bind(stack, [], nothing)
    assert files_in(tmp_path) == []


def test_a_monitoring_system_is_told_of_the_steps_so_far(tmp_path: Path) -> None:
    """Under the run's own name; what it was told does not change with the next step."""
    onlookers, status = Onlookers(CONFIG, tmp_path, None), object()
    onlookers.add(report())
    told: Any = onlookers.snapshot(status, None)  # type: ignore[arg-type]
    onlookers.add(report())
    assert (told.run, told.model, told.status, told.figures.num_steps) == (CONFIG.run.name, "m", status, 1)
