"""Failures reach whoever waits, at once and as they were; cancellations are neither lost nor taken for one another."""

# ruff: noqa: PT012, TRY301 -- what is raised here comes out of blocks, which are what is tested

from __future__ import annotations

import asyncio
import gc
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from prl.errors import PrlError
from prl.failure import FirstFailure, SideError, being_cancelled, failures_to, raise_as_it_was, running, together
from tests.virtual import in_virtual_time


async def for_ever(started: asyncio.Event | None = None) -> None:
    """Say that it has started, and wait without end."""
    if started is not None:
        started.set()
    await asyncio.get_running_loop().create_future()


async def leaks_a_cancellation() -> None:
    """Wait for something that was cancelled, as a library's background task may be; nobody cancels this task."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


def make_chained() -> KeyError:
    """An error with a cause and a context, as ``raise ... from`` leaves them."""
    try:
        try:
            raise ValueError("cause")
        except ValueError as cause:
            raise KeyError("original") from cause
    except KeyError as error:
        return error


def counts() -> int:
    """Cancellations of the current task that nobody has taken back."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


# ---- FirstFailure.interrupts -----------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_wait_ends_with_the_failure_itself() -> None:
    """The first failure ends a wait at once and is raised as the same object, in no group."""
    failure, boom = FirstFailure(), KeyError("boom")
    asyncio.get_running_loop().call_later(5, failure.set, boom)
    with pytest.raises(KeyError) as raised, failure.interrupts():
        await for_ever()
    assert raised.value is boom
    assert asyncio.get_running_loop().time() == 5
    assert counts() == 0


@in_virtual_time
async def test_a_failure_before_the_wait_is_raised_at_its_start() -> None:
    """A failure between two waits surfaces from the next one, before its body does anything; every time."""
    failure, boom = FirstFailure(), KeyError("boom")
    failure.set(boom)
    entered = False
    for _ in range(2):
        with pytest.raises(KeyError) as raised, failure.interrupts():
            entered = True
        assert raised.value is boom
    assert not entered


@in_virtual_time
async def test_a_raised_failure_keeps_its_cause() -> None:
    """Neither the cancellation that carried it nor an exception handled meanwhile replaces its cause or context."""
    boom = make_chained()
    cause, context = boom.__cause__, boom.__context__
    assert isinstance(cause, ValueError)
    failure = FirstFailure()
    asyncio.get_running_loop().call_soon(failure.set, boom)
    with pytest.raises(KeyError), failure.interrupts():
        await for_ever()
    try:
        raise OSError("something else")
    except OSError:
        with pytest.raises(KeyError), failure.interrupts():
            pass
    assert boom.__cause__ is cause
    assert boom.__context__ is context
    printed = "".join(traceback.format_exception(boom))
    assert "ValueError: cause" in printed
    assert "CancelledError" not in printed
    assert "something else" not in printed


@in_virtual_time
async def test_only_the_first_failure_counts() -> None:
    """What fails later, most often because of the first, does not replace it."""
    failure, first = FirstFailure(), KeyError("first")
    asyncio.get_running_loop().call_soon(failure.set, first)
    asyncio.get_running_loop().call_soon(failure.set, KeyError("second"))
    with pytest.raises(KeyError, match="first"), failure.interrupts():
        await for_ever()
    assert failure.error is first


@in_virtual_time
async def test_every_wait_is_interrupted() -> None:
    """All tasks that wait on the run see its failure, however many there are."""
    failure = FirstFailure()
    seen: list[BaseException] = []

    async def wait() -> None:
        try:
            with failure.interrupts():
                await for_ever()
        except KeyError as error:
            seen.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(wait())
        await asyncio.sleep(1)
        failure.set(KeyError("boom"))
    assert seen == [failure.error] * 3


@in_virtual_time
async def test_no_failure_no_trace() -> None:
    """A wait that ends by itself, with a result or an exception, leaves nothing behind for a later failure to hit."""
    failure = FirstFailure()
    with failure.interrupts():
        await asyncio.sleep(1)
    with pytest.raises(LookupError, match="own"), failure.interrupts():
        raise LookupError("own")
    failure.set(KeyError("boom"))
    await asyncio.sleep(1)
    assert counts() == 0


@in_virtual_time
async def test_a_cancellation_from_outside_goes_on() -> None:
    """Without a failure, a cancelled wait is cancelled."""
    failure = FirstFailure()

    async def wait() -> None:
        with failure.interrupts():
            await for_ever()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(wait())
        await asyncio.sleep(1)
        task.cancel()
    assert task.cancelled()


@pytest.mark.parametrize("cancelled_first", [True, False])
@in_virtual_time
async def test_failure_and_cancellation_at_once(cancelled_first: bool) -> None:
    """When both come in one turn of the loop the cancellation wins, in either order; the failure is kept."""
    failure = FirstFailure()

    async def wait() -> None:
        with failure.interrupts():
            await for_ever()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(wait())
        await asyncio.sleep(1)
        if cancelled_first:
            task.cancel()
        failure.set(KeyError("boom"))
        if not cancelled_first:
            task.cancel()
    assert task.cancelled()
    assert isinstance(failure.error, KeyError)


@in_virtual_time
async def test_a_result_in_the_same_turn_as_the_failure() -> None:
    """A wait whose result arrives in the turn of the failure raises the failure, and no cancellation is left over."""
    failure = FirstFailure()
    loop = asyncio.get_running_loop()
    result = loop.create_future()
    loop.call_later(1, result.set_result, "late")
    loop.call_later(1, failure.set, KeyError("boom"))
    with pytest.raises(KeyError), failure.interrupts():
        await result
    assert counts() == 0
    await asyncio.sleep(1)


@in_virtual_time
async def test_a_body_that_swallows_the_interruption() -> None:
    """Code under the wait that catches CancelledError hides no failure and leaves nothing half cancelled."""
    failure = FirstFailure()
    asyncio.get_running_loop().call_soon(failure.set, KeyError("boom"))
    with pytest.raises(KeyError), failure.interrupts(), suppress(asyncio.CancelledError):
        await for_ever()
    assert counts() == 0


@in_virtual_time
async def test_a_body_that_fails_while_it_is_interrupted() -> None:
    """An error of the clean-up that the interruption set off does not stand in for the failure; it becomes a note."""
    failure = FirstFailure()
    asyncio.get_running_loop().call_soon(failure.set, KeyError("boom"))
    with pytest.raises(KeyError) as raised, failure.interrupts():
        try:
            await for_ever()
        finally:
            raise OSError("clean-up")
    assert raised.value.__notes__ == ["the wait that this failure ended then raised OSError('clean-up')"]
    assert counts() == 0


@in_virtual_time
async def test_the_waiting_task_fails_itself() -> None:
    """A failure that the waiting task itself reports is raised where its wait ends, and cancels nothing later."""
    failure = FirstFailure()
    with pytest.raises(KeyError), failure.interrupts():
        failure.set(KeyError("own"))
    await asyncio.sleep(1)
    assert counts() == 0


@in_virtual_time
async def test_a_wait_inside_a_wait() -> None:
    """Two failures' waits nest, and so do two of one: the failure passes both and every cancellation is taken back."""
    for outer, inner in ((failure := FirstFailure(), failure), (FirstFailure(), FirstFailure())):
        asyncio.get_running_loop().call_soon(outer.set, KeyError("outer"))
        asyncio.get_running_loop().call_soon(inner.set, KeyError("inner"))
        with pytest.raises(KeyError, match="outer"), outer.interrupts(), inner.interrupts():
            await for_ever()
        assert counts() == 0


@in_virtual_time
async def test_a_wait_in_the_clean_up_of_a_cancelled_task() -> None:
    """A task that caught its cancellation, as clean-up does, sees a failure there and not a second cancellation."""
    failure = FirstFailure()

    async def clean_up() -> str:
        try:
            await for_ever()
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(1, failure.set, KeyError("boom"))
            with pytest.raises(KeyError), failure.interrupts():
                await for_ever()
        return "cleaned up"

    async with asyncio.TaskGroup() as group:
        task = group.create_task(clean_up())
        await asyncio.sleep(1)
        task.cancel()
    assert task.result() == "cleaned up"


# ---- interrupts and deadlines ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_deadline_inside_a_wait() -> None:
    """A deadline under the wait is a TimeoutError; the failure under a deadline is the failure."""
    failure = FirstFailure()
    with pytest.raises(TimeoutError), failure.interrupts():
        async with asyncio.timeout(1):
            await for_ever()
    asyncio.get_running_loop().call_later(1, failure.set, KeyError("boom"))
    with pytest.raises(KeyError), failure.interrupts():
        async with asyncio.timeout(2):
            await for_ever()
    assert counts() == 0


@in_virtual_time
async def test_a_deadline_around_a_wait() -> None:
    """A deadline around the wait is a TimeoutError; a failure before it is the failure, and the deadline is not hit."""
    failure = FirstFailure()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            with failure.interrupts():
                await for_ever()
    asyncio.get_running_loop().call_later(1, failure.set, KeyError("boom"))
    with pytest.raises(KeyError):
        async with asyncio.timeout(2):
            with failure.interrupts():
                await for_ever()
    assert counts() == 0


@pytest.mark.parametrize("deadline_first", [True, False])
@pytest.mark.parametrize("place", ["inside", "around"])
@in_virtual_time
async def test_a_deadline_in_the_same_turn_as_the_failure(place: str, deadline_first: bool) -> None:
    """Both at once: an inner deadline gives way to the failure, an outer one comes first; the count is right after."""
    failure = FirstFailure()
    with pytest.raises(KeyError if place == "inside" else TimeoutError):
        async with asyncio.timeout(None) as around:
            with failure.interrupts():
                async with asyncio.timeout(None) as inside:
                    deadline = inside if place == "inside" else around
                    if deadline_first:
                        deadline.reschedule(1)
                    asyncio.get_running_loop().call_at(1, failure.set, KeyError("boom"))
                    if not deadline_first:
                        deadline.reschedule(1)
                    await for_ever()
    assert isinstance(failure.error, KeyError)
    assert counts() == 0


@in_virtual_time
async def test_an_interrupted_task_group() -> None:
    """A wait for a task group is ended too: its members are cancelled and the failure comes out in no group."""
    failure, members = FirstFailure(), []
    asyncio.get_running_loop().call_later(1, failure.set, KeyError("boom"))
    with pytest.raises(KeyError), failure.interrupts():
        async with asyncio.TaskGroup() as group:
            members = [group.create_task(for_ever()) for _ in range(3)]
    assert all(member.cancelled() for member in members)
    assert counts() == 0


@in_virtual_time
async def test_a_task_group_after_an_interruption() -> None:
    """After an interruption the task can lead a group whose member fails: the group's error is no cancellation.

    A cancellation that stays counted makes the next task group of that task raise CancelledError for a member's error.
    """
    failure = FirstFailure()
    asyncio.get_running_loop().call_soon(failure.set, KeyError("boom"))
    with pytest.raises(KeyError), failure.interrupts():
        try:
            await for_ever()
        finally:
            raise OSError("clean-up")

    async def fail() -> None:
        raise LookupError("member")

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(for_ever())
    assert isinstance(raised.value.exceptions[0], LookupError)


# ---- guard and failures_to -------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_loop_that_fails() -> None:
    """Field notes A, exception in a fire-and-forget task: a loop's failure is the run's, and closes no group."""
    failure, boom = FirstFailure(), make_chained()

    async def loop() -> None:
        await asyncio.sleep(1)
        raise boom

    async with asyncio.TaskGroup() as group:
        group.create_task(failure.guard("admit", loop()))
        with pytest.raises(KeyError) as raised, failure.interrupts():
            await for_ever()
    assert raised.value is boom


@in_virtual_time
async def test_a_loop_that_ends_early() -> None:
    """Field notes A, a normal early return: a loop that should go on for ever and returns is a failure."""
    failure = FirstFailure()
    async with asyncio.TaskGroup() as group:
        group.create_task(failure.guard("admit", asyncio.sleep(1)))
        with pytest.raises(PrlError, match="the admit loop ended although the run goes on"), failure.interrupts():
            await for_ever()


@in_virtual_time
async def test_a_loop_that_is_cancelled_from_within() -> None:
    """A CancelledError that nobody asked for does not end a loop in silence."""
    failure = FirstFailure()
    async with asyncio.TaskGroup() as group:
        group.create_task(failure.guard("admit", leaks_a_cancellation()))
        with pytest.raises(PrlError, match="the admit loop was cancelled from within"), failure.interrupts():
            await for_ever()


@in_virtual_time
async def test_a_loop_that_is_cancelled() -> None:
    """A loop that the run cancels is cancelled; that is no failure."""
    failure, started = FirstFailure(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(failure.guard("admit", for_ever(started)))
        await started.wait()
        task.cancel()
    assert task.cancelled()
    assert failure.error is None


@in_virtual_time
async def test_the_garbage_collector_ends_no_loop() -> None:
    """Field notes A, task collected by the garbage collector: loops are held by their group and outlive it."""
    failure, started = FirstFailure(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(failure.guard("admit", for_ever(started)))
        await started.wait()
        gc.collect()
        await asyncio.sleep(1)
        failure.set(KeyError("boom"))
        with pytest.raises(KeyError), failure.interrupts():
            pass
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            assert task.cancel(), "the loop was still there"


@in_virtual_time
async def test_failures_to_keeps_all_but_asked_for_cancellations() -> None:
    """An exception and a leaked cancellation are given away as errors; a cancellation of the task is raised."""
    kept: list[Exception] = []
    with failures_to(kept.append, "the work"):
        raise KeyError("boom")
    with failures_to(kept.append, "the work"):
        await leaks_a_cancellation()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            with failures_to(kept.append, "the work"):
                await for_ever()
    assert [type(error) for error in kept] == [KeyError, PrlError]
    assert str(kept[1]) == "the work was cancelled from within; this is a bug"
    assert isinstance(kept[1].__cause__, asyncio.CancelledError)


@in_virtual_time
async def test_being_cancelled_tells_who_asked() -> None:
    """Only a cancellation of this task counts, not one that came out of what it awaited."""
    with pytest.raises(asyncio.CancelledError):
        await leaks_a_cancellation()
    assert not being_cancelled()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            try:
                await for_ever()
            finally:
                assert being_cancelled()


def test_raise_as_it_was() -> None:
    """Raising an error again inside a handler leaves its cause and context alone."""
    error = make_chained()
    cause, context = error.__cause__, error.__context__
    try:
        raise OSError("handled meanwhile")
    except OSError:
        with pytest.raises(KeyError):
            raise_as_it_was(error)
    assert (error.__cause__, error.__context__) == (cause, context)


# ---- together --------------------------------------------------------------------------------------------------------


def fails(error: Exception, after_s: float = 0) -> Callable[[], Awaitable[None]]:
    """Work that fails after a while, or before it waits for anything at all."""

    async def work() -> None:
        if after_s:
            await asyncio.sleep(after_s)
        raise error

    return work


async def double(number: int) -> int:
    """A result, a second later."""
    await asyncio.sleep(1)
    return 2 * number


@in_virtual_time
async def test_results_come_by_side() -> None:
    """Both are done side by side, each result stands under its side's name, and nothing is left pending."""
    pending: dict[str, str] = {}
    assert await together(pending, "doubling", a=lambda: double(1), b=lambda: double(2)) == {"a": 2, "b": 4}
    assert asyncio.get_running_loop().time() == 1
    assert pending == {}


@pytest.mark.parametrize("after_s", [0, 1])
@pytest.mark.parametrize("side", ["trainer", "engines"])
@in_virtual_time
async def test_the_first_failure_names_its_side_and_ends_the_other(side: str, after_s: float) -> None:
    """Field notes B, the peer already failed: the other side is cancelled at once, even if it has not started yet."""
    boom = make_chained()
    cause = boom.__cause__
    sides: dict[str, Callable[[], Awaitable[Any]]] = {"trainer": for_ever, "engines": for_ever}
    sides[side] = fails(boom, after_s)
    with pytest.raises(SideError, match=rf"^{side}: ") as raised:
        await together({}, "transfer", **sides)
    assert (raised.value.side, raised.value.error, raised.value.__cause__) == (side, boom, boom)
    assert boom.__cause__ is cause
    assert asyncio.get_running_loop().time() == after_s


@in_virtual_time
async def test_a_clean_up_that_fails_is_not_the_first_failure() -> None:
    """What the cancelled side raises on its way out does not hide why it was cancelled."""

    async def fails_when_cancelled() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            raise OSError("clean-up") from None

    with pytest.raises(SideError, match=r"^engines: 'boom'"):
        await together({}, "transfer", trainer=fails_when_cancelled, engines=fails(KeyError("boom"), 1))


@in_virtual_time
async def test_a_side_that_is_cancelled_from_within() -> None:
    """A CancelledError that nobody asked for is that side's failure, and not a cancellation of the whole."""
    with pytest.raises(SideError, match=r"^engines: the transfer was cancelled from within"):
        await together({}, "transfer", trainer=for_ever, engines=leaks_a_cancellation)


@in_virtual_time
async def test_a_cancellation_from_outside_ends_all_sides() -> None:
    """Cancelled, it cancels its sides, is cancelled itself, and says who had not answered."""
    pending: dict[str, str] = {}
    async with asyncio.TaskGroup() as group:
        task = group.create_task(together(pending, "transfer", a=lambda: double(1), b=for_ever))
        await asyncio.sleep(2)
        task.cancel()
    assert task.cancelled()
    assert pending == {"b": "transfer"}


@in_virtual_time
async def test_a_deadline_around_all_sides() -> None:
    """A deadline is a TimeoutError of its owner, who finds in ``pending`` who had not answered."""
    pending: dict[str, str] = {}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await together(pending, "transfer", a=for_ever, b=for_ever)
    assert pending == {"a": "transfer", "b": "transfer"}
    assert counts() == 0


@in_virtual_time
async def test_a_deadline_while_a_failure_is_cleaned_up() -> None:
    """When the other side is slow to end, the deadline's owner still learns which side failed, and how."""
    pending: dict[str, str] = {}

    async def slow_to_end() -> None:
        try:
            await for_ever()
        finally:
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await together(pending, "transfer", trainer=slow_to_end, engines=fails(ValueError("out of memory"), 1))
    assert pending == {"trainer": "transfer", "engines": "transfer failed: out of memory"}


@in_virtual_time
async def test_a_cancellation_while_a_failure_closes() -> None:
    """A cancellation that comes while the failed side's peer cleans up is not lost (Python 3.11 loses it otherwise)."""

    async def slow_to_end() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            await asyncio.sleep(5)
            raise

    async with asyncio.TaskGroup() as group:
        task = group.create_task(together({}, "transfer", a=slow_to_end, b=fails(KeyError("boom"), 1)))
        await asyncio.sleep(2)
        task.cancel()
    assert task.cancelled()


# ---- running ---------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_the_loop_runs_while_the_body_does() -> None:
    """The loop starts with the body and is cancelled, and over, when the body is done."""
    beats: list[float] = []
    ended = asyncio.Event()

    async def beat() -> None:
        try:
            while True:
                beats.append(asyncio.get_running_loop().time())
                await asyncio.sleep(1)
        finally:
            ended.set()

    async with running(beat()):
        await asyncio.sleep(2.5)
        assert beats == [0, 1, 2]
    assert ended.is_set()
    assert counts() == 0


@in_virtual_time
async def test_the_bodys_exception_leaves_as_it_was() -> None:
    """An exception of the body leaves in no group, with its cause, and the loop has ended."""
    boom = make_chained()
    cause, ended = boom.__cause__, asyncio.Event()

    async def loop() -> None:
        try:
            await for_ever()
        finally:
            ended.set()

    with pytest.raises(KeyError) as raised:
        async with running(loop()):
            await asyncio.sleep(1)
            raise boom
    assert raised.value is boom
    assert boom.__cause__ is cause
    assert ended.is_set()


@in_virtual_time
async def test_the_bodys_exception_is_not_lost_to_the_loops() -> None:
    """A loop that fails while it is cancelled does not hide why the body ended."""

    async def loop() -> None:
        try:
            await for_ever()
        finally:
            raise OSError("clean-up")

    with pytest.raises(KeyError, match="boom"):
        async with running(loop()):
            await asyncio.sleep(1)
            raise KeyError("boom")


@in_virtual_time
async def test_a_loops_exception_ends_the_body() -> None:
    """A loop that fails by itself ends the body's wait, and its exception leaves in no group."""
    with pytest.raises(KeyError, match="boom"):
        async with running(fails(KeyError("boom"), 1)()):  # type: ignore[arg-type]
            await for_ever()
    assert counts() == 0


@in_virtual_time
async def test_a_cancellation_ends_body_and_loop() -> None:
    """A cancellation from outside passes through."""
    ended = asyncio.Event()

    async def loop() -> None:
        try:
            await for_ever()
        finally:
            ended.set()

    async def body() -> None:
        async with running(loop()):
            await for_ever()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(body())
        await asyncio.sleep(1)
        task.cancel()
    assert task.cancelled()
    assert ended.is_set()


@in_virtual_time
async def test_a_body_that_fails_before_the_loop_starts() -> None:
    """A body that fails at once leaves no coroutine that was never awaited."""
    with pytest.raises(KeyError):
        async with running(for_ever()):
            raise KeyError("boom")
    gc.collect()


@in_virtual_time
async def test_guarded_loops_and_waits_together() -> None:
    """The way the controller uses all of it: two guarded loops, one fails, the step raises that and the rest ends."""
    failure, ended = FirstFailure(), asyncio.Event()

    async def other() -> None:
        try:
            await for_ever()
        finally:
            ended.set()

    async def loops() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(failure.guard("admit", fails(KeyError("boom"), 3)()))  # type: ignore[arg-type]
            group.create_task(failure.guard("watch", other()))

    @asynccontextmanager
    async def run() -> AsyncIterator[None]:
        async with running(loops()):
            yield

    with pytest.raises(KeyError, match="boom"):
        async with run():
            with failure.interrupts():
                await for_ever()
    assert ended.is_set()
    assert counts() == 0
