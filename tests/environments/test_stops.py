"""Stop sequences: where a turn ends, whatever the chunks in which its tokens come."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from prl.environments.stops import Listener, Spoken, StopReachedError
from prl.sampler import Dropped, Sampler
from prl.types import Completion, TokenChunk
from tests.factories import make_prompt
from tests.streams import DECODING, Streams

TEXT = b"look: \xc3\xa9t\xc3\xa9 END and more"
"""One token a byte, so that a character may be two tokens."""


def decode(token_ids: list[int]) -> str:
    """What bytes say; half a character is a replacement character."""
    return bytes(token_ids).decode(errors="replace")


def listen(stops: Sequence[str] | str, size: int, logprob: float = -0.5) -> tuple[Listener, list[int]]:
    """A listener that has heard the text in chunks of this size, and the tokens that it took."""
    listener, taken = Listener(stops, decode), list[int]()
    for version, at in enumerate(range(0, len(TEXT), size)):
        part = [*TEXT[at : at + size]]
        taken += listener.hear(TokenChunk(token_ids=part, logprobs=[logprob] * len(part), version=version))
    return listener, taken


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(TEXT)])
@pytest.mark.parametrize(
    ("stops", "text", "tokens"),
    [
        (["END"], "look: \u00e9t\u00e9 ", b"look: \xc3\xa9t\xc3\xa9 END"),
        (["END", "t\u00e9"], "look: \u00e9", b"look: \xc3\xa9t\xc3\xa9"),
        (["\u00e9"], "look: ", b"look: \xc3\xa9"),
        (["l"], "", b"l"),
        (["look: ", "oo"], "l", b"loo"),
        (["never"], None, TEXT),
    ],
)
def test_a_turn_ends_with_the_token_that_completes_a_sequence(
    stops: list[str], text: str | None, tokens: bytes, size: int
) -> None:
    """The text ends before the sequence and the tokens with it, the same for chunks of any size."""
    listener, taken = listen(stops, size)
    assert (listener.text, bytes(taken)) == (text, tokens)
    if text is not None:
        completion = listener.completion()
        assert isinstance(completion, Completion)
        assert bytes(completion.token_ids) == tokens
        assert completion.versions == [at // size for at in range(len(tokens))]
        assert (completion.logprobs, completion.finish) == ([-0.5] * len(tokens), "stop")


def test_tokens_without_a_probability_are_no_turn() -> None:
    """As in any stream."""
    listener, _ = listen(["END"], 4, logprob=float("nan"))
    assert isinstance(listener.completion(), Dropped)


def test_one_text_is_one_sequence_and_none_is_empty() -> None:
    """As in OpenAI's form."""
    assert listen("END", 3)[0].text == "look: \u00e9t\u00e9 "
    with pytest.raises(ValueError, match="must not be empty"):
        Listener(["END", ""], decode)


def test_bytes_that_are_no_text_cost_no_more_than_text() -> None:
    """They are given out as what they are after a few tokens; what follows is read as ever."""
    decoded = 0

    def counted(token_ids: list[int]) -> str:
        nonlocal decoded
        decoded += len(token_ids)
        return decode(token_ids)

    spoken = Spoken(counted)
    for _ in range(1000):
        spoken.with_tokens([0xFF])
    assert decoded < 50 * 1000
    for token in b" so \xc3\xa9":
        text = spoken.with_tokens([token])
    assert text == "\ufffd" * 1000 + " so \u00e9"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 13])
def test_no_character_is_lost_between_chunks(size: int) -> None:
    """A chunk may end within one, however long it is."""
    text = "so \u00e9\u4e2d\U0001f600\U0001f601 and more \u4e2d\u6587\U0001f602"
    tokens, spoken, said = [*text.encode()], Spoken(decode), ""
    for at in range(0, len(tokens), size):
        said = spoken.with_tokens(tokens[at : at + size])
        assert text.startswith(said)
    assert said == text


async def test_the_stream_is_closed() -> None:
    """Whoever hears that a sequence is complete ends the stream, and its engine is free."""
    streams = Streams([TokenChunk(token_ids=[token], logprobs=[-0.5], version=0) for token in TEXT])
    listener = Listener(["t"], decode)

    def hear(chunk: TokenChunk) -> None:
        listener.hear(chunk)
        if listener.text is not None:
            raise StopReachedError

    with pytest.raises(StopReachedError):
        await Sampler(streams, decode).sample(make_prompt(0), DECODING, hear)
    assert (streams.num_open, listener.text) == (0, "look: \u00e9")
