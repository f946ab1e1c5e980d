"""Arithmetic problems without end, each a pure function of (level, index, seed, split).

Invariants:

- The same arguments give the same problem, on every machine and every Python: the only randomness is
  ``random.Random(str).random()``, whose sequence Python promises to keep.
- No evaluation problem ever occurs in training, at any level, index or seed. The side a problem is on follows from a
  hash of its sorted operands alone, so ``17 + 25``, ``25 + 17`` and ``25 - 17`` are always on one side.
- Answers are integers >= 0, and so is every intermediate result.

The levels:

=====  ==============================================================  ===================
level  what                                                            such as
=====  ==============================================================  ===================
1      addition of one- and two-digit numbers                          ``17 + 25``
2      addition and subtraction; operands and result up to 99          ``52 - 27``
3      three operands up to 99, or two of three digits, with + and -   ``12 + 80 - 31``
4      a number up to 99 times one digit                               ``38 * 7``
5      mixed operations with parentheses, numbers up to 20             ``(14 + 3) * 9``
6      a number up to 899 and one up to 63, most often a small one     ``624 + 3``
=====  ==============================================================  ===================

The second numbers of level 6 have a long tail: half are below 4, one in thirty-six is 32 or more. Worked by counting,
so have the lengths of its answers. Of what level 6 does not hold out, half is set aside for lessons (the split
``lesson``): what a model was taught before a run need not occur in it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from msgspec import Struct

Split = Literal["train", "eval", "lesson"]
T = TypeVar("T")

NUM_LEVELS = 6
EVAL_ONE_IN = 10
"""One set of operands in this many is held out for evaluation."""
LEVELS_WITH_LESSONS = frozenset({6})
"""Those of which half of the rest is for lessons, and not for training."""


class Problem(Struct, frozen=True):
    """A question and its one right answer."""

    question: str
    """What the model is asked, such as ``17 + 25 = ?``."""
    answer: str
    """The result in decimal digits."""
    level: int
    """1 to 6."""


class _Draw(Struct, frozen=True):
    """An expression before it is known which split it belongs to."""

    expression: str
    answer: int
    operands: tuple[int, ...]


def problem(level: int, index: int, seed: int, split: Split) -> Problem:
    """The problem at ``index`` of the endless sequence that (level, seed, split) names.

    Raises:
        ValueError: ``level`` is not 1 to 6, or ``split`` is none that it has.
    """
    if level not in _DRAWERS:
        raise ValueError(f"arithmetic has levels 1 to {NUM_LEVELS}, got {level!r}")
    splits = ("train", "eval", "lesson") if level in LEVELS_WITH_LESSONS else ("train", "eval")
    if split not in splits:
        raise ValueError(f"level {level} of arithmetic has the splits {splits}, got {split!r}")
    dice = Dice(f"arithmetic/{level}/{index}/{seed}/{split}")
    while True:
        draw = _DRAWERS[level](dice)
        if split_of(draw.operands, lessons=level in LEVELS_WITH_LESSONS) == split:
            return Problem(question=f"{draw.expression} = ?", answer=str(draw.answer), level=level)


def split_of(operands: Sequence[int], *, lessons: bool = False) -> Split:
    """The split that problems with these operands belong to, whatever their order and operators.

    ``lessons``: of a level that sets some aside for them.
    """
    text = ",".join(map(str, sorted(operands)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    rest, digit = divmod(int.from_bytes(digest, "big"), EVAL_ONE_IN)
    if digit == 0:
        return "eval"
    return "lesson" if lessons and rest % 2 else "train"


class Dice:
    """Whole numbers from ``random()`` alone: ``randrange`` may change its sequence between Python versions."""

    def __init__(self, name: str) -> None:
        self._random = random.Random(name).random  # noqa: S311 - not for secrets

    def between(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + int(self._random() * (high - low + 1))

    def coin(self) -> bool:
        """True or False, as likely."""
        return self._random() < 0.5  # noqa: PLR2004 - a fair coin

    def one_of(self, choices: Sequence[T]) -> T:
        """One of the choices, each as likely."""
        return choices[self.between(0, len(choices) - 1)]


def _addition(dice: Dice) -> _Draw:
    a, b = dice.between(0, 99), dice.between(0, 99)
    return _Draw(f"{a} + {b}", a + b, (a, b))


def _addition_or_subtraction(dice: Dice) -> _Draw:
    """Two numbers up to 99 are the whole and a part of it, so nothing leaves 0 to 99."""
    part, whole = sorted((dice.between(0, 99), dice.between(0, 99)))
    if dice.coin():
        return _Draw(f"{part} + {whole - part}", whole, (part, whole - part))
    return _Draw(f"{whole} - {part}", whole - part, (whole, part))


def _longer(dice: Dice) -> _Draw:
    if dice.coin():
        a, b = sorted((dice.between(100, 999), dice.between(100, 999)))
        return _Draw(f"{a} + {b}", a + b, (a, b)) if dice.coin() else _Draw(f"{b} - {a}", b - a, (b, a))
    a, b = dice.between(0, 99), dice.between(0, 99)
    if dice.coin():
        c = dice.between(0, 99)
        return _Draw(f"{a} + {b} + {c}", a + b + c, (a, b, c))
    c = dice.between(0, min(99, a + b))
    return _Draw(f"{a} + {b} - {c}", a + b - c, (a, b, c))


def _multiplication(dice: Dice) -> _Draw:
    a, b = dice.between(0, 99), dice.between(2, 9)
    return _Draw(f"{a} * {b}", a * b, (a, b))


def _mixed(dice: Dice) -> _Draw:
    a, b, c = dice.between(1, 20), dice.between(1, 20), dice.between(2, 9)
    low, high = sorted((a, b))
    forms = (
        _Draw(f"({a} + {b}) * {c}", (a + b) * c, (a, b, c)),
        _Draw(f"{c} * ({high} - {low})", c * (high - low), (a, b, c)),
        _Draw(f"{a} + {b} * {c}", a + b * c, (a, b, c)),
        _Draw(f"{a} * {c} + {b}", a * c + b, (a, b, c)),
        _Draw(f"{high} * {c} - ({low} + {c})", high * c - (low + c), (high, c, low, c)),
    )
    usable = [form for form in forms if form.answer >= 0]
    return usable[dice.between(0, len(usable) - 1)]


def _long_count(dice: Dice) -> _Draw:
    """The second number's octave is the lower of two draws, which makes each octave rarer than the one below it."""
    octave = min(dice.between(0, 5), dice.between(0, 5))
    start, count = dice.between(0, 899), dice.between(2**octave, 2 ** (octave + 1) - 1)
    return _Draw(f"{start} + {count}", start + count, (start, count))


_DRAWERS: dict[int, Callable[[Dice], _Draw]] = {
    1: _addition,
    2: _addition_or_subtraction,
    3: _longer,
    4: _multiplication,
    5: _mixed,
    6: _long_count,
}
