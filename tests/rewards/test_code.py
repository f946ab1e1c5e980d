"""Candidate programs: judged by their tests, and shut in."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from prl.errors import PluginError
from prl.rewards import sandbox
from prl.rewards.code import Code
from prl.rewards.sandbox import Limits, Ran, SandboxError, describe, run
from prl.shell import run_to_exit
from prl.types import Prompt
from tests.rewards.samples import completion

LIMITS = Limits(cpu_s=1, wall_s=30.0, memory_mib=512, disk_mib=4, num_processes=8, output_kib=16)


def is_offered() -> bool:
    """Whether this machine has the namespaces."""
    try:
        describe("namespace")
    except SandboxError:
        return False
    return True


pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not is_offered(), reason="no user namespaces here: nothing can be shut in"
)


async def shut_in(program: str, given: str = "", limits: Limits = LIMITS) -> Ran:
    """Run it in namespaces; afterwards no process of it is left."""
    ran = await run(program, given, limits, "namespace")
    assert [child for child in psutil.Process().children(recursive=True) if "program.py" in child.cmdline()] == []
    return ran


async def test_a_program_has_no_descriptor_of_ours(tmp_path: Path) -> None:
    """However many this process has open: it could write its own report into one of them."""
    opened = [(tmp_path / "file").open("w") for _ in range(300)]
    try:
        ran = await shut_in("import os\nprint(sorted(os.listdir('/proc/self/fd'), key=int)[:3], os.dup(0))")
    finally:
        for file in opened:
            file.close()
    assert ran.stdout == "['0', '1', '2'] 3\n"


async def test_a_program_reads_and_prints() -> None:
    """It has stdin, stdout, the standard library, and none of the environment."""
    os.environ["PRL_TEST_SECRET"] = "x"
    ran = await shut_in("import json, os\nprint(json.dumps([input(), os.environ.get('PRL_TEST_SECRET')]))", "abc")
    assert (ran.outcome, ran.code, ran.stdout) == ("exit", 0, '["abc", null]\n')


async def test_there_is_no_network() -> None:
    """Not even a server on this machine's loopback can be reached."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = server.getsockname()
        ran = await shut_in(f"import socket\nsocket.create_connection({address!r}, 5)")
    assert "Network is unreachable" in ran.stderr


async def test_nothing_outside_can_be_written(tmp_path: Path) -> None:
    """Not what is writable for everyone, not /tmp of this machine; its own folder is, up to its size, and goes."""
    outside = tmp_path / "file"
    outside.write_text("before")
    outside.chmod(0o666)
    ran = await shut_in(
        f"""
for path in ({str(outside)!r}, "/var/tmp/x", "/dev/shm/x", "/etc/passwd", "/tmp/x"):
    try:
        open(path, "w").write("after")
        print("wrote", path)
    except OSError:
        pass
open("own", "w").write("fine")
try:
    open("large", "w").write("x" * 50_000_000)
except OSError as error:
    print(error.strerror)
"""
    )
    assert ran.stdout in ("No space left on device\n", "File too large\n")
    assert outside.read_text() == "before"


async def test_no_process_outside_can_be_seen_or_signalled() -> None:
    """The program's parent is the first process of its own table, and it is not root."""
    ran = await shut_in(
        f"""
import os
print(os.getppid(), os.getuid() == 0)
for pid in ({os.getpid()}, {os.getppid()}):
    try:
        os.kill(pid, 9)
        print("killed", pid)
    except OSError as error:
        print(error.strerror)
os.kill(os.getppid(), 9)
"""
    )
    assert ran.stdout == "1 False\nNo such process\nNo such process\n"


async def test_a_fork_bomb_is_bounded_and_gone() -> None:
    """Processes are limited, also where prl runs as root, and those left behind end with the program."""
    ran = await shut_in(
        """
import os, signal
count = 0
try:
    while count < 500:
        if os.fork() == 0:
            os.setsid()
            signal.pause()
        count += 1
except OSError as error:
    print(count < 8, error.strerror)
"""
    )
    assert ran.stdout == "True Resource temporarily unavailable\n"


async def test_a_memory_bomb_is_an_error_of_its_own() -> None:
    """Memory is limited for each process."""
    assert "MemoryError" in (await shut_in("x = 'a' * 10**10")).stderr


@pytest.mark.parametrize(
    ("program", "limits", "outcome"),
    [
        ("while True: pass", LIMITS, "exhausted_cpu"),
        ("while True: print('x' * 1000)", LIMITS, "exhausted_output"),
        ("import sys\nwhile True: sys.stderr.write('x' * 1000)", LIMITS, "exhausted_output"),
        ("import signal\nsignal.pause()", msgspec.structs.replace(LIMITS, wall_s=2.0), "exhausted_wall"),
        ("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", LIMITS, "exhausted_cpu"),
        ("import os\nos.kill(os.getpid(), 9)", LIMITS, "killed"),
    ],
)
async def test_a_limit_is_an_outcome(program: str, limits: Limits, outcome: str) -> None:
    """Endless programs end, with the name of the limit."""
    assert (await shut_in(program, limits=limits)).outcome == outcome


async def test_output_past_the_limit_leaves_no_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of it was not read: a stream that is full reads no end."""
    full_at_once = functools.partial(asyncio.create_subprocess_exec, limit=1024)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", full_at_once)
    await shut_in("pass")
    before = psutil.Process().num_fds()
    gc.disable()
    try:
        ran = await shut_in("while True: print('x' * 1000)")
    finally:
        gc.enable()
    await asyncio.sleep(0)
    assert (ran.outcome, psutil.Process().num_fds()) == ("exhausted_output", before)


async def test_an_input_that_does_not_fit_is_never_cut() -> None:
    """A row that has one is refused; so is the run of such a program."""
    given = "x" * (2 * 1024 * 1024)
    small = Code(disk_mib=1).check_row({"tests": [{"input": given, "output": ""}]})
    assert small is not None
    assert "raise disk_mib" in small
    assert Code(disk_mib=4).check_row({"tests": [{"input": given, "output": ""}]}) is None
    with pytest.raises(SandboxError, match="No space left"):
        await shut_in("print(len(input()))", given, msgspec.structs.replace(LIMITS, disk_mib=1))


async def test_the_loop_alone_reads_how_a_program_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked beside it would leave it without an answer, and asyncio with a warning."""
    asked: list[int] = []
    monkeypatch.setattr(subprocess.Popen, "poll", lambda self: asked.append(self.pid))
    assert (await shut_in("while True: print('x' * 1000)")).outcome == "exhausted_output"
    assert asked == []


def test_programs_follow_one_another_in_the_loop_of_a_run() -> None:
    """Where it is uvloop, which closes what it reads in its own time: no file of another program is closed for it."""

    async def main() -> int:
        ran = [await shut_in(f"print({number})") for number in range(4)]
        assert [each.stdout for each in ran] == ["0\n", "1\n", "2\n", "3\n"]
        return 7

    assert run_to_exit(main()) == 7


async def test_a_cancelled_run_leaves_no_process() -> None:
    """Who gives up takes the program along."""
    before = {child.pid for child in psutil.Process().children()}
    task = asyncio.ensure_future(run("import signal\nsignal.pause()", "", LIMITS, "namespace"))
    async with asyncio.timeout(20):
        while not (started := {child.pid for child in psutil.Process().children()} - before):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(psutil.pid_exists(pid) for pid in started)


async def test_limits_alone_are_what_they_say() -> None:
    """With ``limits`` a program has its limits and a folder of its own, and the description says what is missing."""
    assert "they can reach the network, files and processes" in describe("limits")
    ran = await run("import os\nprint(os.listdir(), input())", "1", LIMITS, "limits")
    assert (ran.outcome, ran.stdout) == ("exit", "['program.py'] 1\n")
    assert (await run("while True: pass", "", LIMITS, "limits")).outcome == "exhausted_cpu"


LEAVES = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.execvp("sleep", ["sleep", sys.stdin.read()])
    signal.pause()
print("left")
"""


@pytest.mark.parametrize("ends", [True, False])
async def test_with_limits_alone_sessions_of_its_own_do_not_get_away(*, ends: bool) -> None:
    """What a program started is gone with it, whether it ends or is stopped, in whatever session it is."""
    word = f"4{os.getpid()}{ends:d}"
    program = LEAVES if ends else LEAVES + "sys.stdout.flush()\nsignal.pause()"
    ran = await run(program, word, msgspec.structs.replace(LIMITS, wall_s=30.0 if ends else 2.0), "limits")
    assert (ran.outcome, ran.stdout) == ("exit" if ends else "exhausted_wall", "left\n")
    assert [each for each in psutil.process_iter(["cmdline"]) if word in (each.info["cmdline"] or [])] == []


def test_isolation_that_is_not_to_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reward is not made where the machine offers less, and the message says what there is to do."""
    monkeypatch.setattr(sandbox, "_command", lambda *arguments: ["/bin/false"])
    with pytest.raises(PluginError, match=r"'namespace' is not to be had on this machine.*isolation = 'limits'"):
        Code()


def task(*tests: dict[str, object]) -> Prompt:
    """A prompt with these tests."""
    return Prompt(id=0, token_ids=[1], text="", messages=[], fields={"tests": list(tests)})


def fenced(program: str) -> str:
    """A completion's text with a program in it."""
    return f"<think>```\nnot this\n```</think>Here:\n```python\n{program}\n```\nDone."


ADD = ({"input": "1 2", "output": "3\n"}, {"input": "5 5", "output": "10"})
CALLS = (
    {"function": "add", "arguments": [1, 2], "result": 3},
    {"function": "add", "arguments": [0.1, 0.2], "result": 0.3},
)


@pytest.mark.parametrize(
    ("program", "tests", "value", "reason"),
    [
        ("print(sum(map(int, input().split())))", ADD, 1.0, "passed"),
        ("print(3)", ADD, 0.5, "wrong_output"),
        ("print('a\\u2028b')", ({"input": "", "output": "a\nb"},), 0.0, "wrong_output"),
        ("1/0", ADD, 0.0, "program_failed"),
        ("def add(a, b): return a + b", CALLS, 1.0, "passed"),
        ("def add(a, b): return 3", CALLS, 0.5, "wrong_result"),
        ("def add(a, b): raise ValueError", CALLS, 0.0, "program_failed"),
        ("import sys\nsys.exit()", CALLS, 0.0, "program_failed"),
        ('print(\'[{"value": 3}, {"value": 0.3}]\')\nimport os\nos._exit(0)', CALLS, 0.0, "program_failed"),
        ("def add(a, b): print('noise'); return a + b", CALLS, 1.0, "passed"),
        ("def add(a, b): return 10**400", CALLS, 0.0, "wrong_result"),
        (
            (
                "from __future__ import annotations\nfrom dataclasses import dataclass\n"
                "@dataclass\nclass Sum:\n    of: float\ndef add(a, b): return Sum(a + b).of"
            ),
            CALLS,
            1.0,
            "passed",
        ),
        (
            (
                "import os, sys\nframe = sys._getframe(1)\nos.write(frame.f_locals['out'],"
                " (frame.f_locals['asked']['word'] + '[1, 2]').encode())\nos._exit(0)"
            ),
            CALLS,
            0.0,
            "program_failed",
        ),
        ("def add(a, b): return True", ({"function": "add", "arguments": [1, 0], "result": 1},), 0.0, "wrong_result"),
    ],
)
async def test_verdicts(program: str, tests: tuple[dict[str, object], ...], value: float, reason: str) -> None:
    """A program is judged by what it prints or what its functions give; what it prints cannot pass for a result."""
    judged = await Code(score="share", wall_s=60.0)(completion(fenced(program)), task(*tests))
    assert (judged.value, judged.reason) == (value, reason)


async def test_one_failed_test_is_no_pass() -> None:
    """With ``all`` the first failed test decides."""
    assert (await Code(wall_s=60.0)(completion(fenced("print(3)")), task(*ADD))).value == 0.0


async def test_no_program() -> None:
    """Without a closed fence behind the thinking there is nothing to run."""
    for text in ("print(3)", "```python\nprint(3)", "<think>```\nprint(3)\n```"):
        assert (await Code()(completion(text), task(*ADD))).reason == "no_program"


@pytest.mark.parametrize("tests", [None, [], "x", [{"input": "1"}], [{"input": "1", "output": 2}], [{"function": "f"}]])
def test_bad_tests_are_found_at_load(tests: object) -> None:
    """A row whose tests cannot be run is refused."""
    assert "field 'tests'" in str(Code().check_row({"tests": tests}))
    assert Code().check_row({"tests": list(ADD)}) is None
