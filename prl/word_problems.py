"""Arithmetic word problems without end, each a pure function of (level, index, seed, split).

Invariants:

- The same arguments give the same problem, on every machine and every Python (``arithmetic.Dice``).
- The numbers of a text are its operands and no others, and they alone say which split it is in
  (``arithmetic.split_of``). So a held-out problem is never trained on under other names or told another way.
- Answers are integers >= 0, and so is every intermediate result.

The levels:

=====  =====================================================  ====================
level  what                                                   numbers
=====  =====================================================  ====================
1      one addition or subtraction                            2 to 20, result <= 40
2      one addition or subtraction                            2 to 99
3      one multiplication                                     2 to 12
4      two additions or subtractions                          2 to 20
5      a multiplication, then an addition or subtraction      2 to 12
=====  =====================================================  ====================
"""

from __future__ import annotations

from collections.abc import Callable

from prl.arithmetic import Dice, Problem, Split, split_of

NUM_LEVELS = 5

NAMES = (
    "Anna",
    "Ben",
    "Carla",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Hugo",
    "Ivy",
    "Jack",
    "Leo",
    "Maria",
    "Nina",
    "Tom",
)
THINGS = ("apples", "books", "cards", "coins", "cookies", "flowers", "marbles", "pencils", "shells", "stickers")

_SUM = (
    "{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?",
    "{name} has {a} {things} and {other} has {b}. How many {things} do they have together?",
    "There are {a} {things} in one box and {b} in another. How many {things} are there in all?",
    "{name} finds {a} {things} in the morning and {b} in the evening. How many {things} does {name} find that day?",
)
_DIFFERENCE = (
    "{name} has {a} {things} and gives {b} of them to {other}. How many {things} does {name} have left?",
    "{name} has {a} {things} and {other} has {b}. How many more {things} does {name} have than {other}?",
    "A shop has {a} {things} and sells {b} of them. How many {things} are left?",
    "{name} wants {a} {things} and has {b}. How many {things} are missing?",
)
_PRODUCT = (
    "There are {a} boxes with {b} {things} in each. How many {things} are there in all?",
    "{name} buys {a} bags of {b} {things}. How many {things} does {name} buy?",
    "Each of {a} children has {b} {things}. How many {things} do they have together?",
)
_SUM_SUM = (
    "{name} has {a} {things}, {other} has {b} and a friend has {c}. How many {things} do they have together?",
    "{name} has {a} {things}, buys {b} and then finds {c} more. How many {things} does {name} have now?",
)
_SUM_DIFFERENCE = (
    "{name} has {a} {things}, buys {b} more and then gives {c} to {other}. How many {things} does {name} have left?",
    "There are {a} {things} in one box and {b} in another. {name} takes {c} of them. How many {things} are left?",
)
_PRODUCT_SUM = (
    "{name} has {a} boxes with {b} {things} in each, and {c} more {things}. How many {things} does {name} have in all?",
    "{name} buys {a} bags of {b} {things} and gets {c} {things} from {other}. How many {things} is that in all?",
)
_PRODUCT_DIFFERENCE = (
    "{name} has {a} boxes with {b} {things} in each and gives {c} away. How many {things} does {name} have left?",
    "A shop has {a} bags of {b} {things} and sells {c} {things}. How many {things} are left?",
)

_Told = tuple[tuple[str, ...], tuple[int, ...], int]
"""The ways to tell it, the operands in the order of the text, and the answer."""


def problem(level: int, index: int, seed: int, split: Split) -> Problem:
    """The problem at ``index`` of the endless sequence that (level, seed, split) names.

    Raises:
        ValueError: ``level`` is not 1 to 5, or ``split`` is neither train nor eval.
    """
    if level not in _DRAWERS:
        raise ValueError(f"word_problems has levels 1 to {NUM_LEVELS}, got {level!r}")
    if split not in ("train", "eval"):
        raise ValueError(f"word_problems has the splits 'train' and 'eval', got {split!r}")
    dice = Dice(f"word_problems/{level}/{index}/{seed}/{split}")
    while True:
        texts, operands, answer = _DRAWERS[level](dice)
        if split_of(operands) == split:
            return Problem(question=_tell(dice, texts, operands), answer=str(answer), level=level)


def _tell(dice: Dice, texts: tuple[str, ...], operands: tuple[int, ...]) -> str:
    name = dice.one_of(NAMES)
    other = dice.one_of([candidate for candidate in NAMES if candidate != name])
    numbers = dict(zip("abc", operands, strict=False))
    return dice.one_of(texts).format(name=name, other=other, things=dice.one_of(THINGS), **numbers)


def _one_step(dice: Dice, largest: int) -> _Told:
    small, large = sorted((dice.between(2, largest), dice.between(2, largest)))
    if small == large or dice.coin():
        a, b = (small, large) if dice.coin() else (large, small)
        return _SUM, (a, b), a + b
    return _DIFFERENCE, (large, small), large - small


def _multiplication(dice: Dice) -> _Told:
    a, b = dice.between(2, 12), dice.between(2, 12)
    return _PRODUCT, (a, b), a * b


def _two_steps(dice: Dice) -> _Told:
    a, b = dice.between(2, 20), dice.between(2, 20)
    if dice.coin():
        c = dice.between(2, 20)
        return _SUM_SUM, (a, b, c), a + b + c
    c = dice.between(2, min(20, a + b))
    return _SUM_DIFFERENCE, (a, b, c), a + b - c


def _product_and_step(dice: Dice) -> _Told:
    a, b = dice.between(2, 12), dice.between(2, 12)
    if dice.coin():
        c = dice.between(2, 12)
        return _PRODUCT_SUM, (a, b, c), a * b + c
    c = dice.between(2, min(12, a * b))
    return _PRODUCT_DIFFERENCE, (a, b, c), a * b - c


_DRAWERS: dict[int, Callable[[Dice], _Told]] = {
    1: lambda dice: _one_step(dice, 20),
    2: lambda dice: _one_step(dice, 99),
    3: _multiplication,
    4: _two_steps,
    5: _product_and_step,
}
