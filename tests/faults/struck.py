"""``python -m tests.faults.struck FOLDER ARGUMENTS...``: prl with these arguments, its processes struck on demand.

A line on stdin arms one blow, a ``Cell`` as JSON. It falls at the first such moment from then on, from inside the
controller, so that it falls *in* the moment however short that is: an update of the small model takes milliseconds.
Each blow is noted in ``FOLDER/blows.jsonl`` before it falls.
"""

from __future__ import annotations

import asyncio
import functools
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from prl.buffer import Buffer
from prl.process import die_with_parent
from prl.trainer.checkpoint import partial_of
from prl.trainer.remote import FsdpTrainer
from tests.faults.cells import Cell, Moment, Role

STEP_S = 0.03
"""How far into a step, and into the wait for a batch, a blow falls."""
START_S = {"controller": 2.0, "verifier worker": 0.0}
"""How long after a role's process was first seen a blow at start-up falls; for the others it is 1 s."""


def find(role: Role) -> list[psutil.Process]:
    """The processes of a role, below this one, the oldest first."""
    me = psutil.Process()
    if role == "controller":
        return [me]
    found = [process for process in me.children(recursive=True) if is_of(role, process, me.pid)]
    return sorted(found, key=psutil.Process.create_time)


def is_of(role: Role, process: psutil.Process, controller: int) -> bool:
    """Whether a process has a role. One that ends meanwhile has none."""
    try:
        name, words, parent = process.name(), " ".join(process.cmdline()), process.ppid()
        match role:
            case "engine host":
                return "prl.engines.vllm_host" in words and parent == controller
            case "engine core":
                return "VLLM::Engine" in name + words
            case "engine worker":
                return "VLLM::Worker" in name + words
            case "verifier worker":
                return "prl.rewards.math_worker" in words
            case "trainer rank 0" | "trainer rank 1":
                return words.endswith("-m prl.trainer.worker") and process.environ().get("RANK") == role[-1]
    except psutil.Error:
        pass
    return False


class Striker:
    """Holds the blow that is armed, and lets it fall once."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._armed: Cell | None = None
        self._lock = threading.Lock()

    def listen(self) -> None:
        """Arm what stdin says, line by line."""
        for line in io.FileIO(0, closefd=False):  # unbuffered: a lock of sys.stdin held here would spoil the exit
            cell = msgspec.json.decode(line, type=Cell)
            self._armed = cell
            if cell.moment == "start-up":
                self.strike_at_start(cell)

    def strike_at_start(self, cell: Cell) -> None:
        """Wait until the role has a process, and a little."""
        whom: Role = "engine host" if cell.role == "controller" else cell.role
        while not find(whom):
            time.sleep(0.02)
        time.sleep(START_S.get(cell.role, 1.0))
        self.strike(cell)

    def armed(self, moment: Moment) -> Cell | None:
        """The blow that waits for this moment, which then waits no more."""
        with self._lock:
            cell = self._armed
            if cell is None or cell.moment != moment:
                return None
            self._armed = None
            return cell

    def strike(self, cell: Cell) -> None:
        """Let it fall on the oldest process of the role."""
        pid = find(cell.role)[0].pid
        with self._notes.open("a") as file:
            file.write(json.dumps({"cell": str(cell), "pid": pid, "time": time.time()}) + "\n")
        os.kill(pid, cell.number)

    def strike_when(self, cell: Cell, ready: Callable[[], bool]) -> None:
        """The same from a thread, as soon as ``ready`` is true."""

        def wait() -> None:
            while not ready():
                time.sleep(0.0002)
            self.strike(cell)

        threading.Thread(target=wait, daemon=True).start()

    def strike_after(self, cell: Cell, seconds: float) -> None:
        """The same from a thread, so much later."""
        falls_at = time.monotonic() + seconds
        self.strike_when(cell, lambda: time.monotonic() >= falls_at)


def watch_moments(striker: Striker) -> None:
    """Tell the striker when the trainer is asked for a step, an update or a checkpoint, and when a batch is awaited."""
    train, publish, save, take = FsdpTrainer.train, FsdpTrainer.publish, FsdpTrainer.save, Buffer.take

    @functools.wraps(train)
    async def struck_train(self: FsdpTrainer, *arguments: Any) -> Any:
        if cell := striker.armed("step"):
            striker.strike_after(cell, STEP_S)
        return await train(self, *arguments)

    @functools.wraps(publish)
    async def struck_publish(self: FsdpTrainer, *arguments: Any) -> Any:
        if cell := striker.armed("update"):
            striker.strike(cell)
        return await publish(self, *arguments)

    @functools.wraps(save)
    async def struck_save(self: FsdpTrainer, folder: Path, state: dict[str, Any]) -> Any:
        if cell := striker.armed("checkpoint"):
            striker.strike_when(cell, partial_of(folder).exists)
        return await save(self, folder, state)

    @functools.wraps(take)
    async def struck_take(self: Buffer, count: int) -> Any:
        if cell := striker.armed("generation"):
            striker.strike_after(cell, STEP_S)
            await asyncio.sleep(2 * STEP_S)  # the trainer has nothing to do meanwhile
        return await take(self, count)

    for owner, name, struck in (
        (FsdpTrainer, "train", struck_train),
        (FsdpTrainer, "publish", struck_publish),
        (FsdpTrainer, "save", struck_save),
        (Buffer, "take", struck_take),
    ):
        setattr(owner, name, struck)


def main() -> int:
    """Run prl."""
    from prl.cli import main as prl

    die_with_parent()
    striker = Striker(Path(sys.argv[1]) / "blows.jsonl")
    watch_moments(striker)
    threading.Thread(target=striker.listen, daemon=True).start()
    return prl(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
