r"""One spelling of what can be written in many: the first step of every comparison.

- Everything here is a linear scan; nothing is evaluated, and no meaning is lost: what ``clean`` returns reads as the
  text did. Case and the space behind a comma stay, since ``1,234`` is a number and ``1, 234`` is two.
- A text whose braces or brackets do not balance, or in which nothing stands, is malformed: it has no meaning at all.
"""

from __future__ import annotations

import re
import unicodedata

from prl.rewards.verdict.spelling import RULES

_SYMBOLS = {
    "\u2212": "-", "\u2013": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ", "\u00f7": r"\div ",
    "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ", "\u00b1": r"\pm ", "\u221e": r"\infty ",
    "\u221a": r"\sqrt ", "\u03c0": r"\pi ", "\u222a": r"\cup ", "\u2208": r"\in ", "\u00b0": r"^\circ ",
    "\u2026": r"\ldots ", "\u2200": r"\forall ", "\u2203": r"\exists ", "\u03b8": r"\theta ", "\u03b1": r"\alpha ",
    "\u2205": r"\emptyset ", "\u221b": r"\sqrt[3] ", "\u2248": r"\approx ",
    "\u211d": r"\mathbb{R}", "\u2044": "/", "\u201c": '"', "\u201d": '"', "\u2019": "'",
}  # fmt: skip
_SUPERSCRIPTS = dict(
    zip("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b", "0123456789-", strict=True)
)
_SUBSCRIPTS = dict(zip("\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089", "0123456789", strict=True))
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_RAISED = re.compile("[" + "".join(_SUPERSCRIPTS) + "]+")
_LOWERED = re.compile("[" + "".join(_SUBSCRIPTS) + "]+")
_SYMBOL = re.compile("[" + "".join(_SYMBOLS) + "]")

_RENAMED = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\dbinom": r"\binom", r"\tbinom": r"\binom",
    r"\nicefrac": r"\frac", r"\sfrac": r"\frac", r"\bigcup": r"\cup", r"\boldsymbol": r"\text", r"\emph": r"\text",
    r"\mathtt": r"\text", r"\texttt": r"\text", r"\mathsf": r"\text", r"\textsf": r"\text", r"\cbrt": r"\sqrt[3]",
    r"\leq": r"\le", r"\geq": r"\ge", r"\leqslant": r"\le", r"\geqslant": r"\ge", r"\neq": r"\ne", r"\lt": "<",
    r"\gt": ">", r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lvert": "|", r"\rvert": "|", r"\vert": "|", r"\mid": "|",
    r"\lbrack": "[", r"\rbrack": "]", r"\degree": r"^\circ", r"\dots": r"\ldots", r"\cdots": r"\ldots",
    r"\mathrm": r"\text", r"\mbox": r"\text", r"\textbf": r"\text", r"\textit": r"\text", r"\textrm": r"\text",
    r"\operatorname": r"\text", r"\mathit": r"\text", r"\mathbf": r"\text", r"\varnothing": r"\emptyset", r"\ast": "*",
    r"\lor": r"\text{ or }", r"\vee": r"\text{ or }", r"\land": r"\text{ and }", r"\iff": "",
}  # fmt: skip
_DROPPED = frozenset(
    [
        r"\left",
        r"\right",
        r"\big",
        r"\Big",
        r"\bigg",
        r"\Bigg",
        r"\bigl",
        r"\bigr",
        r"\Bigl",
        r"\Bigr",
        r"\biggl",
        r"\biggr",
        r"\displaystyle",
        r"\textstyle",
        r"\limits",
        r"\nolimits",
        r"\middle",
        r"\boxed",
        r"\fbox",
        r"\mathop",
        r"\underline",
        r"\ensuremath",
    ]
)
_SPACES = frozenset([r"\,", r"\;", r"\:", r"\ ", r"\quad", r"\qquad", r"\!", "~", r"\enspace", r"\thinspace"])
_TOKEN = re.compile(r"\\(?:[a-zA-Z]+|.)|~", re.DOTALL)
_DELIMITERS = re.compile(r"(?<!\\)\$|\\[()\[\]](?![a-zA-Z])")
_CIRCLE = re.compile(r"\^ ?\{? ?\\circ ?\}?| ?\bdegrees?\b(?! ?[a-zA-Z])")
_BARE_NAMES = re.compile(
    r"(?<![\\a-zA-Z])(sqrt|cbrt|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|ln|log|exp|pi|infinity|inf|infty)(?![a-zA-Z])"
)
_THOUSANDS = re.compile(r"(?<![\d.,}])(\d{1,3})((?:\{,\}|,\\!|\\,|,)\d{3}(?:(?:\{,\}|,\\!|\\,|,)\d{3})*)(?![\d])")
_NAMED = {**dict.fromkeys(("infinity", "inf", "infty"), r"\infty "), "cbrt": r"\sqrt[3] "}
_PAIR = re.compile(r"(^|[,;=([{ ])((?:\\left ?)?[(\[] ?-?\d{1,3}),(?=\d{3} ?(?:\\right ?)?[)\]] ?(?:$|[,;)}\\]))")
"""Two numbers of three digits alone in brackets are a pair, and no number with a separator."""
_TIMES = re.compile(r"(?<=\d)\s*[xX]\s*10(?=\s*\^|\s*\*\*)")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,/])(\d{1,3}(?: \d{3})+)(?![\d/])")
_SPACE = re.compile(r"\s+")
_NO_DELIMITER = re.compile(r"\\(?:left|right)\s*\.")


class MalformedError(ValueError):
    """The text has no meaning: nothing in it, or brackets that do not close."""


def clean(answer: str) -> str:
    """The answer in one spelling of LaTeX. Raises MalformedError."""
    text = _LOWERED.sub(lambda match: "_{" + "".join(map(_SUBSCRIPTS.__getitem__, match.group())) + "}", answer)
    text = _RAISED.sub(lambda match: "^{" + "".join(map(_SUPERSCRIPTS.__getitem__, match.group())) + "}", text)
    text = _VULGAR.sub(_written_out, text)
    text = _SYMBOL.sub(lambda match: _SYMBOLS[match.group()], text)
    text = unicodedata.normalize("NFKC", text)
    text = _DELIMITERS.sub(" ", text.replace(r"\\[", r"\\ ["))
    text = _SPACE.sub(" ", text)  # first, so that no pattern meets a long run of them
    text = _PAIR.sub(r"\1\2, ", text)
    text = _THOUSANDS.sub(_joined, text)
    text = _TIMES.sub(r" \\times 10", text)
    text = _SPACED_THOUSANDS.sub(lambda match: match.group().replace(" ", ""), text)
    text = _TOKEN.sub(_respelled, _NO_DELIMITER.sub("", text))
    text = _CIRCLE.sub(r"^\\circ ", text)
    text = _BARE_NAMES.sub(lambda match: _NAMED.get(match.group(1), f"\\{match.group(1)} "), text)
    text = _SPACE.sub(" ", text).strip(" *")
    for rule in RULES:
        text = rule(text)
    text = text.strip(" *")
    while text.endswith((".", ",", ";", ":")) and not text.endswith(r"\."):
        text = text[:-1].rstrip()
    if not text:
        raise MalformedError("nothing stands in it")
    check_brackets(text)
    return text


def _written_out(match: re.Match[str]) -> str:
    """``\u00bd`` behind a digit is the fraction of a mixed number."""
    numerator, _, denominator = unicodedata.normalize("NFKC", match.group()).partition("\u2044")
    return rf"\frac{{{numerator}}}{{{denominator}}}"


def _joined(match: re.Match[str]) -> str:
    """Digits without their separators; a number that begins with 0 has none, so that ``0,123`` stays two numbers."""
    first, rest = match.groups()
    if first.startswith("0"):
        return match.group()
    return first + re.sub(r"\D", "", rest)


def _respelled(match: re.Match[str]) -> str:
    token = match.group()
    if token in _SPACES:
        return " "
    if token in _DROPPED:
        return ""
    return _RENAMED.get(token, token)


def check_brackets(text: str) -> None:
    r"""Raise MalformedError unless every brace closes. Round and square ones may pair as intervals do, ``[0,1)``."""
    depth_braces = depth_others = 0
    for match in re.finditer(r"\\.|[{}()\[\]]", text, re.DOTALL):
        match match.group():
            case "{" | r"\{":
                depth_braces += 1
            case "}" | r"\}":
                depth_braces -= 1
            case "(" | "[":
                depth_others += 1
            case ")" | "]":
                depth_others -= 1
        if depth_braces < 0:
            raise MalformedError("a brace closes that was never opened")
    if depth_braces:
        raise MalformedError("a brace is never closed")
    if depth_others and not re.search(r"[\[\]]", text):
        raise MalformedError("a parenthesis is never closed")


def literal(text: str) -> str:
    """What is compared where only the letters count: cleaned text without spaces, braces around words, and case."""
    words = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    return _SPACE.sub("", words).strip(".,;:!\"'").casefold()
