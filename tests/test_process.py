"""Child processes, real ones: they cannot outlive their parent and cannot die unheard.

Each process of a test connects to the test's ``Roll`` and says its name, so that a test waits for a start or an end
as for any other event: the kernel closes the connection of a process that is gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

import pytest

from prl.process import Child, free_port, signal_group, tail

DEADLINE_S = 20
SOON_S = 10
"""How long a process may take to be gone."""

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the kernel ties a child to its parent on Linux only")


class Roll:
    """Who is there: every process of a test answers it, and it hears their ends."""

    PREAMBLE = """
import os, signal, socket, subprocess, sys
def present(name):
    global line
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ["ROLL"])
    say(f"{name} {os.getpid()}")
def say(what):
    line.sendall(what.encode() + b"\\n")
def start(script):
    return subprocess.Popen([sys.executable, "-S", "-c", script])
def wait_for_ever():
    while True:
        signal.pause()
"""

    def __init__(self) -> None:
        self._said: dict[str, asyncio.Queue[str]] = {}
        self._gone: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Condition()
        self.pids: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        self._exits = AsyncExitStack()
        folder = self._exits.enter_context(tempfile.TemporaryDirectory())  # a socket's path must be short
        self.path = f"{folder}/roll"
        server = await asyncio.start_unix_server(self._listen, self.path)
        self._exits.callback(server.close)
        return self

    async def __aexit__(self, *error: object) -> None:
        for name, pid in self.pids.items():
            if not self._gone[name].is_set():
                os.kill(pid, signal.SIGKILL)
                await self.gone(name)
        await self._exits.aclose()

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name, pid = (await reader.readline()).decode().split()
        self._said[name], self._gone[name] = asyncio.Queue(), asyncio.Event()
        self.pids[name] = int(pid)
        async with self._changed:
            self._changed.notify_all()
        try:
            while line := await reader.readline():
                self._said[name].put_nowait(line.decode().strip())
        except ConnectionError:
            pass
        finally:
            self._gone[name].set()
            writer.close()

    async def present(self, *names: str) -> None:
        """Wait until the processes of these names have answered."""
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(lambda: set(names) <= self.pids.keys())

    async def says(self, name: str) -> str:
        """Wait for the next thing that a process says."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._said[name].get()

    async def gone(self, *names: str) -> None:
        """Wait until these processes are gone, which must be soon."""
        async with asyncio.timeout(SOON_S):
            for name in names:
                await self._gone[name].wait()

    def here(self, name: str) -> bool:
        """Whether a process was not seen to end."""
        return not self._gone[name].is_set()


@pytest.fixture
async def roll() -> AsyncIterator[Roll]:
    """The roll of one test; what is left of its processes is killed."""
    async with Roll() as opened:
        yield opened


def python(script: str) -> list[str]:
    """A command that runs ``script`` with the words of the roll, in an interpreter that starts quickly."""
    return [sys.executable, "-S", "-c", Roll.PREAMBLE + script]


@asynccontextmanager
async def child(roll: Roll, command: list[str], log: Path) -> AsyncIterator[Child]:
    """A child that is not left behind by a test that fails."""
    started = await Child.start("the child", command, log, {"ROLL": roll.path})
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield started
    finally:
        await started.stop(0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where a child's output goes; the folder does not exist yet."""
    return tmp_path / "logs" / "child.log"


WAITS = "present('child'); wait_for_ever()"
WITH_GRANDCHILD = """
present('child')
start(PREAMBLE + "present('grandchild'); wait_for_ever()")
wait_for_ever()
"""
IGNORES_TERM = """
def ignore(*_):
    say("ignored")
signal.signal(signal.SIGTERM, ignore)
present('child')
wait_for_ever()
"""


def with_preamble(script: str) -> str:
    """A script that can pass the words of the roll on to its own children."""
    return f"PREAMBLE = {Roll.PREAMBLE!r}\n{script}"


# ---- start and end ---------------------------------------------------------------------------------------------------


async def test_an_end_is_told_with_name_code_and_last_words(roll: Roll, log: Path) -> None:
    """Field notes H, a dead child is not noticed: its end names it, its exit code and the last lines of its log."""
    script = "import sys; [print(f'line {i}') for i in range(30)]; print('oh no', file=sys.stderr); sys.exit(3)"
    async with child(roll, [sys.executable, "-u", "-S", "-c", script], log) as started:
        told = await started.ended()
        assert told.startswith(f"the child (pid {started.pid}) exited with 3; last lines of {log}:\nline 11\n")
        assert told.endswith("line 29\noh no")
        assert started.returncode == 3


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
async def test_a_killed_childs_end_names_the_signal(roll: Roll, log: Path, number: signal.Signals) -> None:
    """A crash is told by the name of its signal."""
    async with child(roll, python(f"os.kill(os.getpid(), {number})"), log) as started:
        assert f"was killed by {number.name}; " in await started.ended()


@linux_only
async def test_a_signal_without_a_name(roll: Roll, log: Path) -> None:
    """A real-time signal has no name in Python; the end is told all the same."""
    async with child(roll, python("os.kill(os.getpid(), signal.SIGRTMIN + 3)"), log) as started:
        assert f"was killed by signal {signal.SIGRTMIN + 3}; " in await started.ended()


async def test_a_command_that_does_not_exist(roll: Roll, log: Path) -> None:
    """A misspelt command is an end that says so, not a hang."""
    async with child(roll, ["no-such-command-of-prl"], log) as started:
        assert "cannot run no-such-command-of-prl: No such file or directory" in await started.ended()


@pytest.fixture
def _typed() -> Iterator[None]:
    """Something to read on this process's standard input."""
    reading, writing = os.pipe()
    os.write(writing, b"typed in the terminal")
    os.close(writing)
    before = os.dup(0)
    os.dup2(reading, 0)
    yield
    os.dup2(before, 0)
    os.close(before)
    os.close(reading)


@pytest.mark.usefixtures("_typed")
async def test_a_child_gets_its_environment_and_its_log(roll: Roll, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is the parent's plus what is given; its log is appended to; it reads nothing that is typed."""
    monkeypatch.setenv("PRL_TEST_PARENT", "inherited")
    script = "print(os.environ['ROLL'] != '', os.environ['PRL_TEST_PARENT'], repr(sys.stdin.read()))"
    for _ in range(2):
        async with child(roll, python(script), log) as started:
            await started.ended()
    assert tail(log) == "True inherited ''\nTrue inherited ''"


async def test_a_child_leads_its_own_group(roll: Roll, log: Path) -> None:
    """A Ctrl-C in the terminal reaches the controller only, and a signal to the child's group all of its processes."""
    async with child(roll, python(WAITS), log) as started:
        await roll.present("child")
        assert roll.pids["child"] == started.pid
        assert os.getpgid(started.pid) == started.pid != os.getpgid(0)
        assert started.returncode is None


# ---- stop ------------------------------------------------------------------------------------------------------------


async def test_stop_ends_the_grandchildren(roll: Roll, log: Path) -> None:
    """Field notes H, SIGTERM reaches only the direct child: the whole group gets it."""
    async with child(roll, python(with_preamble(WITH_GRANDCHILD)), log) as started:
        await roll.present("child", "grandchild")
        await started.stop()
        assert started.returncode == -signal.SIGTERM
        await roll.gone("child", "grandchild")


async def test_stop_ends_what_a_shell_wraps(roll: Roll, log: Path) -> None:
    """Field notes H, child started through a shell wrapper: the process behind the shell ends too."""
    command = ["/bin/sh", "-c", '"$@"; exit 0', "wrapper", *python(WAITS)]
    async with child(roll, command, log) as started:
        await roll.present("child")
        assert roll.pids["child"] != started.pid
        await started.stop()
        await roll.gone("child")


async def test_stop_lets_a_child_clean_up(roll: Roll, log: Path) -> None:
    """A child that ends on SIGTERM within the grace is not killed."""
    script = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('cleaned up'))); " + WAITS
    async with child(roll, python(script), log) as started:
        await roll.present("child")
        await started.stop(grace_s=SOON_S)
        assert started.returncode == 0
        assert tail(log) == "cleaned up"


async def test_a_child_that_ignores_sigterm_is_killed(roll: Roll, log: Path) -> None:
    """Field notes H, child ignores SIGTERM: after the grace it is killed, and reaped when stop returns."""
    async with child(roll, python(IGNORES_TERM), log) as started:
        await roll.present("child")
        await started.stop(grace_s=0.2)
        assert await roll.says("child") == "ignored"
        assert started.returncode == -signal.SIGKILL
        await roll.gone("child")


async def test_a_cancelled_stop_kills_at_once(roll: Roll, log: Path) -> None:
    """A second Ctrl-C during the grace leaves nothing behind: the group is killed there and then."""
    async with child(roll, python(IGNORES_TERM), log) as started:
        await roll.present("child")
        async with asyncio.TaskGroup() as group:
            stop = group.create_task(started.stop(grace_s=10 * DEADLINE_S))
            assert await roll.says("child") == "ignored"
            stop.cancel()
        assert stop.cancelled()
        await roll.gone("child")


async def test_stop_after_the_end_clears_what_is_left(roll: Roll, log: Path) -> None:
    """A child that died leaves no grandchild behind once it is stopped; stopping again does nothing."""
    script = with_preamble(WITH_GRANDCHILD.replace("wait_for_ever()\n", "") + "\nsys.stdin.close()")
    async with child(roll, python(script), log) as started:
        await started.ended()
        await roll.present("grandchild")
        assert roll.here("grandchild")
        for _ in range(2):
            await started.stop()
        assert started.returncode == 0
        await roll.gone("grandchild")


def test_signalling_a_group_that_is_gone() -> None:
    """A group that has ended takes no signal, and that is no error."""
    ended = subprocess.Popen(["true"], start_new_session=True)
    ended.wait()
    signal_group(ended.pid, signal.SIGKILL)


# ---- the parent's death ----------------------------------------------------------------------------------------------

PARENT = """
import asyncio, sys
from pathlib import Path
from prl.process import Child
async def main():
    await Child.start("the child", sys.argv[2:], Path(sys.argv[1]))
    present('parent')
    await asyncio.Event().wait()
asyncio.run(main())
"""
"""A controller in small: it starts a child and waits."""

WORKER = """
sys.path.insert(0, {root!r})
import types
from prl import process
process.sys = types.SimpleNamespace(platform={platform!r})
process.die_with_parent()
present('worker')
wait_for_ever()
"""
"""A rank in small, on a system of this name."""

ROOT = str(Path(__file__).parent.parent)


def start_python(script: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """A process that can import prl."""
    environment = {**os.environ, "PYTHONPATH": ROOT, **environment}
    return subprocess.Popen([sys.executable, "-c", script, *arguments], env=environment, stdout=subprocess.PIPE)


@asynccontextmanager
async def parent(roll: Roll, script: str, *arguments: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A process that starts others, to be killed."""
    process = start_python(Roll.PREAMBLE + script, *arguments, ROLL=roll.path)
    with process:
        try:
            async with asyncio.timeout(DEADLINE_S):
                yield process
        finally:
            process.kill()


@linux_only
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_a_parents_death_takes_its_children_along(roll: Roll, log: Path, number: signal.Signals) -> None:
    """Field notes H, engine processes outlive a killed parent: whatever kills the controller, its child is gone."""
    async with parent(roll, PARENT, str(log), *python(WAITS)) as process:
        await roll.present("parent", "child")
        process.send_signal(number)
        await roll.gone("parent", "child")


@linux_only
async def test_a_parents_death_takes_a_stopped_child_along(roll: Roll, log: Path) -> None:
    """A child that cannot act, being stopped, is ended by the kernel."""
    async with parent(roll, PARENT, str(log), *python(WAITS)) as process:
        await roll.present("parent", "child")
        os.kill(roll.pids["child"], signal.SIGSTOP)
        process.kill()
        await roll.gone("child")


def parent_of_worker(platform: str = sys.platform) -> str:
    """A script that starts a worker on a system of this name and waits."""
    worker = Roll.PREAMBLE + WORKER.format(root=ROOT, platform=platform)
    return f"subprocess.Popen([sys.executable, '-c', {worker!r}]); present('parent'); wait_for_ever()"


@pytest.mark.parametrize("platform", [sys.platform, "elsewhere"])
async def test_a_worker_dies_with_its_parent(roll: Roll, platform: str) -> None:
    """A worker of a child (torchrun's rank) is gone soon after its parent, with the kernel's help or not."""
    async with parent(roll, parent_of_worker(platform)) as process:
        await roll.present("parent", "worker")
        process.kill()
        await roll.gone("worker")


@linux_only
async def test_a_parents_death_takes_a_stopped_worker_along(roll: Roll) -> None:
    """A worker that cannot watch, being stopped or busy, is ended by the kernel."""
    async with parent(roll, parent_of_worker()) as process:
        await roll.present("parent", "worker")
        os.kill(roll.pids["worker"], signal.SIGSTOP)
        process.kill()
        await roll.gone("worker")


def test_a_worker_whose_parent_is_gone_already_ends() -> None:
    """A worker that starts after its parent's death does not wait for a death that was before it."""
    worker = start_python(
        f"from prl.process import die_with_parent; die_with_parent({os.getpid() + 1}); print('lives')"
    )
    assert worker.communicate(timeout=DEADLINE_S)[0] == b""
    assert worker.returncode == 1


def test_dying_with_a_parent_that_lives_changes_nothing() -> None:
    """A worker under a living parent goes on."""
    worker = start_python("from prl.process import die_with_parent; die_with_parent(); print('lives')")
    assert worker.communicate(timeout=DEADLINE_S)[0] == b"lives\n"
    assert worker.returncode == 0


@linux_only
def test_a_child_whose_parent_is_gone_already_does_not_start(tmp_path: Path) -> None:
    """A parent that dies between fork and exec leaves no child: the command never runs."""
    process = Path(ROOT) / "prl" / "process.py"
    command = [sys.executable, "-I", str(process), str(os.getpid() + 1), "touch", str(tmp_path / "ran")]
    assert subprocess.run(command, timeout=DEADLINE_S, check=False).returncode == 1
    assert not (tmp_path / "ran").exists()


# ---- small things ----------------------------------------------------------------------------------------------------


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    """The last lines, whatever the bytes; and a word where there are none."""
    path = tmp_path / "log"
    assert tail(path) == f"(no log at {path})"
    path.write_bytes(b"")
    assert tail(path) == f"({path} is empty)"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(100)))
    assert tail(path, 2) == "line 98\nline 99"
    path.write_bytes(b"x" * 1_000_000 + b"\nbroken \xff utf-8\nno newline at the end")
    assert tail(path, 2) == "broken \N{REPLACEMENT CHARACTER} utf-8\nno newline at the end"
    assert len(tail(path)) < 70_000


def test_a_free_port_is_free() -> None:
    """Somebody can listen on it."""
    port = free_port("127.0.0.1")
    with socket.create_server(("127.0.0.1", port)):
        pass
