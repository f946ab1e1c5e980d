r"""Reading one formula: cleaned LaTeX, or what people type, to a tree. Linear in the text, but for its nesting.

- A formula is read whole or not at all: UnreadableError, and never the part of it that could be read.
- ``4\frac{1}{2}`` and ``4 1/2`` are mixed numbers where the fraction is a proper one. Two numbers side by side that are
  none (``4 10/3``) have no meaning.
- ``e`` and ``i`` are the constants; ``x^12`` has the exponent 12, as typed; ``\log`` is the natural logarithm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

from prl.rewards.verdict.lexicon import BEGIN_AN_ATOM, FUNCTIONS, GREEK, NO_FORMULA, TOKEN
from prl.rewards.verdict.node import Node, UnknownError, UnreadableError, number

MAX_DEPTH = 40
"""Deepest nesting that is read."""
MAX_TOKENS = 1000
"""Longest formula that is read."""
MAX_DIGITS = 2000
"""Longest number that is read."""

_PLAIN_FRACTION = re.compile(
    r"\s*(?:\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|\\frac\s*(\d)\s*(\d)(?!\d)|(\d+)\s*/\s*(\d+))"
)
_SCIENTIFIC = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?|\.\d+)[eE]([+-]?\d{1,4})(?![\w.])")


def parse(text: str) -> Node:
    """The tree of a cleaned formula. Raises UnreadableError."""
    parser = _Parser(_SCIENTIFIC.sub(r"{\1*10^{\2}}", text))
    node = parser.sum()
    if parser.ahead is not None:
        raise UnreadableError(f"{parser.ahead!r} does not belong in a formula")
    return node


class _Parser:
    """A recursive descent over the tokens; ``ahead`` is the one to be read next, None at the end."""

    def __init__(self, text: str) -> None:
        self._text, self._end, self._depth, self._num_tokens = text, 0, 0, 0
        self._next()

    def _next(self) -> str | None:
        """Move on; the lexeme that was read."""
        before: str | None = getattr(self, "ahead", None)
        self._num_tokens += 1
        if self._num_tokens > MAX_TOKENS:
            raise UnreadableError("it is too long")
        self._start = self._end
        match = TOKEN.match(self._text, self._end)
        self.ahead = match.group(1) if match else None
        self._end = match.end() if match else len(self._text)
        return before

    def _expect(self, lexeme: str) -> None:
        if self.ahead != lexeme:
            raise UnreadableError(f"{lexeme!r} is missing")
        self._next()

    @contextmanager
    def _nested(self) -> Iterator[None]:
        """One level deeper: what is nested here is nested in the interpreter's stack as well."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnreadableError("nested too deeply")
        yield
        self._depth -= 1

    def sum(self) -> Node:
        """Terms with ``+`` and ``-`` between them."""
        with self._nested():
            terms = [self._term()]
            while self.ahead in ("+", "-"):
                negative = self._next() == "-"
                terms.append(Node("negative", (self._term(),)) if negative else self._term())
        return terms[0] if len(terms) == 1 else Node("+", tuple(terms))

    def _term(self) -> Node:
        factors = [self._signed()]
        while True:
            if self.ahead in ("*", r"\cdot", r"\times"):
                self._next()
                factors.append(self._signed())
            elif self.ahead in ("/", r"\div", ":"):
                self._next()
                factors.append(Node("inverse", (self._signed(),)))
            elif self._begins_atom():
                if self.ahead is not None and (self.ahead[0].isdigit() or self.ahead[0] == "."):
                    raise UnreadableError("two numbers stand side by side")
                factors.append(self._power())
            else:
                return factors[0] if len(factors) == 1 else Node("*", tuple(factors))

    def _signed(self) -> Node:
        if self.ahead not in ("+", "-"):
            return self._power()
        negative = self._next() == "-"
        with self._nested():
            node = self._signed()
        return Node("negative", (node,)) if negative else node

    def _begins_atom(self) -> bool:
        lexeme = self.ahead
        if lexeme is None:
            return False
        return lexeme[0].isalnum() or lexeme[0] in "{(.[" or lexeme in BEGIN_AN_ATOM

    def _power(self) -> Node:
        """An atom with what is written behind and above it."""
        node = self._atom()
        for _ in range(MAX_DEPTH):
            match self.ahead:
                case "!":
                    self._next()
                    node = Node("!", (node,))
                case "^" | "**":
                    self._next()
                    if self.ahead != r"\circ":
                        return Node("^", (node, self._exponent()))
                    self._next()
                    node = Node("*", (node, Node("constant", name="pi"), number(Fraction(1, 180))))
                case r"\%" | "%":
                    self._next()
                    node = Node("*", (node, number(Fraction(1, 100))))
                case _:
                    return node
        raise UnreadableError("too much stands behind a value")

    def _exponent(self) -> Node:
        with self._nested():
            if self.ahead in ("+", "-"):
                negative = self._next() == "-"
                node = self._exponent()
                node = Node("negative", (node,)) if negative else node
            else:
                node = self._atom()
                if self.ahead in ("^", "**"):
                    self._next()
                    node = Node("^", (node, self._exponent()))
        return node

    def _atom(self) -> Node:
        lexeme = self._next()
        if lexeme is None:
            raise UnreadableError("something is missing at its end")
        if lexeme[0].isdigit() or lexeme[0] == ".":
            return self._number(lexeme)
        if lexeme in _OPENING:
            node = self.sum()
            self._expect(_OPENING[lexeme])
            return node
        if lexeme == "|":
            node = self.sum()
            self._expect("|")
            return Node("abs", (node,))
        if lexeme.isascii() and lexeme.isalpha():
            return self._letter(lexeme)
        with self._nested():
            return self._command(lexeme)

    def _number(self, lexeme: str) -> Node:
        if len(lexeme) > MAX_DIGITS or lexeme == ".":
            raise UnreadableError("a number is too long")
        value, decimal = Fraction(lexeme.rstrip(".")), "." in lexeme.rstrip(".")
        behind = _PLAIN_FRACTION.match(self._text, self._start)
        if behind is None or decimal:
            return number(value, decimal=decimal)
        numerator, denominator = (int(group) for group in behind.groups() if group is not None)
        if not 0 < numerator < denominator:
            raise UnreadableError("a mixed number's fraction is not a proper one")
        self._end = behind.end()
        self._next()
        return number(value + Fraction(numerator, denominator))

    def _letter(self, letter: str) -> Node:
        if letter in "ei" and self.ahead != "_":
            return Node("constant", name=letter)
        name = letter + self._subscript()
        while self.ahead == "'":
            self._next()
            name += "'"
        if letter in "fghFG" and self.ahead == "(":
            close = self._text.find(")", self._end)
            if close < 0:
                raise UnreadableError("a parenthesis is never closed")
            name += "(" + re.sub(r"\s", "", self._text[self._end : close]) + ")"
            self._end = close + 1
            self._next()
        return Node("symbol", name=name)

    def _subscript(self) -> str:
        if self.ahead != "_":
            return ""
        self._next()
        if self.ahead != "{":
            return f"_{self._next()}"
        close = self._text.find("}", self._end)
        name = re.sub(r"[\s{]|\\text", "", self._text[self._end : close])
        self._end = close + 1
        self._next()
        return f"_{name}"

    def _command(self, lexeme: str) -> Node:
        if lexeme in GREEK:
            return Node("symbol", name=lexeme + self._subscript())
        if lexeme in (r"\pi", r"\infty"):
            return Node("constant", name="pi" if lexeme == r"\pi" else "infinity")
        if lexeme in (r"\frac", r"\binom"):
            args = self._argument(), self._argument()
            return Node("/" if lexeme == r"\frac" else "binom", args)
        if lexeme == r"\sqrt":
            degree = number(2)
            if self.ahead == "[":
                self._next()
                degree = self.sum()
                self._expect("]")
            return Node("root", (self._argument(), degree))
        if lexeme in (r"\lfloor", r"\lceil"):
            node = self.sum()
            self._expect(r"\rfloor" if lexeme == r"\lfloor" else r"\rceil")
            return Node(_ROUNDED[lexeme], (node,))
        if lexeme in FUNCTIONS:
            return self._function(lexeme[1:])
        if lexeme[0] == "\\" and lexeme not in NO_FORMULA:
            raise UnknownError(f"{lexeme} is not understood")
        raise UnreadableError(f"{lexeme} does not belong in a formula")

    def _argument(self) -> Node:
        r"""What a command acts on: a group, or one digit or letter (``\frac12``)."""
        if self.ahead is not None and self.ahead[0].isdigit() and "." not in self.ahead:
            digit, self._end = self.ahead[0], self._end - len(self.ahead) + 1
            self._next()
            return number(int(digit))
        return self._atom()

    def _function(self, name: str) -> Node:
        power, base = None, None
        while self.ahead in ("^", "_"):
            if self._next() == "^":
                power = self._exponent()
            else:
                base = self._argument()
        if self.ahead in ("(", "{", "["):
            argument = self._power() if power is None and self.ahead != "(" else self._atom()
        else:
            argument = self._power()
            while self._begins_atom() and self.ahead not in FUNCTIONS and self.ahead not in ("(", "["):
                argument = Node("*", (argument, self._power()))
        if _is_minus_one(power):
            return Node("arc" + name, (argument,))
        node = Node(name, (argument,)) if base is None else Node("log_base", (argument, base))
        return node if power is None else Node("^", (node, power))


def _is_minus_one(node: Node | None) -> bool:
    return node == Node("negative", (number(1),))


_OPENING = {"(": ")", "{": "}", "[": "]", r"\{": r"\}"}
_ROUNDED = {r"\lfloor": "floor", r"\lceil": "ceil"}
