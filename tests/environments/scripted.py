"""Episodes over scripted answers: a real tokenizer of one token a character, and no engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prl.config_environment import EnvironmentConfig
from prl.engines.base import Decoding
from prl.environments.base import make_environment
from prl.environments.episodes import Door, Episodes
from prl.environments.session import Limits
from prl.sampler import Dropped
from prl.tokenizer import Tokenizer
from prl.types import Completion, Prompt, TokenChunk
from tests.tiny_tokenizers import END_ID

DECODING = Decoding(temperature=1.0, max_tokens=64, stop_token_ids=[END_ID])


LIMITS = Limits(16, 512)


class Answers:
    """Samples what it is told to say, in order, and keeps what it was asked. An exception is raised."""

    def __init__(self, tokenizer: Tokenizer, *answers: str | Dropped | Exception, version: int = 0) -> None:
        self._tokenizer, self._answers, self.version = tokenizer, list(answers), version
        self.asked: list[tuple[list[int], Decoding]] = []
        self.before_answer: Callable[[int], Any] = lambda _: None

    async def __call__(
        self, behind: Prompt, decoding: Decoding, record: Callable[[TokenChunk], None]
    ) -> Completion | Dropped:
        """The next answer, cut at ``max_tokens``; it ends with the stop token unless that cut it off."""
        number = len(self.asked)
        self.asked.append((behind.token_ids, decoding))
        self.before_answer(number)
        answer = self._answers[min(number, len(self._answers) - 1)]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Dropped):
            return answer
        whole = [*self._tokenizer.encode_rendered(answer), END_ID]
        token_ids = whole[: decoding.max_tokens]
        logprobs = [-0.5 - number] * len(token_ids)
        version = self.version
        for at in range(0, len(token_ids), 3):
            part = token_ids[at : at + 3]
            record(TokenChunk(token_ids=part, logprobs=logprobs[: len(part)], version=version))
        return Completion(
            token_ids=token_ids,
            logprobs=logprobs,
            versions=[version] * len(token_ids),
            text=self._tokenizer.decode(token_ids),
            finish="stop" if len(token_ids) == len(whole) else "length",
        )


def chat_prompt(tokenizer: Tokenizer, content: str = "hi", number: int = 0) -> Prompt:
    """A prompt as a prompt source makes it: a user's message."""
    messages = [{"role": "user", "content": content}]
    text = tokenizer.render_text(messages)
    token_ids = tokenizer.encode_rendered(text)
    return Prompt(id=number, token_ids=token_ids, text=text, messages=messages, fields={})


def episodes_of(
    environment: str,
    tokenizer: Tokenizer,
    *,
    limits: Limits = LIMITS,
    door: Door | None = None,
    **options: Any,
) -> Episodes:
    """What plays the environment of that name."""
    made = make_environment(EnvironmentConfig(name=environment, options=options))
    return Episodes(made, tokenizer, limits, door=door)
