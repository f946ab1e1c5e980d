"""The smallest prompt and completion that a reward can be asked about."""

from __future__ import annotations

from prl.types import Completion, Prompt


def completion(text: str = "x") -> Completion:
    """A finished stream that reads ``text``."""
    return Completion(token_ids=[1], logprobs=[-1.0], versions=[0], text=text, finish="stop")


def prompt(answer: object = None, text: str = "q", prompt_id: int = 7) -> Prompt:
    """A prompt whose right answer is ``answer``; without one it has no such field."""
    fields = {} if answer is None else {"answer": answer}
    return Prompt(id=prompt_id, token_ids=[1], text=text, messages=[], fields=fields)
