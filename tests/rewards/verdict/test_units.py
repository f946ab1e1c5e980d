"""The rules of units, each by its own examples, and by what it must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from prl.rewards.verdict.node import UnreadableError
from prl.rewards.verdict.units import (
    RULES,
    Unit,
    currency_before,
    currency_behind,
    degrees,
    is_known,
    read_unit,
    split_percent,
    split_unit,
    temperature,
    words_behind,
)

Rule = Callable[[str], tuple[str, Unit | None] | None]
EXAMPLES: dict[Rule, dict[str, tuple[str, str]]] = {
    currency_before: {
        r"\$18.90": ("18.90", "dollar"),
        r"-\$5": ("-5", "dollar"),
        "USD 3": ("3", "dollar"),
        "\u20ac7 each": ("7", "euro"),
        r"\$5 per hour": ("5", "dollars per hour"),
        r"\$5/hour": ("5", "dollars per hour"),
        r"\$5 dollars per day": ("5", "dollars per day"),
    },
    currency_behind: {"18.90 \u20ac": ("18.90", "euro"), r"5\$": ("5", "dollar"), "50\u00a2": ("50", "cents")},
    temperature: {r"20^\circ C": ("20", "celsius"), "68 degrees Fahrenheit": ("68", "fahrenheit")},
    degrees: {r"45^\circ": ("45", "degree")},
    words_behind: {
        r"5 \text{ m}": ("5", "m"),
        "60 km/h": ("60", "km/h"),
        "12 apples": ("12", "apple"),
        r"4\pi cm": (r"4\pi", "cm"),
        "5 m^2": ("5", "m^2"),
        "5 L": ("5", "litre"),
        "5 m^2/day": ("5", "m^2 per day"),
        "5/hour": ("5", "per hour"),
        "12 years old": ("12", "years"),
        r"5 \text{ apples in total}": ("5", "apple"),
    },
}
LEFT_ALONE: dict[Rule, tuple[str, ...]] = {
    currency_before: ("18.90", "USD", "x"),
    currency_behind: ("18.90", "x\u20ac"),
    temperature: (r"45^\circ", "20 C"),
    degrees: (r"\sin 45^\circ", r"45^\circ C", "45"),
    words_behind: ("5m", "5x", "x", r"\text{red}", "12", "5/x", "5/ab", "1/sqrt(2)"),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule(rule: Rule) -> None:
    """It takes the unit from its examples, and nothing from what only looks like them."""
    for text, (formula, words) in EXAMPLES[rule].items():
        assert rule(text) == (formula, read_unit(words))
        assert split_unit(text) == rule(text)
    assert [text for text in LEFT_ALONE[rule] if rule(text) is not None] == []


@pytest.mark.parametrize(
    ("words", "dimensions", "factor"),
    [
        ("m", {"length": 1}, 1),
        ("centimeters", {"length": 1}, Fraction(1, 100)),
        ("km/h", {"length": 1, "time": -1}, Fraction(5, 18)),
        ("meters per second", {"length": 1, "time": -1}, 1),
        ("m s ^-2", {"length": 1, "time": -2}, 1),
        ("square feet", {"length": 2}, Fraction(381, 1250) ** 2),
        ("cm ^3", {"length": 3}, Fraction(1, 10**6)),
        ("cu in", {"length": 3}, Fraction(127, 5000) ** 3),
        ("mph", {"length": 1, "time": -1}, Fraction(201168, 450000)),
        ("liters", {"length": 3}, Fraction(1, 1000)),
        ("mL / min", {"length": 3, "time": -1}, Fraction(1, 60_000_000)),
        ("km per liter", {"length": -2}, 10**6),
        ("meters per second squared", {"length": 1, "time": -2}, 1),
        ("feet cubed", {"length": 3}, Fraction(381, 1250) ** 3),
        ("years", {"calendar": 1}, 12),
        ("apples", {"apple": 1}, 1),
        ("apples per day", {"apple": 1, "time": -1}, Fraction(1, 86400)),
    ],
)
def test_words_are_dimensions_and_a_factor(words: str, dimensions: dict[str, int], factor: Fraction) -> None:
    """So that the same quantity is the same in any unit."""
    assert read_unit(words) == Unit(tuple(sorted(dimensions.items())), Fraction(factor))


@pytest.mark.parametrize("words", ["is wrong", "or so", "a b c d e", "million dollars", "apples squared"])
def test_words_that_say_more_are_no_unit(words: str) -> None:
    """The answer cannot be read."""
    with pytest.raises(UnreadableError):
        read_unit(words)


@pytest.mark.parametrize(
    ("one", "many"),
    [
        *(("apple", "apples"), ("box", "boxes"), ("class", "classes"), ("bus", "buses"), ("house", "houses")),
        *(("city", "cities"), ("cookie", "cookies"), ("knife", "knives"), ("leaf", "leaves"), ("match", "matches")),
        *(("potato", "potatoes"), ("shoe", "shoes"), ("man", "men"), ("person", "people"), ("angle", "angles")),
    ],
)
def test_a_label_is_itself_in_the_plural(one: str, many: str) -> None:
    """By the rules of spelling; none is a measure, though one may be named like it."""
    found = read_unit(one)
    assert found is not None
    assert (found, is_known(found)) == (read_unit(many), False)


def test_other_things_are_other_labels() -> None:
    """Whatever their ends have in common."""
    assert len({read_unit(word) for word in ("cans", "canes", "planes", "plans", "girls", "boys")}) == 6


def test_what_cancels_is_no_unit_and_a_label_no_measure() -> None:
    """Metres by metres are a number; apples are counted, and never converted."""
    assert read_unit("m / m") is None
    metres, apples = read_unit("m"), read_unit("apples")
    assert metres is not None
    assert apples is not None
    assert (is_known(metres), is_known(apples)) == (True, False)


@pytest.mark.parametrize(
    ("text", "found"),
    [("25%", ("25", True)), (r"25\%", ("25", True)), (r"25\text{ percent}", ("25", True)), ("25", ("25", False))],
)
def test_a_percent_sign_is_taken_off(text: str, found: tuple[str, bool]) -> None:
    """However it is written."""
    assert split_percent(text) == found
