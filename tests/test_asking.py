"""``prl why``: every state of a run has an answer from outside. Real loops and sockets, simulated engines."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

import prl
from prl import asking
from prl.blocked import FILE
from prl.cli import main
from prl.config import EvalConfig, RewardConfig
from prl.config_control import ControlConfig
from prl.control.address import ControlAddress, write
from tests.test_blocked import sluggish
from tests.test_pipeline import simulated


@prl.reward("test-never")
async def never(completion: prl.Completion, prompt: prl.Prompt) -> float:
    """No verdict."""
    await asyncio.get_running_loop().create_future()
    return 0.0


HANGING = simulated(
    rewards=[RewardConfig(name="test-never", timeout_s=100)], eval=EvalConfig(num_samples=0), control=ControlConfig()
)


def test_a_run_answers_while_it_goes_on_is_blocked_and_when_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain from the run itself; from its folder while its loop is blocked; and how it ended, with its error."""
    folder, told = tmp_path / "run", list[asking.Told]()
    monkeypatch.setattr(asking, "ANSWER_TIMEOUT_S", 1.0)

    def ask_when_blocked() -> None:
        while not (folder / FILE).exists():
            time.sleep(0.02)
        told.append(asking.ask(folder))

    async def drive() -> None:
        async with prl.Pipeline(HANGING, run_dir=folder) as pipeline:
            step = asyncio.ensure_future(pipeline.step())
            while "reward" not in pipeline.why().chain:  # noqa: ASYNC110 - told by nobody
                await asyncio.sleep(0.01)
            told.append(await asyncio.to_thread(asking.ask, folder, stacks=True))
            asker = threading.Thread(target=ask_when_blocked)
            asker.start()
            sluggish(4.0)
            await asyncio.to_thread(asker.join)
            step.cancel()
            await asyncio.wait([step])

    with pytest.raises(prl.PrlError, match="cancelled midway"):
        asyncio.run(drive())
    going_on, blocked = told
    assert going_on.state == "running"
    chain = r"trainer waits for batch 1 <- group \d+ <- reward test-never: member \d for [\d.]+ s"
    assert re.fullmatch(chain, going_on.chain)
    assert going_on.stacks is not None
    assert going_on.chain.partition(" for ")[0] in Path(going_on.stacks.rpartition(" ")[2]).read_text()
    assert any(re.fullmatch(r"  .*group \d+, [\d.]+ s", line) for line in asking.lines_of(going_on))
    assert blocked.state == "blocked"
    assert re.fullmatch(r"the controller's event loop is blocked in sluggish \(.*\) for \d+\.\d s", blocked.chain)
    assert main(["why", str(folder), "--json"]) == 1
    ended = json.loads(capsys.readouterr().out)
    assert (ended["state"], ended["chain"]) == ("failed", "the run failed")
    assert "cancelled midway" in ended["error"]
    assert ended["last_event"] == "failed"


def left_behind(folder: Path, **address: object) -> Path:
    """The folder of a run that wrote no summary, with an address if one is given."""
    folder.mkdir()
    (folder / "config.toml").write_text('model = "x"')
    (folder / "metrics.jsonl").write_text('{"step": 3}\n{"step": 4}\n{"st')
    (folder / "stalls").mkdir()
    (folder / "stalls" / "1.txt").touch()
    (folder / "stalls" / "2.txt").touch()
    if address:
        fields = {"url": "http://127.0.0.1:9", "token": "t", "pid": os.getpid(), "host": socket.gethostname()}
        write(folder, msgspec.convert(fields | address, ControlAddress))
    return folder


def test_a_run_that_was_killed_is_told_by_what_it_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a summary and without a process: its last whole step, and the last stall."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    folder = left_behind(tmp_path / "run", pid=gone.pid)
    assert main(["why", str(folder)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("the run was killed: its process is gone and has not said how it ended\n")
    assert "steps done  4\n" in out
    assert f"stacks      {folder}/stalls/2.txt" in out


def test_a_run_that_does_not_answer_is_told_with_the_state_of_its_process(tmp_path: Path) -> None:
    """Stopped as a whole it neither answers nor says by what it is blocked."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        try:
            told = asking.ask(left_behind(tmp_path / "run", pid=process.pid))
        finally:
            process.kill()
    assert told.state == "silent"
    assert f"process {process.pid}, stopped) does not answer" in told.chain


def test_there_must_be_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without one is a line on stderr and exit 2."""
    assert main(["why", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
