"""Virtual time: what asyncio promises holds, only nothing waits."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time

import pytest

from prl import virtual_time
from prl.virtual_time import DeadlockError


def test_a_day_of_sleep_takes_no_time() -> None:
    """Sleeping moves the clock by exactly the time slept, and the program does not wait for it."""

    async def main() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert virtual_time.run(main()) == 86_400
    assert time.monotonic() - started < 5


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    """Timers fire by time and, at equal times, in the order in which they were set."""
    woken: list[tuple[float, int]] = []

    async def sleeper(number: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((asyncio.get_running_loop().time(), number))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number, seconds in enumerate([3, 1, 2, 1]):
                group.create_task(sleeper(number, seconds))

    virtual_time.run(main())
    assert woken == [(1, 1), (1, 3), (2, 2), (3, 0)]


def test_time_stands_still_while_something_is_ready() -> None:
    """A thousand turns of the loop cost no time when none of them waits."""

    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert virtual_time.run(main()) == 0


def test_timeout_ends_a_wait_at_its_deadline() -> None:
    """``asyncio.timeout`` works on virtual time."""

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert virtual_time.run(main()) == 30


def test_deadlock_is_an_error_that_says_who_waits_where() -> None:
    """Tasks that wait for one another, with no timer, end the run at once with the place of each."""

    async def wait_for_ever(event: asyncio.Event) -> None:
        await event.wait()

    async def main() -> None:
        await asyncio.sleep(5)
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for_ever(asyncio.Event()), name="the stuck one")

    with pytest.raises(DeadlockError) as caught:
        virtual_time.run(main())
    message = str(caught.value)
    assert "virtual time 5 s" in message
    assert "the stuck one waits at" in message
    assert "wait_for_ever (test_virtual_time.py:" in message


@pytest.mark.parametrize("when", [1e12, math.inf])
def test_a_deadline_that_is_never_met_hides_no_deadlock(when: float) -> None:
    """Such as that of a wait for a token of a simulated engine: the clock is not moved towards it, day by day."""

    async def main() -> None:
        await asyncio.sleep(5)
        async with asyncio.timeout_at(when):
            await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match="virtual time 5 s"):
        virtual_time.run(main())


@pytest.mark.parametrize("begin_s", [0.0, 2e7, 5e9])
def test_timers_fire_after_years(begin_s: float) -> None:
    """At their times, within what a float can tell, those that are due at once too; then time still stands still."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(begin_s)
        times = [loop.time()]
        for seconds in (0.25, 1e-12, 3.0):
            await asyncio.sleep(seconds)
            times.append(loop.time())
        due = asyncio.Event()
        loop.call_at(loop.time(), due.set)
        await due.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        return [*times, loop.time()]

    expected = [begin_s, begin_s + 0.25, begin_s + 0.25, begin_s + 3.25, begin_s + 3.25]
    assert virtual_time.run(main()) == pytest.approx(expected, rel=0, abs=1e-5)


def test_exception_of_main_is_raised() -> None:
    """``run`` raises what ``main`` raised."""

    async def main() -> None:
        await asyncio.sleep(1)
        raise KeyError("original")

    with pytest.raises(KeyError, match="original"):
        virtual_time.run(main())


def test_cancellation_reaches_a_groups_tasks_in_the_order_of_their_creation() -> None:
    """The order in which a failing group cancels its tasks is the same in every run, whatever their addresses."""

    async def sleeper(number: int, cancelled: list[int]) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            cancelled.append(number)

    async def fail_together(cancelled: list[int], num_objects: int) -> None:
        ballast = []
        async with asyncio.TaskGroup() as group:
            for number in range(40):
                # Objects between the tasks move their addresses.
                ballast.append([object()] * (num_objects * number))
                group.create_task(sleeper(number, cancelled))
            await asyncio.sleep(1)
            raise ValueError

    async def main(num_objects: int) -> list[int]:
        cancelled: list[int] = []
        with pytest.raises(ExceptionGroup):
            await fail_together(cancelled, num_objects)
        return cancelled

    assert virtual_time.run(main(1)) == virtual_time.run(main(97)) == list(range(40))


def test_thread_that_answers_at_once_costs_no_virtual_time() -> None:
    """Work in a thread is waited for in real time, so a timer in the far future does not overtake it."""

    async def main() -> tuple[int, float]:
        async with asyncio.timeout(3600):
            answer = await asyncio.to_thread(lambda: 42)
        return answer, asyncio.get_running_loop().time()

    assert virtual_time.run(main()) == (42, 0)


def test_thread_that_never_answers_meets_its_deadline() -> None:
    """While a thread works the clock runs in real time, so that a deadline on it still ends the wait."""
    release = threading.Event()

    async def main() -> None:
        try:
            async with asyncio.timeout(0.05):
                await asyncio.to_thread(release.wait)
        finally:
            release.set()

    with pytest.raises(TimeoutError):
        virtual_time.run(main())


def test_sockets_are_refused() -> None:
    """What waits for the outside world has no virtual time, and says so."""

    async def main() -> None:
        left, right = socket.socketpair()
        with left, right:
            asyncio.get_running_loop().add_reader(left, print)

    with pytest.raises(NotImplementedError, match="virtual time"):
        virtual_time.run(main())
