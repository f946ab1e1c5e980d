"""Daemon threads for plain functions: reused, counted when they hang, never waited for."""

from __future__ import annotations

import asyncio
import threading

import pytest

from prl.rewards.threads import Threads


async def test_call_runs_elsewhere_and_returns() -> None:
    """The result comes back, and the call was not made on the loop's thread."""
    threads = Threads("test")
    assert await threads.run(lambda x: (x, threading.current_thread() is threading.main_thread()), 5) == (5, False)
    threads.close()


@pytest.mark.parametrize("error", [KeyError("x"), StopIteration(1)])
async def test_exception_comes_back(error: Exception) -> None:
    """What the call raises is raised to the caller; a StopIteration, which no future carries, as RuntimeError."""

    def fail() -> None:
        raise error

    with pytest.raises(RuntimeError if isinstance(error, StopIteration) else KeyError):
        await Threads("test").run(fail)


async def test_thread_is_used_again() -> None:
    """Calls one after the other share a thread; calls at once have one each."""
    threads = Threads("test")
    both_in = threading.Barrier(2, timeout=10)
    assert len({await threads.run(threading.get_ident) for _ in range(5)}) == 1

    def meet() -> int:
        both_in.wait()
        return threading.get_ident()

    assert len(set(await asyncio.gather(threads.run(meet), threads.run(meet)))) == 2


async def test_abandoned_call_is_counted_until_it_returns() -> None:
    """A cancelled call leaves its thread stuck; when the call does return, the thread serves again."""
    threads = Threads("test")
    started, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hang() -> int:
        loop.call_soon_threadsafe(started.set)
        release.wait(10)
        return threading.get_ident()

    call = asyncio.ensure_future(threads.run(hang))
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert threads.num_stuck == 1
    release.set()
    async with asyncio.timeout(10):
        while threads.num_stuck:  # noqa: ASYNC110  (what counts it down runs on this loop)
            await asyncio.sleep(0)
    assert await threads.run(lambda: 7) == 7


async def test_close_waits_for_nobody() -> None:
    """A hung call keeps neither close nor the thread count: the thread is a daemon and ends when its call does."""
    threads = Threads("stuck-test")
    started, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hang() -> None:
        loop.call_soon_threadsafe(started.set)
        release.wait(10)

    call = asyncio.ensure_future(threads.run(hang))
    await started.wait()
    call.cancel()
    threads.close()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "stuck-test"]
    assert thread.daemon
    release.set()
    while thread.is_alive():  # noqa: ASYNC110  (what ends the thread runs on this loop)
        await asyncio.sleep(0)
