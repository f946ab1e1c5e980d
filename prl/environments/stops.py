"""The stop sequences of a turn: it ends where its text has one of them, or its one tool call.

Invariants:

- The turn ends with the first token that completes a sequence, or the call. Whether it does depends on the tokens so
  far alone, never on the chunks in which they came, so what is trained are draws of the policy with the probabilities
  that they had. What an engine sampled behind that token was seen by nobody and is forgotten.
- The tokens of the sequence were sampled: they are trained, and they are in the turn's sample. The text that the
  environment is told ends before them. Handed back it is another history than what was sampled, which
  ``conversation.py`` sees as it sees any: the next turn begins a sample of its own.
- The text ends behind a call. Where that is all that was sampled, the next turn goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prl.environments.calls import CLOSE, find_calls
from prl.records import Member, completion_of
from prl.sampler import Dropped
from prl.types import Completion, TokenChunk, are_logprobs

Decode = Callable[[list[int]], str]
NO_TEXT = "\ufffd" * 4
"""Half a character is three bytes at most: behind more that are none nothing becomes one any more."""


class StopReachedError(Exception):
    """Goes from whoever hears a stream to whoever asked for it, and closes the stream on its way."""


class Spoken:
    """The text of tokens as they come: a window of them is decoded, so the work does not grow with what was said.

    Nor with bytes that are no text, of which a model that is not trained yet may say thousands.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._token_ids: list[int] = []
        self._begin = self._read = 0
        self._text = ""

    def with_tokens(self, token_ids: list[int]) -> str:
        """The text so far; half a character at its end is left out until its other half is there."""
        self._token_ids += token_ids
        known = self._decode(self._token_ids[self._begin : self._read])
        window = self._decode(self._token_ids[self._begin :])
        is_whole = not window.endswith("\ufffd") or window.endswith(NO_TEXT)
        if is_whole and len(window) > len(known):
            self._text += window[len(known) :]
            self._begin, self._read = self._read, len(self._token_ids)
        return self._text


class Listener:
    """Hears the chunks of one turn, up to its end."""

    def __init__(self, stops: Sequence[str] | str, decode: Decode, *, one_call: bool = False) -> None:
        """``one_call``: a tool call ends the turn, too. Raises ValueError for an empty sequence."""
        self._stops, self._decode = [stops] if isinstance(stops, str) else [*stops], decode
        self._one_call, self._call_from = one_call, 0
        if not all(self._stops):
            raise ValueError(f"a stop sequence must not be empty: {self._stops}")
        self._spoken, self._length = Spoken(decode), 0
        self._heard = Member()
        self.text: str | None = None
        """What was said before a sequence, or up to the end of a call; None while there is neither."""

    def hear(self, chunk: TokenChunk) -> list[int]:
        """The tokens of a chunk that are the turn's; ``text`` tells whether it has ended."""
        taken: list[int] = []
        for token, logprob in zip(chunk.token_ids, chunk.logprobs, strict=True):
            if self.text is not None:
                break
            taken.append(token)
            self._heard.add(TokenChunk(token_ids=[token], logprobs=[logprob], version=chunk.version))
            self._look(self._spoken.with_tokens([token]))
        return taken

    def _look(self, text: str) -> None:
        """Look for a sequence that ends in what is new."""
        found = [text.find(stop, max(0, self._length - len(stop) + 1)) for stop in self._stops]
        ends = [at for at in found if at >= 0]
        if self._one_call and (call_end := self._call_in(text)) is not None:
            ends.append(call_end)
        self._length = len(text)
        if ends:
            self.text = text[: min(ends)]

    def _call_in(self, text: str) -> int | None:
        """Where the first call ends, of those that end in what is new."""
        at = max(0, self._length - len(CLOSE) + 1)
        while (closes := text.find(CLOSE, at)) >= 0:
            at, begin = closes + len(CLOSE), self._call_from
            self._call_from = at
            if find_calls(text[begin:at], "")[1]:
                return at
        return None

    def completion(self) -> Completion | Dropped:
        """What was sampled, up to the token that completed a sequence or a call."""
        if not are_logprobs(self._heard.logprobs):
            return Dropped(reason="bad_logprobs", message="the engine reported a log-probability that is none")
        self._heard.finish = "stop"
        return completion_of(self._heard, self._decode)
