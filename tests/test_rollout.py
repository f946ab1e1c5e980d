"""One prompt to one outcome: what becomes of members, streams, deadlines, bugs and deaths."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from prl.config import EngineConfig
from prl.engines.pool import EnginePool
from prl.engines.simulated import SimulatedEngine
from prl.engines.simulated_stream import Script, StreamFault
from prl.errors import EngineDeadError, EngineError, PrlError
from prl.failure import FirstFailure
from prl.records import Member, Sampled
from prl.rollout import Done, Outcome, Rollout
from prl.sampler import MAX_DEATHS, Dropped, Sampler
from prl.types import Abstained, Completion, Finish, Group, Prompt, Score, ScoringFailed, Verdict
from tests.factories import make_prompt
from tests.streams import DECODING, GOOD, STALLED, Streams, as_numbers, chunk
from tests.virtual import in_virtual_time

TIMEOUT_S = 30.0


async def by_length(completion: Completion, prompt: Prompt) -> Verdict:
    """One point a token."""
    return Score(reward=float(len(completion.token_ids)))


def make_rollout(
    streams: Any = None,
    score: Callable[[Completion, Prompt], Awaitable[Verdict]] = by_length,
    *,
    group_size: int = 2,
    failure: FirstFailure | None = None,
    seed: int | None = None,
    record: Callable[[Sampled], None] = lambda _: None,
) -> Rollout:
    """A rollout over scripted streams; its text is the token ids."""
    return Rollout(
        Sampler(streams or Streams(), as_numbers),
        score,
        decoding=DECODING,
        group_size=group_size,
        timeout_s=TIMEOUT_S,
        failure=failure or FirstFailure(),
        seed=seed,
        record=record,
    )


def group_of(outcome: Outcome) -> Group:
    """The group of a rollout that is done."""
    assert isinstance(outcome, Done), outcome
    return outcome.group


def reason_of(outcome: Outcome) -> str:
    """Why a rollout came to nothing."""
    assert isinstance(outcome, Dropped), outcome
    return outcome.reason


# ---- members into a group --------------------------------------------------------------------------------------------


@in_virtual_time
async def test_members_stand_in_the_order_they_were_requested() -> None:
    """A member that ends first does not change places, and each score stays with its completion."""
    streams = Streams(
        (5.0, chunk(1, 2, 3, finish="stop")), (1.0, chunk(4, finish="stop")), (chunk(5, 6, finish="stop"),)
    )
    group = group_of(await make_rollout(streams, group_size=3)(make_prompt(7)))
    assert [completion.token_ids for completion in group.completions] == [[1, 2, 3], [4], [5, 6]]
    assert [score.reward for score in group.scores] == [3.0, 1.0, 2.0]
    assert group.prompt == make_prompt(7)
    assert [(asked[0], asked[2]) for asked in streams.asked] == [(make_prompt(7).token_ids, 7)] * 3


@in_virtual_time
async def test_each_completion_is_scored_as_soon_as_it_ends() -> None:
    """A reward does not wait for the group's longest sequence."""
    scored_at: list[float] = []

    async def score(completion: Completion, prompt: Prompt) -> Verdict:
        scored_at.append(asyncio.get_running_loop().time())
        return Score(reward=0.0)

    await make_rollout(Streams((9.0, *GOOD), (1.0, *GOOD)), score)(make_prompt())
    assert scored_at == [1, 9]


@in_virtual_time
async def test_streams_are_seeded_by_what_they_sample() -> None:
    """With a seed, each member and attempt of a prompt samples with its own, the same in every run; else with none."""

    async def seeds(number: int, run_seed: int | None) -> list[int | None]:
        streams = Streams([chunk(finish="abort")])
        await make_rollout(streams, seed=run_seed)(make_prompt(number))
        return [decoding.seed for _, decoding, _ in streams.asked]

    first = await seeds(0, 5)
    assert len(set(first)) == 4
    assert await seeds(0, 5) == first
    assert not set(first) & {*await seeds(1, 5), *await seeds(0, 6)}
    assert set(await seeds(0, None)) == {None}


# ---- members that come to nothing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [0, 2])
@pytest.mark.parametrize("finish", ["stop", "length", "abort", None])
@in_virtual_time
async def test_only_stop_and_length_are_scored(finish: Finish | None, num_tokens: int) -> None:
    """Field notes B, partial tokens that look like a finished answer: every finish, with some tokens and with none.

    An abort, an end without a finish and a completion without tokens never reach a reward.
    """
    scored: list[Completion] = []

    async def score(completion: Completion, prompt: Prompt) -> Verdict:
        scored.append(completion)
        return Score(reward=0.0)

    streams = Streams([chunk(*range(num_tokens)), chunk(finish=finish)] if finish else [chunk(*range(num_tokens))])
    outcome = await make_rollout(streams, score)(make_prompt())
    if finish in {"stop", "length"} and num_tokens:
        assert [completion.finish for completion in group_of(outcome).completions] == [finish] * 2
        assert len(scored) == 2
    else:
        assert reason_of(outcome) == "aborted"
        assert scored == []
        assert len(streams.asked) == 4, "each member is sampled once more"


@in_virtual_time
async def test_an_abort_is_sampled_once_more() -> None:
    """A member that was aborted is sampled from its prompt again, and nothing of the first attempt is in it."""
    streams = Streams((chunk(1, 2), chunk(finish="abort")), (chunk(3, finish="stop"),))
    rollout = make_rollout(streams, group_size=1)
    assert group_of(await rollout(make_prompt())).completions[0].token_ids == [3]
    assert len(streams.asked) == 2
    assert rollout.members_dropped == {}


@pytest.mark.parametrize(("num_failed", "num_left"), [(0, 4), (1, 3), (2, 2), (3, None), (4, None)])
@in_virtual_time
async def test_a_group_goes_on_with_its_survivors(num_failed: int, num_left: int | None) -> None:
    """Field notes A, failed members: a group of 4 with 0 to 4 failures goes on with two or more, else it is dropped.

    The failed ones are counted and are no reward of 0.
    """
    fails = (1.0, EngineError("the engine is out of memory"))
    first, again = [fails] * num_failed + [GOOD] * (4 - num_failed), [fails] * num_failed
    rollout = make_rollout(Streams(*first, *again), group_size=4)
    outcome = await rollout(make_prompt(3))
    if num_left is None:
        message = f"prompt 3: {num_failed} of 4 members: the engine is out of memory"
        assert outcome == Dropped(reason="engine_error", message=message)
    else:
        assert [score.reward for score in group_of(outcome).scores] == [2.0] * num_left
    assert rollout.members_dropped == Counter({"engine_error": num_failed} if num_failed else {})


@in_virtual_time
async def test_an_engine_error_is_sampled_once_more() -> None:
    """One refused request does not cost a member."""
    streams = Streams((chunk(1), EngineError("try again")), GOOD)
    assert len(group_of(await make_rollout(streams, group_size=1)(make_prompt())).completions) == 1


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (Abstained(reason="reward_abstained"), "abstained"),
        (ScoringFailed(reason="reward_timeout", message="the reward 'judge' took too long"), "reward_timeout"),
    ],
)
@in_virtual_time
async def test_what_is_not_scored_leaves_the_group(verdict: Verdict, reason: str) -> None:
    """Field notes E, reward exceptions and None: an abstention or a failure leaves the group and is counted."""

    async def score(completion: Completion, prompt: Prompt) -> Verdict:
        return verdict if completion.token_ids[0] == 1 else await by_length(completion, prompt)

    streams = Streams((chunk(1, finish="stop"),), (chunk(2, finish="stop"),), (chunk(3, finish="stop"),))
    rollout = make_rollout(streams, score, group_size=3)
    assert [c.token_ids for c in group_of(await rollout(make_prompt())).completions] == [[2], [3]]
    assert rollout.members_dropped == {reason: 1}
    assert len(streams.asked) == 3, "an answer that cannot be judged is not sampled again"


@in_virtual_time
async def test_a_group_is_judged_once_all_its_members_are_scored() -> None:
    """What judges groups sees the members that have a score, in their order, and decides on each of them."""
    seen: list[int] = []

    async def judge(completions: list[Completion], scores: list[Score], prompt: Prompt) -> list[Verdict]:
        seen.extend(len(completion.token_ids) for completion in completions)
        return [Abstained(reason="rank"), *(Score(reward=10 * score.reward) for score in scores[1:])]

    streams = Streams(GOOD, (chunk(1, finish="stop"),), (chunk(1, finish="abort"),), (chunk(1, 2, 3, finish="stop"),))
    rollout = Rollout(
        Sampler(streams, str),
        by_length,
        decoding=DECODING,
        group_size=3,
        timeout_s=TIMEOUT_S,
        failure=FirstFailure(),
        score_group=judge,
    )
    group = group_of(await rollout(make_prompt()))
    assert sorted(seen) == [1, 2, 3]
    assert [score.reward for score in group.scores] == [10.0 * len(done.token_ids) for done in group.completions]
    assert rollout.members_dropped == Counter({"abstained": 1})


@in_virtual_time
async def test_a_group_that_comes_to_nothing_names_its_commonest_reason() -> None:
    """The reason of a dropped group is that of most of its members, with one example."""

    async def score(completion: Completion, prompt: Prompt) -> Verdict:
        return ScoringFailed(reason="reward_error", message="the service is down")

    aborts = (1.0, chunk(1, finish="abort"))
    rollout = make_rollout(Streams(aborts, GOOD, GOOD, aborts), score, group_size=3)
    outcome = await rollout(make_prompt(4))
    assert outcome == Dropped(reason="reward_error", message="prompt 4: 3 of 3 members: the service is down")
    assert rollout.members_dropped == {"reward_error": 2, "aborted": 1}


# ---- deadlines and cancellations -------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_rollout_has_a_deadline() -> None:
    """Field notes A, one lost rollout: a member that never returns ends its rollout at the deadline, streams closed."""
    streams, failure = Streams(GOOD, STALLED, GOOD), FirstFailure()
    rollout = make_rollout(streams, group_size=3, failure=failure)
    outcome = await rollout(make_prompt(2))
    assert outcome == Dropped(reason="timeout", message="prompt 2: pipeline.rollout_timeout_s = 30 passed")
    assert asyncio.get_running_loop().time() == TIMEOUT_S
    assert streams.num_open == 0
    assert rollout.members_dropped == {"timeout": 3}
    assert failure.error is None


@in_virtual_time
async def test_the_deadline_covers_scoring() -> None:
    """A reward that never returns ends the rollout too, and holds no stream meanwhile."""
    streams, scoring = Streams(), asyncio.Event()

    async def score(completion: Completion, prompt: Prompt) -> Verdict:
        assert streams.num_open == 0
        scoring.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    assert reason_of(await make_rollout(streams, score, group_size=1)(make_prompt())) == "timeout"
    assert scoring.is_set()


@in_virtual_time
async def test_a_cancelled_rollout_closes_its_streams() -> None:
    """Field notes B, leaked request: a rollout that is cancelled in mid-stream leaves no stream open."""
    streams = Streams(STALLED)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(make_rollout(streams, group_size=4)(make_prompt()))
        await asyncio.sleep(1)
        assert streams.num_open == 4
        task.cancel()
    assert task.cancelled()
    assert streams.num_open == 0


@pytest.mark.parametrize("deadline", [True, False])
@in_virtual_time
async def test_a_stream_that_fails_to_close_is_not_sampled_again(deadline: bool) -> None:
    """Field notes B, aborted request's generator never returns: a cancelled rollout ends, whatever its streams do.

    An error from closing a stream neither swallows the cancellation nor makes the rollout start another stream.
    """
    streams = Streams(STALLED, closing=EngineError("did not free a stream"))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(make_rollout(streams, group_size=1)(make_prompt()))
        await asyncio.sleep(TIMEOUT_S + 1 if deadline else 1)
        task.cancel()
    if deadline:
        assert reason_of(task.result()) == "timeout"
    else:
        assert task.cancelled()
    assert len(streams.asked) == 1
    assert asyncio.get_running_loop().time() <= TIMEOUT_S + 1


# ---- what ends the run -----------------------------------------------------------------------------------------------


async def first_failure(rollout: Rollout, failure: FirstFailure) -> float:
    """Roll out beside a wait for the run's failure; the time when it came."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(rollout(make_prompt()))
        with contextlib.suppress(Exception), failure.interrupts():
            await asyncio.get_running_loop().create_future()
        task.cancel()
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_a_bug_in_a_reward_ends_the_run_at_once() -> None:
    """A TypeError in a reward is the run's failure as it was, without waiting for the group's other members."""
    failure, bug = FirstFailure(), TypeError("unsupported operand")

    async def score(completion: Completion, prompt: Prompt) -> Verdict:
        raise bug

    streams = Streams((1.0, *GOOD), STALLED)
    assert await first_failure(make_rollout(streams, score, failure=failure), failure) == 1
    assert failure.error is bug
    assert streams.num_open == 0


@in_virtual_time
async def test_engines_that_die_one_after_another_end_the_run() -> None:
    """Field notes H, a dead child is not noticed: a stream is not moved for ever; its first death ends the run."""
    failure, deaths = FirstFailure(), [EngineDeadError(f"engine-{number} is dead") for number in range(20)]
    streams = Streams(*((1.0, death) for death in deaths))
    assert await first_failure(make_rollout(streams, failure=failure, group_size=1), failure) == MAX_DEATHS + 1
    assert failure.error is deaths[0]
    assert len(streams.asked) == MAX_DEATHS + 1


@in_virtual_time
async def test_a_restored_member_goes_on_where_it_was() -> None:
    """After a resume finished members are scored, others go on behind their tokens, and what is full is finished."""
    full = [1] * DECODING.max_tokens
    so_far = {
        0: Member(token_ids=[7, 0], logprobs=[-0.5, -0.5], versions=[1, 2], finish="stop"),
        1: Member(attempt=1, token_ids=[7], logprobs=[-0.5], versions=[1]),
        2: Member(token_ids=list(full), logprobs=[-0.5] * len(full), versions=[1] * len(full)),
    }
    streams, records = Streams((chunk(9, version=2, finish="stop"),)), list[Any]()
    outcome = await make_rollout(streams, group_size=3, record=records.append)(make_prompt(5), so_far)
    assert [c.token_ids for c in group_of(outcome).completions] == [[7, 0], [7, 9], full]
    assert [c.finish for c in group_of(outcome).completions] == ["stop", "stop", "length"]
    assert [tokens for tokens, _, _ in streams.asked] == [[*make_prompt(5).token_ids, 7]]
    assert [(record.member, record.attempt) for record in records] == [(1, 1)]
    assert so_far[1].token_ids == [7]


@in_virtual_time
async def test_a_bug_in_decoding_ends_the_run() -> None:
    """So does a bug anywhere else in a member."""
    failure = FirstFailure()
    rollout = Rollout(
        Sampler(Streams(), lambda _: str(1 / 0)),
        by_length,
        decoding=DECODING,
        group_size=2,
        timeout_s=TIMEOUT_S,
        failure=failure,
    )
    assert await first_failure(rollout, failure) == 0
    assert isinstance(failure.error, ZeroDivisionError)


@in_virtual_time
async def test_a_member_that_is_cancelled_from_within_ends_the_run() -> None:
    """Field notes A, one lost rollout: a CancelledError that nobody asked for does not lose the rollout in silence."""
    failure = FirstFailure()

    async def score(completion: Completion, prompt: Prompt) -> Verdict:
        raise asyncio.CancelledError

    assert reason_of(await make_rollout(score=score, failure=failure)(make_prompt(5))) == "error"
    assert isinstance(failure.error, PrlError)
    assert str(failure.error) == "the rollout of prompt 5 was cancelled from within; this is a bug"


# ---- over engines ----------------------------------------------------------------------------------------------------


async def pool_of(*streams: StreamFault, token_timeout_s: float = 5.0) -> EnginePool:
    """A pool of one simulated engine with faults in its streams, the n-th of which is request n."""
    engine = SimulatedEngine(index=0, max_num_seqs=8, script=Script(streams=streams), seed=0)
    pool = EnginePool([engine], EngineConfig(token_timeout_s=token_timeout_s), gate_timeout_s=60)
    await pool.open()
    return pool


@pytest.mark.parametrize("kind", ["stall", "raise", "abort", "nan", "wrong_version", "end", "babble"])
@in_virtual_time
async def test_one_bad_stream_costs_nothing_but_its_tokens(kind: Any) -> None:
    """Every way in which a real engine's stream goes wrong is sampled once more, and the group is whole."""
    pool = await pool_of(StreamFault(kind=kind, request=1, token=2))
    rollout = make_rollout(pool, group_size=4)
    group = group_of(await rollout(make_prompt()))
    assert len(group.completions) == 4
    assert all(math.isfinite(logprob) for completion in group.completions for logprob in completion.logprobs)
    assert rollout.members_dropped == {}
    assert pool.statistics().running == {"engine-0": 0}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("stall", "engine_error"),
        ("raise", "engine_error"),
        ("abort", "aborted"),
        ("nan", "bad_logprobs"),
        ("wrong_version", "engine_error"),
        ("end", "engine_error"),
        ("babble", "engine_error"),
    ],
)
@in_virtual_time
async def test_streams_that_all_go_wrong_drop_the_group(kind: Any, reason: str) -> None:
    """An engine whose every stream goes wrong drops the rollout with the reason, and holds no stream after."""
    pool = await pool_of(StreamFault(kind=kind, token=1))
    rollout = make_rollout(pool, group_size=4)
    assert reason_of(await rollout(make_prompt())) == reason
    assert rollout.members_dropped == {reason: 4}
    assert pool.statistics().running == {"engine-0": 0}


@in_virtual_time
async def test_an_engine_that_dies_ends_the_run() -> None:
    """The death of the engine in mid-stream is the run's failure."""
    pool, failure = await pool_of(StreamFault(kind="die", request=2, token=3)), FirstFailure()
    await first_failure(make_rollout(pool, group_size=4, failure=failure), failure)
    assert isinstance(failure.error, EngineDeadError)


@in_virtual_time
async def test_a_deadline_frees_the_engine() -> None:
    """Field notes B, leaked request: after a rollout's deadline the engine runs none of its streams."""
    pool = await pool_of(StreamFault(kind="stall", request=0), token_timeout_s=10 * TIMEOUT_S)
    assert reason_of(await make_rollout(pool, group_size=4)(make_prompt())) == "timeout"
    assert pool.engines[0].statistics().running == 0
