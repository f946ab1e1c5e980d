"""Token in, token out across the turns of an episode: which token ids stand before a turn, and in which sample it is.

Invariants:

- A turn whose prompt begins with all that an earlier one had, its answer included, extends that one's sample: the ids
  so far stay as they are, sampled ones among them, and only the new text behind them is tokenised.
- Any other turn begins a sample of its own, with its whole prompt: one whose history was rewritten, by the chat
  template or by the agent, a branch, a second conversation beside the first. No text is ever searched or patched.
- Every sampled token is in exactly one sample, behind exactly the ids that it was sampled behind.
- A message that a reply was, handed back, is taken for the reply's own tokens, however a chat template would write it.
- A turn may be placed in a thread while others are added: it sees each sample as it is before or after one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from prl.environments.calls import Message, shown
from prl.tokenizer import Tokenizer
from prl.types import Completion, Prompt, Turn


class Place(NamedTuple):
    """Where a turn is sampled."""

    token_ids: list[int]
    """All ids before it."""
    text: str
    """What they say, special tokens included."""
    sample: int | None
    """The sample that it extends; None begins one."""
    num_known: int
    """How many of the ids that sample has."""


class _Sample(msgspec.Struct, frozen=True):
    token_ids: list[int]
    text: str


class Conversation:
    """The turns of one episode."""

    def __init__(self, prompt: Prompt, tokenizer: Tokenizer) -> None:
        self._prompt, self._tokenizer = prompt, tokenizer
        self._samples: list[_Sample] = []
        self._sampled: list[Completion] = []
        self._turns: list[Turn] = []
        self._said: dict[tuple[str, tuple[str, ...]], str] = {}
        """What was sampled, by the message that it was handed over as."""

    @property
    def num_turns(self) -> int:
        """Turns that are there."""
        return len(self._turns)

    def at_prompt(self) -> Place:
        """Behind the prompt as the data gives it."""
        return self._begun(self._prompt.token_ids, self._prompt.text)

    def behind_messages(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Place:
        """Behind messages as the chat template writes them, but for what the model said: that stays as it was."""
        return self.behind_text(shown(list(map(self._as_sampled, messages)), tools, self._tokenizer), is_rendered=True)

    def _as_sampled(self, message: Message) -> Message:
        """A reply that is handed back, in the words that were sampled."""
        said = self._said.get(_identity(message)) if message.get("role") == "assistant" else None
        return message if said is None else {"role": "assistant", "content": said}

    def behind_text(self, text: str, *, is_rendered: bool) -> Place:
        """Behind a text: one that a chat template rendered has its special tokens already, a plain one gets a BOS."""
        if text == self._prompt.text and is_rendered == bool(self._prompt.messages):
            return self.at_prompt()
        fitting = [(index, sample) for index, sample in enumerate(self._samples) if text.startswith(sample.text)]
        if not fitting:
            encode = self._tokenizer.encode_rendered if is_rendered else self._tokenizer.encode
            return Place(encode(text), text, None, 0)
        number, known = max(fitting, key=lambda each: len(each[1].text))
        new = text[len(known.text) :]
        return Place([*known.token_ids, *self._tokenizer.encode_rendered(new)], text, number, len(known.token_ids))

    def behind_ids(self, token_ids: list[int]) -> Place:
        """Behind these ids."""
        if token_ids == self._prompt.token_ids:
            return self.at_prompt()
        return self._begun(token_ids, None)

    def add(self, place: Place, sampled: Completion, earned: float = 0.0) -> None:
        """A turn that was sampled at ``place``; ``earned`` is what the episode had been given when it was asked for.

        Where another turn extended the same sample meanwhile, this one branches.
        """
        sample = _Sample(
            [*place.token_ids, *sampled.token_ids], place.text + self._tokenizer.decode_all(sampled.token_ids)
        )
        if place.sample is not None and len(self._samples[place.sample].token_ids) == place.num_known:
            number, context = place.sample, place.token_ids[place.num_known :]
            self._samples[number] = sample
        else:
            number, context = len(self._samples), place.token_ids
            self._samples.append(sample)
        self._turns.append(
            Turn(
                sample=number,
                context=context,
                num_sampled=len(sampled.token_ids),
                finish=sampled.finish,
                earned=earned,
            )
        )
        self._sampled.append(sampled)

    def handed_over(self, message: Message, token_ids: list[int]) -> None:
        """The environment knows these sampled tokens as this message, and may hand it back."""
        self._said[_identity(message)] = self._tokenizer.decode_all(token_ids)

    def completion(
        self,
        rewards: dict[str, float],
        noted: dict[str, float] | None = None,
        messages: Sequence[dict[str, Any]] = (),
    ) -> Completion:
        """The episode; it has a turn. ``messages`` tell it to people."""
        last = self._sampled[-1]
        return Completion(
            token_ids=[token for sampled in self._sampled for token in sampled.token_ids],
            logprobs=[logprob for sampled in self._sampled for logprob in sampled.logprobs],
            versions=[version for sampled in self._sampled for version in sampled.versions],
            text=last.text,
            finish=last.finish,
            turns=list(self._turns),
            rewards=rewards,
            messages=list(messages),
            noted=noted or {},
        )

    def _begun(self, token_ids: list[int], text: str | None) -> Place:
        """Behind ids that are known as ids; ``text`` None: what they say."""
        fitting = [
            (index, sample)
            for index, sample in enumerate(self._samples)
            if token_ids[: len(sample.token_ids)] == sample.token_ids
        ]
        if not fitting:
            said = self._tokenizer.decode_all(token_ids) if text is None else text
            return Place(token_ids, said, None, 0)
        number, known = max(fitting, key=lambda each: len(each[1].token_ids))
        new = token_ids[len(known.token_ids) :]
        return Place(token_ids, known.text + self._tokenizer.decode_all(new), number, len(known.token_ids))


def _identity(message: Message) -> tuple[str, tuple[str, ...]]:
    """By what a reply is known again: its calls, and its content but for white space around it."""
    calls = message.get("tool_calls") or ()
    return str(message.get("content") or "").strip(), tuple(str(call.get("id", "")) for call in calls)
