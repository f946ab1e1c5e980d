"""What the first and the second signal do to a command of the shell."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

from prl import shell


def test_a_coroutine_is_run_to_its_result() -> None:
    """In a loop of its own, which is gone afterwards."""
    loops = []

    async def main() -> int:
        loops.append(asyncio.get_running_loop())
        return 7

    assert shell.run_to_exit(main()) == 7
    assert loops[0].is_closed()


def test_a_thread_that_hangs_does_not_keep_the_loop() -> None:
    """Whoever owns the process decides about such a thread."""
    hangs = threading.Event()

    async def main() -> int:
        asyncio.get_running_loop().run_in_executor(None, hangs.wait)
        return 0

    try:
        assert shell.run_to_exit(main()) == 0
    finally:
        hangs.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_does_what_the_command_says(number: signal.Signals) -> None:
    """In the event loop; afterwards the handlers are those from before."""
    before = signal.getsignal(number)

    async def main() -> int:
        came = asyncio.Event()
        with shell.first_signal(came.set):
            os.kill(os.getpid(), number)
            await came.wait()
        return 0

    assert shell.run_to_exit(main()) == 0
    assert signal.getsignal(number) is before


def test_the_second_signal_kills_every_descendant() -> None:
    """While the loop is blocked, with exit code 130: the child's child, and one that begins while they are sought."""
    code = (
        "import asyncio, os, signal, subprocess, sys, time\n"
        "from prl import shell\n"
        "seek, late = shell._descendants, []\n"
        "def descendants(pid):\n"
        "    found = seek(pid)\n"
        "    if not late:\n"
        "        late.append(subprocess.Popen(['sleep', '600']))\n"
        "    return found\n"
        "shell._descendants = descendants\n"
        "async def main():\n"
        "    with shell.first_signal(lambda: print('first', flush=True)):\n"
        "        subprocess.Popen(['sh', '-c', 'sleep 600 & wait'])\n"
        "        print('ready', flush=True)\n"
        "        await asyncio.to_thread(sys.stdin.readline)\n"
        "        print('blocked', flush=True)\n"
        "        time.sleep(600)\n"
        "shell.run_to_exit(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "first\n"
            process.stdin.write("go on\n")
            assert process.stdout.readline() == "blocked\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == shell.INTERRUPTED
            assert process.communicate(timeout=30)[0] == "", "nobody holds the pipe: every descendant is gone"
        finally:
            process.kill()
