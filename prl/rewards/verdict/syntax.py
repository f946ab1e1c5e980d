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

import msgspec

MAX_DEPTH = 40
"""Deepest nesting that is read."""
MAX_TOKENS = 1000
"""Longest formula that is read."""
MAX_DIGITS = 2000
"""Longest number that is read."""

FUNCTIONS = frozenset(
    r"\sin \cos \tan \cot \sec \csc \arcsin \arccos \arctan \sinh \cosh \tanh \ln \log \exp".split()
)
_GREEK = frozenset(
    r"\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \vartheta \iota \kappa \lambda \mu \nu \xi \rho "
    r"\sigma \tau \upsilon \phi \varphi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Xi \Sigma \Phi \Psi \Omega "
    r"\ell".split()
)
_TOKEN = re.compile(r"\s*(\\[a-zA-Z]+|\\.|\d+\.?\d*|\.\d+|\*\*|[^\s])")
_PLAIN_FRACTION = re.compile(r"\s*(?:\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|\\frac\s*(\d)\s*(\d)(?!\d)|(\d+)\s*/\s*(\d+))")
_SCIENTIFIC = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?|\.\d+)[eE]([+-]?\d{1,4})(?![\w.])")


class UnreadableError(ValueError):
    """The text is no formula that is understood here."""


class UnknownError(UnreadableError):
    """A command that is not known here; a symbolic library may know it."""


class Node(msgspec.Struct, frozen=True):
    """One operation of a formula, or what it acts on."""

    op: str
    """``number``, ``symbol``, ``constant``, ``+`` and ``*`` of any number, ``- / ^``, ``negative``, ``inverse``, ``root``,
    ``!``, ``binom``, ``abs``, ``floor``, ``ceil`` or a function."""
    args: tuple[Node, ...] = ()
    value: Fraction = Fraction(0)
    name: str = ""
    decimal: bool = False
    """The number was written with a decimal point, so that it may be rounded."""


def number(value: int | Fraction, *, decimal: bool = False) -> Node:
    """The node of a number."""
    return Node("number", value=Fraction(value), decimal=decimal)


def parse(text: str) -> Node:
    """The tree of a cleaned formula. Raises UnreadableError."""
    parser = _Parser(_SCIENTIFIC.sub(r"{\1*10^{\2}}", text))
    node = parser.sum()
    if parser.token is not None:
        raise UnreadableError(f"{parser.token!r} does not belong in a formula")
    return node


class _Parser:
    """A recursive descent over the tokens; ``token`` is the one to be read next, None at the end."""

    def __init__(self, text: str) -> None:
        self._text, self._end, self._depth, self._num_tokens = text, 0, 0, 0
        self._next()

    def _next(self) -> str | None:
        """Move on; the token that was read."""
        before: str | None = getattr(self, "token", None)
        self._num_tokens += 1
        if self._num_tokens > MAX_TOKENS:
            raise UnreadableError("it is too long")
        self._start = self._end
        match = _TOKEN.match(self._text, self._end)
        self.token = match.group(1) if match else None
        self._end = match.end() if match else len(self._text)
        return before

    def _expect(self, token: str) -> None:
        if self.token != token:
            raise UnreadableError(f"{token!r} is missing")
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
            while self.token in ("+", "-"):
                negative = self._next() == "-"
                terms.append(Node("negative", (self._term(),)) if negative else self._term())
        return terms[0] if len(terms) == 1 else Node("+", tuple(terms))

    def _term(self) -> Node:
        factors = [self._signed()]
        while True:
            if self.token in ("*", r"\cdot", r"\times"):
                self._next()
                factors.append(self._signed())
            elif self.token in ("/", r"\div", ":"):
                self._next()
                factors.append(Node("inverse", (self._signed(),)))
            elif self._begins_atom():
                if self.token is not None and (self.token[0].isdigit() or self.token[0] == "."):
                    raise UnreadableError("two numbers stand side by side")
                factors.append(self._power())
            else:
                return factors[0] if len(factors) == 1 else Node("*", tuple(factors))

    def _signed(self) -> Node:
        if self.token not in ("+", "-"):
            return self._power()
        negative = self._next() == "-"
        with self._nested():
            node = self._signed()
        return Node("negative", (node,)) if negative else node

    def _begins_atom(self) -> bool:
        token = self.token
        if token is None:
            return False
        return (
            token[0].isalnum()
            or token[0] in "{(.["
            or token in _GREEK | FUNCTIONS
            or token in (r"\pi", r"\frac", r"\sqrt", r"\binom", r"\infty", r"\lfloor", r"\lceil")
        )

    def _power(self) -> Node:
        """An atom with what is written behind and above it."""
        node = self._atom()
        for _ in range(MAX_DEPTH):
            match self.token:
                case "!":
                    self._next()
                    node = Node("!", (node,))
                case "^" | "**":
                    self._next()
                    if self.token != r"\circ":
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
            if self.token in ("+", "-"):
                negative = self._next() == "-"
                node = self._exponent()
                node = Node("negative", (node,)) if negative else node
            else:
                node = self._atom()
                if self.token in ("^", "**"):
                    self._next()
                    node = Node("^", (node, self._exponent()))
        return node

    def _atom(self) -> Node:
        token = self._next()
        if token is None:
            raise UnreadableError("something is missing at its end")
        if token[0].isdigit() or token[0] == ".":
            return self._number(token)
        if token in _OPENING:
            node = self.sum()
            self._expect(_OPENING[token])
            return node
        if token == "|":
            node = self.sum()
            self._expect("|")
            return Node("abs", (node,))
        if token.isascii() and token.isalpha():
            return self._letter(token)
        with self._nested():
            node = self._command(token)
        return node

    def _number(self, token: str) -> Node:
        if len(token) > MAX_DIGITS or token == ".":
            raise UnreadableError("a number is too long")
        value, decimal = Fraction(token.rstrip(".")), "." in token.rstrip(".")
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
        if letter in "ei" and self.token != "_":
            return Node("constant", name=letter)
        name = letter + self._subscript()
        while self.token == "'":
            self._next()
            name += "'"
        if letter in "fghFG" and self.token == "(":
            close = self._text.find(")", self._end)
            if close < 0:
                raise UnreadableError("a parenthesis is never closed")
            name += "(" + re.sub(r"\s", "", self._text[self._end : close]) + ")"
            self._end = close + 1
            self._next()
        return Node("symbol", name=name)

    def _subscript(self) -> str:
        if self.token != "_":
            return ""
        self._next()
        if self.token != "{":
            return f"_{self._next()}"
        close = self._text.find("}", self._end)
        name = re.sub(r"[\s{]|\\text", "", self._text[self._end : close])
        self._end = close + 1
        self._next()
        return f"_{name}"

    def _command(self, token: str) -> Node:
        if token in _GREEK:
            return Node("symbol", name=token + self._subscript())
        if token in (r"\pi", r"\infty"):
            return Node("constant", name=token[1:])
        if token in (r"\frac", r"\binom"):
            args = self._argument(), self._argument()
            return Node("/" if token == r"\frac" else "binom", args)
        if token == r"\sqrt":
            degree = number(2)
            if self.token == "[":
                self._next()
                degree = self.sum()
                self._expect("]")
            return Node("root", (self._argument(), degree))
        if token in (r"\lfloor", r"\lceil"):
            node = self.sum()
            self._expect(r"\rfloor" if token == r"\lfloor" else r"\rceil")
            return Node(_ROUNDED[token], (node,))
        if token in FUNCTIONS:
            return self._function(token[1:])
        raise UnknownError(f"{token} is not understood")

    def _argument(self) -> Node:
        r"""What a command acts on: a group, or one digit or letter (``\frac12``)."""
        if self.token is not None and self.token[0].isdigit() and "." not in self.token:
            digit, self._end = self.token[0], self._end - len(self.token) + 1
            self._next()
            return number(int(digit))
        return self._atom()

    def _function(self, name: str) -> Node:
        power, base = None, None
        while self.token in ("^", "_"):
            if self._next() == "^":
                power = self._exponent()
            else:
                base = self._argument()
        if self.token in ("(", "{", "["):
            argument = self._power() if power is None and self.token != "(" else self._atom()
        else:
            argument = self._power()
            while self._begins_atom() and self.token not in FUNCTIONS and self.token not in ("(", "["):
                argument = Node("*", (argument, self._power()))
        if _is_minus_one(power):
            return Node("arc" + name, (argument,))
        node = Node(name, (argument,)) if base is None else Node("log_base", (argument, base))
        return node if power is None else Node("^", (node, power))


def _is_minus_one(node: Node | None) -> bool:
    return node == Node("negative", (number(1),))


_OPENING = {"(": ")", "{": "}", "[": "]", r"\{": r"\}"}
_ROUNDED = {r"\lfloor": "floor", r"\lceil": "ceil"}
