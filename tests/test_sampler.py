"""One stream to one completion: what is kept, what is refused, and what becomes of it when its engine is gone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest

from prl.errors import EngineDeadError, EngineError, EngineLeftError, EngineStalledError
from prl.sampler import MAX_DEATHS, Dropped, Sampler
from prl.types import Completion, Finish, TokenChunk
from tests.factories import make_prompt
from tests.streams import DECODING, Item, Streams, as_numbers, chunk
from tests.virtual import in_virtual_time


def sampler(*scripts: Sequence[Item]) -> tuple[Sampler, Streams]:
    """A sampler over scripted streams, and those."""
    streams = Streams(*scripts)
    return Sampler(streams, as_numbers), streams


async def completed(*scripts: Sequence[Item]) -> Completion:
    """What is sampled of streams that make a completion."""
    outcome = await sampler(*scripts)[0].sample(make_prompt(), DECODING)
    assert isinstance(outcome, Completion), outcome
    return outcome


# ---- what is a completion --------------------------------------------------------------------------------------------


@in_virtual_time
async def test_chunks_fold_into_a_completion() -> None:
    """Tokens, log-probabilities and versions are those of the chunks, in order; the finish is the last one's."""
    script = (chunk(7, 8, version=3, logprob=-0.25), chunk(version=4), chunk(0, version=4, finish="stop"))
    assert await completed(script) == Completion(
        token_ids=[7, 8, 0], logprobs=[-0.25, -0.25, -0.5], versions=[3, 3, 4], text="7 8 0", finish="stop"
    )


@in_virtual_time
async def test_what_is_sampled_stays_tokens() -> None:
    """Field notes C, re-tokenising text: the completion holds the sampled ids even where its text has shorter ones."""
    he, llo, hello = 11, 12, 13
    vocabulary = {he: "he", llo: "llo", hello: "hello"}
    streams = Streams((chunk(he), chunk(llo, finish="length")))
    greeting = Sampler(streams, lambda token_ids: "".join(vocabulary[token] for token in token_ids))
    completion = await greeting.sample(make_prompt(), DECODING)
    assert isinstance(completion, Completion)
    assert (completion.token_ids, completion.text, completion.finish) == ([he, llo], "hello", "length")


@pytest.mark.parametrize("num_tokens", [0, 2])
@pytest.mark.parametrize("finish", ["stop", "length", "abort", None])
@in_virtual_time
async def test_only_stop_and_length_with_tokens_are_completions(finish: Finish | None, num_tokens: int) -> None:
    """Field notes B, partial tokens that look like a finished answer: every finish, with some tokens and with none."""
    made, _ = sampler([chunk(*range(num_tokens), finish=finish)])
    outcome = await made.sample(make_prompt(), DECODING)
    if finish in {"stop", "length"} and num_tokens:
        assert isinstance(outcome, Completion)
    else:
        message = f"the stream ended with {finish} after {num_tokens} tokens"
        assert outcome == Dropped(reason="aborted", message=message)


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("logprob", [math.nan, -math.inf, math.inf, 0.1])
@in_virtual_time
async def test_a_logprob_that_is_none_rejects_the_sample(logprob: float, position: int) -> None:
    """Field notes D, None / NaN / -inf log-probs: the sample is rejected, the value is never replaced."""
    chunks = [chunk(1), chunk(2)]
    chunks[position] = chunk(9, logprob=logprob)
    outcome = await sampler([*chunks, chunk(0, finish="stop")])[0].sample(make_prompt(), DECODING)
    assert isinstance(outcome, Dropped)
    assert outcome.reason == "bad_logprobs"


@in_virtual_time
async def test_rounding_above_0_is_a_logprob() -> None:
    """A certain token whose log-probability rounds to above 0 is fine."""
    assert (await completed([chunk(1, finish="stop", logprob=1e-6)])).logprobs == [1e-6]


# ---- when its engine is gone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "num_moved", "num_handed_over"),
    [
        (EngineDeadError("engine-0 is dead"), 1, 0),
        (EngineStalledError("engine-0 gave no token"), 1, 0),
        (EngineLeftError("engine-0 was removed"), 0, 1),
    ],
)
@in_virtual_time
async def test_a_stream_goes_on_with_another_engine(error: EngineError, num_moved: int, num_handed_over: int) -> None:
    """What an engine sampled is kept, with its versions; the rest is sampled behind it, elsewhere, and counted."""
    first = (chunk(7, version=3, logprob=-0.25), chunk(8, version=3), error)
    (made, streams), told = sampler(first, (chunk(9, version=4, finish="stop"),)), list[TokenChunk]()
    assert await made.sample(make_prompt(5), DECODING, told.append) == Completion(
        token_ids=[7, 8, 9], logprobs=[-0.25, -0.5, -0.5], versions=[3, 3, 4], text="7 8 9", finish="stop"
    )
    prompt = make_prompt(5).token_ids
    assert [(tokens, decoding.max_tokens, decoding.num_known) for tokens, decoding, _ in streams.asked] == [
        (prompt, DECODING.max_tokens, 0),
        ([*prompt, 7, 8], DECODING.max_tokens - 2, 2),
    ]
    assert [each.token_ids for each in told] == [[7], [8], [9]]
    assert (made.num_moved, made.num_handed_over) == (num_moved, num_handed_over)


@in_virtual_time
async def test_a_stream_that_goes_on_draws_with_other_numbers() -> None:
    """An engine whose numbers begin anew with a request must not draw token n + 1 with what drew the first."""
    made, streams = sampler((chunk(7, 8), EngineDeadError("engine-0 is dead")), (chunk(9, finish="stop"),))
    await made.sample(make_prompt(), msgspec.structs.replace(DECODING, seed=5))
    first, second = (decoding for _, decoding, _ in streams.asked)
    assert first.seed == second.seed == first.request_seed()
    assert second.request_seed() != first.request_seed()
    assert second.request_seed() == msgspec.structs.replace(second).request_seed()
    later = msgspec.structs.replace(second, num_known=3)
    assert later.request_seed() not in {first.request_seed(), second.request_seed()}
    assert msgspec.structs.replace(second, seed=None).request_seed() is None


@in_virtual_time
async def test_a_stream_that_has_all_its_tokens_asks_no_other_engine() -> None:
    """An engine that dies before it says that the limit is reached owes nothing: none is asked for 0 tokens."""
    made, streams = sampler((chunk(7, 8), EngineDeadError("engine-0 is dead")))
    outcome = await made.sample(make_prompt(), msgspec.structs.replace(DECODING, max_tokens=2))
    assert isinstance(outcome, Completion)
    assert (outcome.token_ids, outcome.finish, len(streams.asked)) == ([7, 8], "length", 1)


@in_virtual_time
async def test_deaths_and_stalls_are_counted_apart() -> None:
    """A death that was made good is not what ends a stream that stalls too often: that is no death, and no run's end.

    Nor does a stall hide the deaths of every engine.
    """
    died, stalled = (
        (lambda: EngineDeadError("engine-0 is dead")),
        (lambda: EngineStalledError("engine-1 gave no token")),
    )
    made, streams = sampler([died()], [stalled()], [stalled()])
    assert await made.sample(make_prompt(), DECODING) == Dropped(
        reason="engine_error", message="engine-1 gave no token"
    )
    assert (len(streams.asked), made.num_moved) == (3, 2)
    made, streams = sampler([stalled()], *[[died()]] * (MAX_DEATHS + 1))
    with pytest.raises(EngineDeadError):
        await made.sample(make_prompt(), DECODING)
    assert len(streams.asked) == MAX_DEATHS + 2
