"""One episode as its environment sees it: ask the model, give rewards.

Invariants:

- What is trained is what was sampled: ``conversation.py`` says behind which ids.
- An episode that may ask no more, since it has had its turns or its context is full, is over: asking raises
  EpisodeOverError, the turns that it has are trained.
- A turn that comes to nothing raises TurnFailedError and leaves no trace; the environment may ask again.
- A turn may have stop sequences (``stops.py``): what the environment is told ends before one, what is trained with it.
  One that may have a single tool call ends with it.
"""

from __future__ import annotations

import asyncio
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from prl.engines.base import Decoding
from prl.environments.calls import Message, ToolCall, as_message, find_calls
from prl.environments.conversation import Conversation, Place
from prl.environments.stops import Listener, StopReachedError
from prl.environments.transcript import written
from prl.errors import ConfigError, EpisodeOverError, TurnFailedError
from prl.sampler import Dropped, Sample, stream_seed
from prl.tokenizer import Tokenizer
from prl.types import Completion, Finish, Prompt, TokenChunk

OWN_PART = "environment"
"""The part of a score that a reward without a name of its own is."""
LONG_TEXT = 4_000
"""Characters that take about a millisecond to render and encode: more of them leave the event loop."""


class Limits(NamedTuple):
    """How long an episode may be."""

    max_turns: int
    max_model_len: int
    """Tokens of a turn's prompt and answer together."""
    timeout_s: float | None = None
    """The rollout's deadline, by which an episode ends; whoever plays it enforces it."""


class Address(NamedTuple):
    """Where an agent asks in the name of one episode."""

    base_url: str
    api_key: str


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What the model said in one turn."""

    text: str
    """All of it, without special tokens; what was said before a stop sequence, or up to the one call, that ended it."""
    tool_calls: list[ToolCall]
    """Only where tools were offered."""
    message: dict[str, Any]
    """The same as a message, to append to the conversation as it is."""
    token_ids: list[int]
    """What was sampled and is trained: the stop token, and a stop sequence's, among them."""
    logprobs: list[float]
    """Of each, after temperature."""
    finish: Finish
    num_prompt_tokens: int


class Session:
    """See the module. Of one episode, made by ``episodes.py``."""

    def __init__(
        self,
        prompt: Prompt,
        tokenizer: Tokenizer,
        sample: Sample,
        *,
        decoding: Decoding,
        limits: Limits,
        address: Address | None = None,
    ) -> None:
        self.prompt = prompt
        """What the episode is about: its messages, and the row's fields."""
        self.over: str | None = None
        """Why the model can be asked no more; None: it can."""
        self.failure: Dropped | None = None
        """The turn that came to nothing, if no other has followed."""
        self.error: Exception | None = None
        """What must end the run."""
        self.is_judging = False
        """Set by an environment that asks no more and only judges: what it raises then is its own, and never excused by
        the session's having said no."""
        self.rewards: dict[str, float] = {}
        """What the environment gave so far, by part."""
        self.noted: dict[str, float] = {}
        """What it noted beside."""
        self._tokenizer, self._sample, self._decoding, self._limits = tokenizer, sample, decoding, limits
        self._address = address
        self._conversation = Conversation(prompt, tokenizer)
        self._messages: list[dict[str, Any]] = []
        self._num_asked = 0

    # ---- for environments --------------------------------------------------------------------------------------------

    async def generate(
        self,
        given: Sequence[Message] | Sequence[int] | str | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        parallel_tool_calls: bool = True,
        max_tokens: int | None = None,
        stop: Sequence[str] | str = (),
        on_tokens: Callable[[list[int]], None] = lambda _: None,
    ) -> Reply:
        """Ask the model for a turn.

        Args:
            given: what it continues: messages, token ids, or plain text; absent, the prompt.
            tools: functions that the model may call, as OpenAI describes them.
            parallel_tool_calls: False ends the turn with its first call.
            max_tokens: fewer tokens than ``sampling.max_tokens`` for this turn.
            stop: texts, none empty, that end the turn as soon as it has said one.
            on_tokens: told of the tokens as they are sampled.

        Raises:
            EpisodeOverError: the episode has had its turns, or its context is full.
            TurnFailedError: the turn came to nothing.
        """
        if self.over is None and self._num_asked >= self._limits.max_turns:
            self.over = f"environment.max_turns = {self._limits.max_turns}"
        if self.over is not None:
            raise EpisodeOverError(f"the episode is over: {self.over}")
        number, earned = self._num_asked, math.fsum(self.rewards.values())
        self._num_asked += 1
        place = await self._place(given, tools)
        heard = self._heard(given, place)
        decoding = self._decoding_at(place, number, max_tokens)
        one_call = bool(tools) and not parallel_tool_calls
        listener = Listener(stop, self._tokenizer.decode, one_call=one_call) if stop or one_call else None
        sampled = await self._sampled(place, decoding, on_tokens, listener)
        self._conversation.add(place, sampled, earned)
        self.failure = None
        cut_text = None if listener is None else listener.text
        reply = self._reply(sampled, cut_text, len(place.token_ids), f"call_{number}_" if tools else None)
        self._messages = [*heard, written(reply.message)]
        return reply

    def reward(self, value: float, part: str = OWN_PART) -> None:
        """Add to the reward of the episode, under the name of a part of it; at any time, as often as there is reason.

        The episode is judged by the sum of all that it was given, and of ``[[rewards]]`` if there are any. With
        ``advantage.credit = "reward_to_go"`` it matters when: turns that are asked for afterwards did not earn it.
        """
        try:
            given = _finite(value, f"a reward, {part!r},")
        except ValueError:
            self.is_judging = True
            raise
        self.rewards[part] = self.rewards.get(part, 0.0) + given

    def note(self, value: float, part: str) -> None:
        """A number to be seen beside the rewards, in the metrics and samples, and worth nothing."""
        self.noted[part] = _finite(value, f"what is noted, {part!r},")

    @property
    def num_turns(self) -> int:
        """Turns that the model has had."""
        return self._conversation.num_turns

    @property
    def base_url(self) -> str:
        """Where an OpenAI client asks in the name of this episode."""
        return self._open_address.base_url

    @property
    def api_key(self) -> str:
        """With what it does."""
        return self._open_address.api_key

    # ---- for those who play it ---------------------------------------------------------------------------------------

    def completion(self) -> Completion:
        """The episode so far; it has a turn."""
        return self._conversation.completion(dict(self.rewards), dict(self.noted), self._messages)

    def text_of(self, token_ids: list[int]) -> str:
        """What ids say, without special tokens."""
        return self._tokenizer.decode(token_ids)

    def pieces(self, token_ids: list[int]) -> list[str]:
        """What each id says alone, special tokens included; half a character is a replacement character."""
        return self._tokenizer.pieces(token_ids)

    @property
    def _open_address(self) -> Address:
        if self._address is None:
            raise ConfigError("this environment's agent asks over HTTP: set gateway.enabled = true")
        return self._address

    async def _place(
        self, given: Sequence[Message] | Sequence[int] | str | None, tools: Sequence[Mapping[str, Any]]
    ) -> Place:
        if given is None:
            return self._conversation.at_prompt()
        if isinstance(given, str):
            return await self._beside(lambda: self._conversation.behind_text(given, is_rendered=False), len(given))
        messages = [item for item in given if isinstance(item, Mapping)]
        if len(messages) == len(given) > 0:
            length = sum(len(str(message.get("content", ""))) for message in messages)
            return await self._beside(lambda: self._conversation.behind_messages(messages, tools), length)
        token_ids = [item for item in given if isinstance(item, int)]
        if not token_ids or len(token_ids) < len(given):
            raise ValueError("generate takes messages, or token ids, or text, at least one")
        return self._conversation.behind_ids(token_ids)

    def _heard(self, given: Sequence[Message] | Sequence[int] | str | None, place: Place) -> list[dict[str, Any]]:
        """The conversation before a turn, for people; what was given as text or ids is one message."""
        messages = self.prompt.messages if given is None else given
        if messages and all(isinstance(message, Mapping) for message in messages):
            return [written(message) for message in messages if isinstance(message, Mapping)]
        return [written({"role": "user", "content": place.text})]

    async def _beside(self, work: Callable[[], Place], num_characters: int) -> Place:
        return work() if num_characters < LONG_TEXT else await asyncio.to_thread(work)

    def _decoding_at(self, place: Place, number: int, max_tokens: int | None) -> Decoding:
        room = self._limits.max_model_len - len(place.token_ids)
        if room < 1:
            most = self._limits.max_model_len  # in the words that agents look for: OpenAI's and vLLM's
            self.over = (
                f"the maximum context length is {most} tokens (engine.max_model_len), here are {len(place.token_ids)}"
            )
            raise EpisodeOverError(f"the episode is over: {self.over}")
        most = min(self._decoding.max_tokens, room, max_tokens or room)
        seed = self._decoding.seed
        if number and seed is not None:
            seed = stream_seed(seed, number)
        return msgspec.structs.replace(self._decoding, max_tokens=most, seed=seed)

    async def _sampled(
        self, place: Place, decoding: Decoding, on_tokens: Callable[[list[int]], None], listener: Listener | None
    ) -> Completion:
        def heard(chunk: TokenChunk) -> None:
            on_tokens(chunk.token_ids if listener is None else listener.hear(chunk))
            if listener is not None and listener.text is not None:
                raise StopReachedError

        behind = msgspec.structs.replace(self.prompt, token_ids=place.token_ids)
        try:
            sampled = await self._sample(behind, decoding, heard)
        except StopReachedError:
            assert listener is not None
            sampled = listener.completion()
        except Exception as error:
            self.error = error
            raise
        if isinstance(sampled, Dropped):
            self.failure = sampled
            raise TurnFailedError(f"the turn came to nothing: {sampled.message}")
        return sampled

    def _reply(
        self, sampled: Completion, cut_text: str | None, num_prompt_tokens: int, call_prefix: str | None
    ) -> Reply:
        """``cut_text`` is what the environment is told, where a stop sequence or a call ended the turn."""
        text = sampled.text if cut_text is None else cut_text
        content, calls = (text, []) if call_prefix is None else find_calls(text, call_prefix)
        message = as_message(content, calls)
        if cut_text in (None, sampled.text):
            ends = sampled.finish == "stop" and sampled.token_ids[-1] in self._decoding.stop_token_ids
            self._conversation.handed_over(message, sampled.token_ids[: -1 if ends else None])
        return Reply(
            text=text,
            tool_calls=calls,
            message=message,
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            finish=sampled.finish,
            num_prompt_tokens=num_prompt_tokens,
        )


def _finite(value: float, what: str) -> float:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{what} must be a finite number, and it is {value!r}")
    return float(value)
