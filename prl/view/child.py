"""The process that makes the page of a run that goes on: ``python -m prl.view.child RUN_DIR ADDRESS DESCRIPTOR``.

It listens on a socket of the run's, gives way to everything else on the machine, and dies with the run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from prl.process import die_with_parent
from prl.view.api import Api
from prl.view.listen import guard_of
from prl.view.runs import Runs
from prl.view.server import ViewServer

NICENESS = 10


def main(argv: list[str]) -> None:
    """See the module."""
    die_with_parent()
    os.nice(NICENESS)
    run_dir, address, descriptor = Path(argv[0]), argv[1], int(argv[2])
    asyncio.run(serve(Runs(run_dir), address, socket.socket(fileno=descriptor)))


async def serve(runs: Runs, address: str, listening: socket.socket) -> None:
    """Until SIGINT or SIGTERM. A bug is told on stderr, with its traceback."""
    logging.basicConfig(level=logging.WARNING)
    server = ViewServer(Api(runs), guard_of(address, listening), listening)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await server.open()
    try:
        await ended.wait()
    finally:
        await server.close()


if __name__ == "__main__":
    main(sys.argv[1:])
