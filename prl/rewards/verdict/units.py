r"""What a number counts: ``5 \text{ m}``, ``\$18.90``, ``60 km/h``, ``12 apples``, ``25\%``.

- A unit that is known has dimensions and a factor, so that 5 m are 500 cm and never 5 cm. Another word is a label,
  equal to itself in singular and plural, and never a measure.
- One letter is a unit only behind a space or in ``\text``: ``5m`` is a product. One or two letters outside ``\text``
  may be symbols all the same, and are compared as such where they are no equal quantities (``same.py``).
- Words that say more than what is counted (``5 is wrong``, ``5 or so``) are no unit: the answer cannot be read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

import msgspec

from prl.rewards.verdict.node import UnreadableError
from prl.rewards.verdict.words import NUMBER_WORDS

_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*(?:\\?%|percent)\s*\}|\bpercent)\s*$")
_CURRENCY = re.compile(r"^\s*(-?)\s*(?:US)?(\\\$|[\u20ac\u00a3\u00a5\u20b9]|(?:USD|EUR|GBP|JPY|INR)(?= ?[\d.]))\s*(-?)")
_CURRENCY_BEHIND = re.compile(r"(?<=[\d}]) ?(\\\$|[\u20ac\u00a3\u00a5\u20b9\u00a2]) ?$")
_TEMPERATURE = re.compile(
    r" ?(?:\^\\circ|(?:\\text ?\{ ?)?degrees?) ?(?:\\text ?\{ ?)?(C|F|Celsius|Fahrenheit)(?: ?\})? ?$", re.IGNORECASE
)
_TOKEN = re.compile(r"\\text\s*\{([^{}]*)\}|([A-Za-z]+)|\^\s*\{?\s*(-?\d)\s*\}?|(/)|\\cdot|\s+|(\S)")
_WORD = re.compile(r"[A-Za-z]+|\^\s*\{?-?\d\}?|/|[\u20ac\u00a3\u00a5\u20b9\u00a2$]")
_MORE_THAN_A_UNIT = NUMBER_WORDS | frozenset(
    [
        *("is", "are", "was", "not", "no", "wrong", "or", "and", "but", "maybe", "perhaps", "possibly"),
        *("probably", "if", "to", "from", "about", "around", "approximately", "either", "neither", "nor"),
        *("except", "unless", "roughly", "nearly", "almost", "than", "between", "mod", "choose", "plus", "minus"),
        *("times", "divided", "over", "more", "less", "fewer", "greater", "squared", "cubed", "factorial"),
        *("million", "billion", "trillion"),
    ]
)
_ENDS_A_VALUE = frozenset("0123456789)}]!")
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
"""Behind one, a degree is a part of the formula."""
MAX_LABEL_WORDS = 4

_TABLE = {
    "length": "m meter metre=1 km kilometer kilometre=1000 cm centimeter centimetre=1/100 mm millimeter "
    "millimetre=1/1000 in inch inches=127/5000 ft foot feet=381/1250 yd yard=1143/1250 mi mile=201168/125",
    "mass": "g gram gm=1 kg kilogram=1000 mg milligram=1/1000 lb lbs pound=45359237/100000 oz ounce=45359237/1600000",
    "time": "s sec second=1 ms millisecond=1/1000 min minute=60 h hr hour=3600 day=86400 week=604800",
    "money": "$ dollar usd=1 cent \u00a2=1/100",
    "euro": "\u20ac euro eur=1",
    "pound sterling": "\u00a3 gbp=1",
    "yen": "\u00a5 yen jpy=1",
    "rupee": "\u20b9 rupee inr=1",
    "calendar": "month=1 year yr=12 decade=120 century centuries=1200",
    "angle": "degree deg=1",
    "energy": "J joule=1 kJ kilojoule=1000",
    "force": "N newton=1 kN kilonewton=1000",
    "power": "W watt=1 kW kilowatt=1000",
    "voltage": "V volt=1 mV millivolt=1/1000 kV kilovolt=1000",
    "current": "A ampere amp=1 mA milliampere=1/1000",
    "frequency": "Hz hertz=1 kHz kilohertz=1000 MHz megahertz=1000000",
    "pressure": "Pa pascal=1 kPa kilopascal=1000",
    "temperature": "celsius=1",
}  # fmt: skip
_MEASURES = frozenset(_TABLE)
_MONEY = ("money", "euro", "pound sterling", "yen", "rupee")
_KNOWN: dict[str, tuple[str, Fraction]] = {}
for _dimension, _entries in _TABLE.items():
    _names: list[str] = []
    for _entry in _entries.split():
        _name, _, _factor = _entry.partition("=")
        _names.append(_name)
        if _factor:
            _KNOWN.update(dict.fromkeys(_names, (_dimension, Fraction(_factor))))
            _names = []


class Unit(msgspec.Struct, frozen=True):
    """What is counted."""

    dimensions: tuple[tuple[str, int], ...]
    """Exponent by dimension, sorted; a label is a dimension of its own."""
    factor: Fraction = Fraction(1)
    """How many base units one is."""


Split = tuple[str, Unit | None]
"""A formula, and what it counts."""
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWERS_BEHIND = {"squared": 2, "cubed": 3}
_ADDS_NOTHING = re.compile(r"(?:^|\s+)(?:in\s+total|in\s+all|altogether|total|left|remaining|old)\s*$")
"""Words behind what is counted, or alone: ``12 years old``, ``5 left``."""
_IRREGULAR = {"men": "man", "women": "woman", "children": "child", "people": "person", "mice": "mouse", "dice": "die"}
_SPEED, _VOLUME = (("length", 1), ("time", -1)), (("length", 3),)
_COMPOUND = {
    "mph": Unit(_SPEED, Fraction(201168, 125 * 3600)),
    "kph": Unit(_SPEED, Fraction(1000, 3600)),
    **dict.fromkeys(("l", "liter", "litre"), Unit(_VOLUME, Fraction(1, 1000))),
    **dict.fromkeys(("ml", "milliliter", "millilitre"), Unit(_VOLUME, Fraction(1, 1_000_000))),
}


def is_known(unit: Unit) -> bool:
    """Whether it is a measure, and no label."""
    return all(name in _MEASURES for name, _ in unit.dimensions)


def split_percent(text: str) -> tuple[str, bool]:
    """The text before a percent sign at its end, and whether there is one."""
    match = _PERCENT.search(text)
    return (text[: match.start()], True) if match else (text, False)


def currency_before(text: str) -> Split | None:
    r"""``\$18.90``, ``-\$5``, ``\$5 per hour``: what is counted is money, or money for each of a measure."""
    if not (match := _CURRENCY.match(text)):
        return None
    formula, behind = split_unit(match.group(1) + match.group(3) + text[match.end() :])
    money = read_unit(match.group(2).removeprefix("\\"))
    return formula, _rate_of(money, behind) if money is not None and behind is not None else money


def _rate_of(money: Unit, behind: Unit) -> Unit | None:
    """Money, for each of what stands ``behind`` the number where that says so: ``per hour``, ``dollars per hour``."""
    if all(exponent < 0 for _, exponent in behind.dimensions):
        exponents = Counter(dict(money.dimensions))
        exponents.update(dict(behind.dimensions))
        return _unit_of(exponents, money.factor * behind.factor)
    return behind if set(money.dimensions) < set(behind.dimensions) else money


def _unit_of(exponents: Mapping[str, int], factor: Fraction) -> Unit | None:
    r"""None where nothing is left. Money for each of a label is money: ``\$5 per ticket``."""
    is_money = any(exponents.get(name, 0) > 0 for name in _MONEY)
    kept = {name: each for name, each in exponents.items() if each and (each > 0 or not is_money or name in _MEASURES)}
    return Unit(tuple(sorted(kept.items())), factor) if kept else None


def currency_behind(text: str) -> Split | None:
    """``18.90 €``."""
    match = _CURRENCY_BEHIND.search(text)
    return (text[: match.start()].strip(), read_unit(match.group(1).removeprefix("\\"))) if match else None


def temperature(text: str) -> Split | None:
    r"""``20^\circ C``, ``68 degrees Fahrenheit``: no angle."""
    match = _TEMPERATURE.search(text)
    if not match:
        return None
    return text[: match.start()].strip(), read_unit("celsius" if match.group(1)[0] in "cC" else "fahrenheit")


def degrees(text: str) -> Split | None:
    r"""``45^\circ``, where it is no argument of a function."""
    if not text.endswith(r"^\circ") or _FUNCTION.search(text):
        return None
    return text[: -len(r"^\circ")], read_unit("degree")


def words_behind(text: str) -> Split | None:
    r"""``5 \text{ m}``, ``60 km/h``, ``12 apples``: the words at the end. Raises UnreadableError."""
    start = _start_of_unit(text)
    if start is None:
        return None
    return text[:start].strip(), read_unit(re.sub(r"\\text|\\cdot|[{}]", " ", text[start:]))


RULES = (currency_before, currency_behind, temperature, degrees, words_behind)
"""Where a unit stands; the first that finds one has it."""


def split_unit(text: str) -> Split:
    """The formula, and what stands behind it (or the sign before it). Raises UnreadableError."""
    return next((found for rule in RULES if (found := rule(text)) is not None), (text, None))


def _start_of_unit(text: str) -> int | None:
    """Where the words at the end of ``text`` begin, if they are a unit."""
    start: int | None = None
    was_word = False
    for match in _TOKEN.finditer(text):
        wrapped, word, exponent, slash, other = match.groups()
        if other is not None or (wrapped is not None and re.search(r"(?<!\^)(?<!\^-)\d", wrapped)):
            start = None
        elif start is None:
            begins = wrapped is not None or (word is not None and _begins_unit(text, match))
            start = match.start() if begins or (slash and _begins_rate(text, match)) else None
        elif (exponent or slash) and not was_word:
            start = None
        was_word = (wrapped or word) is not None or (was_word and bool(exponent or not match.group().strip()))
    return start or None


def _begins_unit(text: str, match: re.Match[str]) -> bool:
    word, before = match.group(), text[max(0, match.start() - 2) : match.start()]  # spaces stand alone
    if before.strip()[-1:] not in _ENDS_A_VALUE and not text[: match.start()].rstrip().endswith(r"\pi"):
        return False
    if len(word) == 1:
        return before.endswith(" ") and (word in _KNOWN or word == "L")
    known = (
        word in _KNOWN
        or word in ("sq", "cu")
        or word.lower() in _KNOWN
        or word.lower() in _COMPOUND
        or word.lower().removesuffix("s") in _KNOWN
    )
    return known or (before.endswith(" ") and len(word) >= 3)  # noqa: PLR2004


def _begins_rate(text: str, slash: re.Match[str]) -> bool:
    """``5/hour``: behind a number, so many for each of a measure."""
    word = re.match(r"\s*([A-Za-z]{2,})", text[slash.end() :])
    is_measure = word is not None and _measure(word.group(1)) is not None
    return is_measure and text[: slash.start()].rstrip()[-1:] in _ENDS_A_VALUE


def read_unit(words: str) -> Unit | None:
    """``km/h``, ``square meters``, ``meters per second`` or a label. Raises UnreadableError."""
    product = _Product()
    for word in _WORD.findall(_ADDS_NOTHING.sub("", words)):
        product.take(word)
    return product.unit()


class _Product:
    """Units and labels multiplied and divided, read word by word."""

    def __init__(self) -> None:
        self._exponents: Counter[str] = Counter()
        self._factor = Fraction(1)
        self._sign = self._power = 1
        self._num_labels = 0
        self._last: Unit | None = None

    def take(self, word: str) -> None:
        """The next word. Raises UnreadableError where it says more than what is counted."""
        lower = word.lower()
        if lower in _POWERS_BEHIND and self._last is not None and is_known(self._last):
            self.times(self._last, _POWERS_BEHIND[lower] - 1)
        elif lower in _MORE_THAN_A_UNIT:
            raise UnreadableError(f"{word!r} says more than an answer does")
        elif word.startswith("^"):
            self.times(self._last, int(re.sub(r"[^\d-]", "", word)) - 1)
        elif word == "/" or lower == "per":
            self._sign = -1
        elif lower in _POWERS:
            self._power = _POWERS[lower]
        else:
            self._last = _measure(word) or self._label(lower)
            self.times(self._last, self._power)
            self._power = 1

    def times(self, unit: Unit | None, exponent: int = 1) -> None:
        """So many times more of a unit, or less behind a slash."""
        if unit is not None:
            for name, each in unit.dimensions:
                self._exponents[name] += self._sign * exponent * each
            self._factor *= unit.factor ** (self._sign * exponent)

    def unit(self) -> Unit | None:
        """All of it; None where nothing is left. Raises UnreadableError for a sentence."""
        if self._num_labels > MAX_LABEL_WORDS:
            raise UnreadableError("a sentence stands behind the number")
        return _unit_of(self._exponents, self._factor)

    def _label(self, lower: str) -> Unit:
        """A word that is no measure."""
        self._num_labels += 1
        name = stem(lower)
        return Unit(((f"{name}s" if name in _MEASURES else name, 1),))


def stem(word: str) -> str:
    """What a word in lower case has in common with its plural: ``box``, ``cookie``, ``knife``, ``man``."""
    word = _IRREGULAR.get(word, word).rstrip("s")
    if word.endswith(("ve", "fe")):
        word = f"{word[:-2]}f"
    elif word.endswith(("se", "xe", "ze", "che", "she", "ie", "oe")):
        word = word[:-1].rstrip("s")
    return f"{word[:-1]}y" if word.endswith("i") else word


def _measure(word: str) -> Unit | None:
    """``km``, ``miles``, ``mph``, ``litres``; None for another word."""
    if (known := _known(word)) is not None:
        return Unit(((known[0], 1),), known[1])
    lower = word.lower()
    return _COMPOUND.get(lower) or _COMPOUND.get(lower.removesuffix("s"))


def _known(word: str) -> tuple[str, Fraction] | None:
    if word in _KNOWN:
        return _KNOWN[word]
    lower = word.lower()
    if len(word) == 1:
        return None
    return _KNOWN.get(lower) or _KNOWN.get(lower.removesuffix("s")) or _KNOWN.get(lower.removesuffix("es"))
