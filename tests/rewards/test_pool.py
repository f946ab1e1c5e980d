"""Worker processes: limits kill, the pool mends itself, nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import uvloop

from prl.errors import RewardError
from prl.rewards.pool import Exhausted, Limits, WorkerPool
from prl.rewards.worker import Question, Reply

ROOT = Path(__file__).parents[2]
LIMITS = Limits(cpu_s=1, wall_s=30.0, memory_mib=512)


@asynccontextmanager
async def opened(num_workers: int = 1, limits: Limits = LIMITS) -> AsyncIterator[WorkerPool]:
    """A pool of scripted workers; afterwards this process has no child of it left, dead or alive."""
    before = children()
    pool = WorkerPool("tests.rewards.scripted_worker", num_workers, limits)
    await pool.open()
    try:
        yield pool
    finally:
        await pool.close()
    assert pool.pids == []
    assert children() == before


def children() -> set[int]:
    """Direct children of this process, zombies included."""
    return {child.pid for child in psutil.Process().children()}


def ask(pool: WorkerPool, reference: str = "echo", text: str = "1.5") -> asyncio.Future[Reply | Exhausted]:
    """Ask one question; ``reference`` says what the worker does with it."""
    return asyncio.ensure_future(pool.ask(Question(text=text, reference=reference)))


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import the tests from the repository's root."""
    monkeypatch.chdir(ROOT)


async def test_a_start_that_is_given_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled when the process is there and its channel is not: the pool closes, or starts another one."""
    connect, reached = asyncio.open_unix_connection, asyncio.Event()

    async def never(**_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    before, pool = children(), WorkerPool("tests.rewards.scripted_worker", 1, LIMITS)
    for _ in range(2):
        reached.clear()
        monkeypatch.setattr(asyncio, "open_unix_connection", never)
        opening = asyncio.ensure_future(pool.open())
        await reached.wait()
        opening.cancel()
        await asyncio.wait([opening])
        await pool.close()
        assert children() == before
        monkeypatch.setattr(asyncio, "open_unix_connection", connect)
        await pool.open()
        assert (await ask(pool)).value == 1.5  # type: ignore[union-attr]
    await pool.close()
    assert children() == before


async def test_worker_is_used_again() -> None:
    """Questions one after the other go to one process."""
    async with opened() as pool:
        pids = {(await ask(pool, "pid")).value for _ in range(5)}  # type: ignore[union-attr]
        assert pids == {float(pool.pids[0])}


@pytest.mark.parametrize(
    ("reference", "limits", "reason"),
    [
        ("burn", LIMITS, "exhausted_cpu"),
        ("sleep", Limits(cpu_s=1, wall_s=0.2, memory_mib=512), "exhausted_wall"),
        ("memory", LIMITS, "exhausted_memory"),
    ],
)
async def test_limit_is_an_outcome_and_the_worker_is_replaced(reference: str, limits: Limits, reason: str) -> None:
    """Each limit ends the question with its name; a fresh process takes the place, and answers."""
    async with opened(2, limits) as pool:
        before = set(pool.pids)
        assert await ask(pool, reference) == Exhausted(reason)
        assert len(pool.pids) == 2
        assert len(before & set(pool.pids)) == 1
        assert await ask(pool) == Reply(value=1.5)


@pytest.mark.parametrize(
    ("reference", "message"), [("die", "exit status 3; it printed: .*the last words"), ("raise", "a bug in the worker")]
)
async def test_death_is_a_failure_with_what_it_printed(reference: str, message: str) -> None:
    """A worker that ends by itself judged nothing: its last words are in the error, the next question is answered."""
    async with opened() as pool:
        with pytest.raises(RewardError, match=f"(?s)scripted_worker.* died: .*{message}"):
            await ask(pool, reference)
        assert await ask(pool) == Reply(value=1.5)


async def test_cancelled_question_frees_its_worker() -> None:
    """A caller that gives up leaves no process busy with its question, and no late reply for the next one."""
    async with opened() as pool:
        (pid,) = pool.pids
        question = ask(pool, "sleep")
        await asyncio.sleep(0)
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
        assert await ask(pool) == Reply(value=1.5)
        assert pool.pids != [pid]
        assert not psutil.pid_exists(pid)


async def test_worker_killed_while_idle_is_replaced() -> None:
    """A worker that something else killed between two questions costs no question."""
    async with opened() as pool:
        os.kill(pool.pids[0], signal.SIGKILL)
        async with asyncio.timeout(10):
            while pool.pids:  # noqa: ASYNC110  (only the loop learns of the end)
                await asyncio.sleep(0)
        assert await ask(pool) == Reply(value=1.5)


async def test_more_questions_than_workers() -> None:
    """Each caller gets its own answer, however many wait."""
    async with opened(2) as pool:
        replies = await asyncio.gather(*(ask(pool, text=str(i)) for i in range(50)))
        assert replies == [Reply(value=float(i)) for i in range(50)]


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
async def test_worker_that_is_struck_while_it_starts_is_replaced(blow: signal.Signals) -> None:
    """Whoever ends or stops it, the question waits for another; no more processes are left than there are workers."""
    pool = WorkerPool("tests.rewards.scripted_worker", 1, LIMITS)
    try:
        await pool.open(wait=False)
        (struck,) = pool.pids
        os.kill(struck, blow)
        assert await ask(pool, text="3") == Reply(value=3.0)
        assert struck not in pool.pids
        assert len(pool.pids) == 1
    finally:
        await pool.close()


async def test_worker_that_cannot_start_says_why() -> None:
    """What a process printed before it died is in the error, and nothing is left running."""
    pool = WorkerPool("tests.rewards.no_such_worker", 1, LIMITS)
    with pytest.raises(RewardError, match=r"did not start: exit status 1; it printed: .*No module named"):
        await pool.open()
    await pool.close()


async def test_close_is_idempotent() -> None:
    """Closing twice, or what was never opened, is fine."""
    async with opened() as pool:
        await pool.close()
    await WorkerPool("tests.rewards.scripted_worker", 1, LIMITS).close()


def test_under_uvloop() -> None:
    """The loop that the command line uses serves the pool as well, limits included."""

    async def main() -> list[Reply | Exhausted]:
        async with opened(1, Limits(cpu_s=1, wall_s=0.2, memory_mib=512)) as pool:
            return [await ask(pool), await ask(pool, "sleep"), await ask(pool)]

    assert uvloop.run(main()) == [Reply(value=1.5), Exhausted("exhausted_wall"), Reply(value=1.5)]


PARENT = """
import asyncio
from prl.rewards.pool import *
from prl.rewards.worker import Question
async def main():
    pool = WorkerPool("tests.rewards.scripted_worker", 2, Limits(cpu_s=600, wall_s=600.0, memory_mib=512))
    await pool.open()
    print(*pool.pids, flush=True)
    await pool.ask(Question(text="", reference="burn"))
asyncio.run(main())
"""


def test_workers_die_with_their_parent() -> None:
    """SIGKILL to the parent takes a busy and an idle worker with it."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        parent.kill()
        _, alive = psutil.wait_procs(workers, timeout=10)
        assert alive == []


async def test_worker_that_is_stopped_judged_nothing() -> None:
    """A stopped worker is late, and no answer's fault: a failure and no verdict; the next question is answered."""
    async with opened(1, Limits(cpu_s=1, wall_s=1.0, memory_mib=512)) as pool:
        os.kill(pool.pids[0], signal.SIGSTOP)
        with pytest.raises(RewardError, match="was stopped by a signal"):
            await ask(pool)
        assert await ask(pool) == Reply(value=1.5)
