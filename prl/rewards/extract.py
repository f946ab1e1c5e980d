r"""The final answer of a completion, found by linear scans.

The answer is what the text states last: the content of the last ``\boxed{...}``, or the rest of the sentence after the
last "answer is", "answer:" or "####", whichever stands later. Where neither occurs it is the last number.

- Thinking is no answer: only text after ``</think>`` counts, there is at most one such block, and a block that is never
  closed (opened by the completion, or by the chat template at the end of the prompt) means there is no answer.
- A last box that is never closed means there is no answer: nothing else in the text stands in for it.
- Only the last ``TAIL_CHARS`` characters are searched, so that no text can take long.
"""

from __future__ import annotations

import re
from typing import Literal

from prl.types import Completion, Prompt

TAIL_CHARS = 10_000

Extract = Literal["auto", "boxed", "number", "text"]
"""How an answer is found: by the rule above, in a box only, the last number only, or the whole (not too long) text."""

_OPEN, _CLOSE = "<think>", "</think>"
_BOX = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_STATEMENT = re.compile(r"\banswer(?:\s+is\b|\s?[*_]{0,3}\s?[:=])|####", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|\.(?=\s|$)")
_NUMBER = re.compile(r"[-\u2212]?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_DECORATION = " \t*_$:="


def final_answer(completion: Completion, prompt: Prompt, extract: Extract = "auto") -> str | None:
    """What the completion states as its answer, or None. The prompt only tells whether it opened the thinking."""
    text = after_thinking(completion.text, opened=opens_thinking(prompt))
    if text is None:
        return None
    if extract == "text":
        return text.strip() if len(text) <= TAIL_CHARS else None
    text = text[-TAIL_CHARS:]
    if extract == "number":
        return _last_number(text)
    box = None
    for box in _BOX.finditer(text):  # noqa: B007  (only the last one is wanted)
        pass
    if box is None:
        return None if extract == "boxed" else _last_statement(text) or _last_number(text)
    end = _closing_brace(text, box.end())
    if end is None:
        return None
    stated = _last_statement(text[end:]) if extract == "auto" else None
    return stated or text[box.end() : end].strip()


def opens_thinking(prompt: Prompt) -> bool:
    """Whether the chat template has begun the thinking, so that the completion goes on with it."""
    return prompt.text.rfind(_OPEN) > prompt.text.rfind(_CLOSE)


def after_thinking(text: str, *, opened: bool) -> str | None:
    """The text behind its one thinking block, or all of it; None where the thinking is not over, or there are two."""
    num_opened, num_closed = text.count(_OPEN) + opened, text.count(_CLOSE)
    if num_opened != num_closed or num_opened > 1:
        return None
    return text[text.rfind(_CLOSE) + len(_CLOSE) :] if num_closed else text


def _closing_brace(text: str, start: int) -> int | None:
    """Where the brace that was opened just before ``start`` closes; an escaped brace is none."""
    depth = 1
    for token in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if depth == 0:
            return token.start()
    return None


def _last_statement(text: str) -> str | None:
    """The rest of the sentence after the last statement of an answer, without Markdown around it."""
    start = -1
    for match in _STATEMENT.finditer(text):
        start = match.end()
    if start < 0:
        return None
    end = _SENTENCE_END.search(text, start)
    return text[start : end.start() if end else len(text)].strip(_DECORATION) or None


def _last_number(text: str) -> str | None:
    number = None
    for match in _NUMBER.finditer(text):
        number = match.group().rstrip(",")
    return number
