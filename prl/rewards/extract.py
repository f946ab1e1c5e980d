r"""The final answer of a completion, found by linear scans.

The answer is what the text states last: the content of the last ``\boxed{...}``, or the rest of the sentence after the
last "answer is", "answer:" or "####", whichever stands later. Where neither occurs it is the last number.

- Thinking is no answer: only text after ``</think>`` (or ``thinking``, ``thought``, ``reasoning``) counts, there is at
  most one such block, and a block that is never closed (opened by the completion, or by the chat template at the end of
  the prompt) means there is no answer.
- Boxes with nothing but ``and``, ``or``, commas and spaces between them are one answer, a list: who boxes every number
  has not answered. Boxes with other words between them are corrections, and the last one counts (``boxes = "last"``:
  always). What is offered right behind the answer (``or maybe 8``) belongs to it, but not what only says it again (``or
  equivalently 1.5``, ``Alternatively, 6*7 = 42``), nor a paragraph about another way.
- That the answer is correct, or consistent, is said of an answer and is none.
- A last box that is never closed means there is no answer: nothing else in the text stands in for it.
- Only the last ``TAIL_CHARS`` characters are searched, so that no text can take long.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Literal

from prl.types import Completion, Prompt

TAIL_CHARS = 10_000

Extract = Literal["auto", "boxed", "number", "text"]
"""How an answer is found: by the rule above, in a box only, the last number only, or the whole (not too long) text."""

Boxes = Literal["list", "last"]
"""What several boxes side by side are."""

_THINKING = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>")
_BOX = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_BETWEEN = re.compile(r"(?:[\s,;$&*]|\\[,;! ]|\\quad|\\(?:text\s*\{\s*)?|\b(?:and|or)\b|\})*")
_OFFERED = re.compile(
    r"([\s,;.$(*]*)(?:\\text\s*\{\s*)?\(?((?:or|maybe|perhaps|possibly|alternatively|otherwise)\b[^\n]{0,80})",
    re.IGNORECASE,
)
_ANOTHER_WAY = re.compile(r"alternatively|otherwise", re.IGNORECASE)
_SAID_AGAIN = re.compile(r"or,? (?:equivalently|simply|in other words|that is|in decimal)\b", re.IGNORECASE)
_COMPUTED = re.compile(r"[^=]*=(?:[^=]*=)*\s*\$?\s*([^\s=$]+?)[.$*)]*\s*")
"""A computation, to its result."""
_COMMENT = re.compile(
    r"\s+(?:(?:indeed|also|thus|therefore|clearly|still|both|fully|exactly|now)\s+)*(?:correct|right|verified|confirmed"
    r"|checked|consistent|reasonable|plausible|valid|sensible|unique|unchanged|boxed)\b(?!\s*[:=])",
    re.IGNORECASE,
)
MAX_BETWEEN_CHARS = 40
"""Boxes that are further apart are not side by side."""
_STATEMENT = re.compile(r"\banswer(?:\s+is\b|\s?[*_]{0,3}\s?[:=])|####", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|\.(?=\s|$)")
_NUMBER = re.compile(r"[-\u2212]?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_DECORATION = " \t*_$:="


def final_answer(
    completion: Completion, prompt: Prompt, extract: Extract = "auto", boxes: Boxes = "list"
) -> str | None:
    """What the completion states as its answer, or None. The prompt only tells whether it opened the thinking."""
    text = after_thinking(completion.text, opened=opens_thinking(prompt))
    if text is None:
        return None
    if extract == "text":
        return text.strip() if len(text) <= TAIL_CHARS else None
    text = text[-TAIL_CHARS:]
    if extract == "number":
        return _last_number(text)
    if _BOX.search(text) is None:
        return None if extract == "boxed" else _last_statement(text) or _last_number(text)
    spans = _boxes(text)
    if not spans:
        return None
    end = spans[-1][1]
    stated = _last_statement(text[end:], behind_box=True) if extract == "auto" else None
    return stated or _boxed(text, spans, boxes)


def _boxed(text: str, spans: list[tuple[int, int]], boxes: Boxes) -> str:
    """The content of the last box, with those beside it and what is offered behind it."""
    contents = [text[slice(*spans[-1])].strip()]
    if boxes == "list":
        for (_, end), (start, _) in zip(reversed(spans[:-1]), reversed(spans[1:]), strict=True):
            between = text[end + 1 : text.rindex("\\boxed", 0, start)]
            if len(between) > MAX_BETWEEN_CHARS or not _BETWEEN.fullmatch(between):
                break
            contents.insert(0, text[slice(*spans[-1 - len(contents)])].strip())
        contents = list(dict.fromkeys(contents))
    offered = _offered(text, spans[-1][1] + 1, contents[-1])
    return ", ".join(contents if offered is None else [*contents, offered])


def _offered(text: str, start: int, answer: str) -> str | None:
    """Another number that stands right behind an answer, in place of it."""
    match = _OFFERED.match(text, start)
    if match is None or not any(map(str.isdigit, match.group(2))):
        return None
    gap, offered = match.groups()
    if ("\n" in gap and _ANOTHER_WAY.match(offered)) or _SAID_AGAIN.match(offered):
        return None
    computed = _COMPUTED.fullmatch(offered)
    return None if computed and computed.group(1) == answer else offered.strip(" $.*")


def opens_thinking(prompt: Prompt) -> bool:
    """Whether the chat template has begun the thinking, so that the completion goes on with it."""
    tags = _THINKING.findall(prompt.text)
    return bool(tags) and tags[-1] == ""


def after_thinking(text: str, *, opened: bool) -> str | None:
    """The text behind its one thinking block, or all of it; None where the thinking is not over, or there are two."""
    tags = list(islice(_THINKING.finditer(text), 3))  # a third is one too many, whatever it is
    num_closed = sum(1 for tag in tags if tag.group(1))
    num_opened = len(tags) - num_closed + opened
    if num_opened != num_closed or num_opened > 1 or len(tags) > 2:  # noqa: PLR2004
        return None
    return text[tags[-1].end() :] if num_closed else text


def _boxes(text: str) -> list[tuple[int, int]]:
    """Where the content of each closed box begins and ends, in order; none where the last box never closes.

    A box in a box is the inner one. An escaped brace is none.
    """
    found: list[tuple[int, int]] = []
    opened: list[int | None] = []  # where a box's content begins; None for another brace
    last = -1
    for token in _BRACE.finditer(text):
        match token.group()[-1], len(token.group()):
            case "{", length if length != 2:  # noqa: PLR2004  (an escaped brace)
                opened.append(token.end() if length > 1 else None)
                last = token.end() if length > 1 else last
            case "}", 1:
                start = opened.pop() if opened else None
                if start is not None and not (found and found[-1][0] > start):
                    found.append((start, token.start()))
    return found if found and found[-1][0] == last else []


def _last_statement(text: str, *, behind_box: bool = False) -> str | None:
    """The rest of the sentence after the last statement of an answer, without Markdown around it.

    What only comments on an answer counts where nothing else is stated, and not ``behind_box``.
    """
    start = comment = -1
    for match in _STATEMENT.finditer(text):
        if match.group()[-1].isalpha() and _COMMENT.match(text, match.end()):
            comment = match.end()
        else:
            start = match.end()
    if start < 0 and not behind_box:
        start = comment
    if start < 0:
        return None
    end = _SENTENCE_END.search(text, start)
    stated = text[start : end.start() if end else len(text)].strip(_DECORATION)
    offered = _offered(text, end.start(), stated) if end and stated else None
    return (stated if offered is None else f"{stated}, {offered}") or None


def _last_number(text: str) -> str | None:
    number = None
    for match in _NUMBER.finditer(text):
        number = match.group().rstrip(",")
    return number
