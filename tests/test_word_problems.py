"""Word problems: what their texts say is what their answers are, by a reading of the texts that knows no operands."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.arithmetic import Split, split_of
from prl.word_problems import NAMES, NUM_LEVELS, THINGS, problem

LEVELS = st.integers(1, NUM_LEVELS)
INDICES = st.integers(0, 10**9)
SEEDS = st.integers(0, 2**64)
SPLITS: st.SearchStrategy[Split] = st.sampled_from(["train", "eval"])

READINGS: list[tuple[str, Callable[..., int]]] = [
    (r"has # \w+ and buys # more\. .* now", lambda a, b: a + b),
    (r"has # \w+ and \w+ has #\. .* together", lambda a, b: a + b),
    (r"are # \w+ in one box and # in another\. How many \w+ are there in all", lambda a, b: a + b),
    (r"finds # \w+ in the morning and # in the evening", lambda a, b: a + b),
    (r"has # \w+ and gives # of them to \w+\. .* left", lambda a, b: a - b),
    (r"has # \w+ and \w+ has #\. How many more", lambda a, b: a - b),
    (r"shop has # \w+ and sells # of them\. .* left", lambda a, b: a - b),
    (r"wants # \w+ and has #\. .* missing", lambda a, b: a - b),
    (r"^There are # boxes with # \w+ in each\. .* in all", lambda a, b: a * b),
    (r"buys # bags of # \w+\. .* buy\?", lambda a, b: a * b),
    (r"Each of # children has # ", lambda a, b: a * b),
    (r"has # \w+, \w+ has # and a friend has #\. .* together", lambda a, b, c: a + b + c),
    (r"has # \w+, buys # and then finds # more\. .* now", lambda a, b, c: a + b + c),
    (r"has # \w+, buys # more and then gives # to \w+\. .* left", lambda a, b, c: a + b - c),
    (r"in one box and # in another\. \w+ takes # of them\. .* left", lambda a, b, c: a + b - c),
    (r"has # boxes with # \w+ in each, and # more \w+\. .* in all", lambda a, b, c: a * b + c),
    (r"buys # bags of # \w+ and gets # \w+ from \w+\. .* in all", lambda a, b, c: a * b + c),
    (r"has # boxes with # \w+ in each and gives # away\. .* left", lambda a, b, c: a * b - c),
    (r"shop has # bags of # \w+ and sells # \w+\. .* left", lambda a, b, c: a * b - c),
]
LARGEST = {1: 20, 2: 99, 3: 12, 4: 20, 5: 12}


def numbers(text: str) -> list[int]:
    """The numbers of a text, in order."""
    return [int(digits) for digits in re.findall(r"\d+", text)]


def readings(text: str) -> list[Callable[..., int]]:
    """Every calculation that the words of a text call for."""
    words = re.sub(r"\d+", "#", text)
    return [calculate for pattern, calculate in READINGS if re.search(pattern, words)]


@settings(deadline=None)
@given(LEVELS, INDICES, SEEDS, SPLITS)
def test_answers_are_right(level: int, index: int, seed: int, split: Split) -> None:
    """The words call for one calculation, and its result on the numbers of the text is the answer."""
    made = problem(level, index, seed, split)
    (calculate,) = readings(made.question)
    assert made.answer == str(calculate(*numbers(made.question)))
    assert int(made.answer) >= 0
    assert made.level == level


@settings(deadline=None)
@given(LEVELS, INDICES, SEEDS, SPLITS)
def test_the_same_arguments_give_the_same_problem(level: int, index: int, seed: int, split: Split) -> None:
    """A problem depends on its arguments and on nothing that was drawn before."""
    first = problem(level, index, seed, split)
    problem(level, index + 1, seed, split)
    assert problem(level, index, seed, split) == first


@settings(deadline=None)
@given(LEVELS, INDICES, SEEDS, SPLITS)
def test_the_numbers_alone_decide_the_split(level: int, index: int, seed: int, split: Split) -> None:
    """Whoever has whatever: a problem with held-out numbers, in any order, is never trained on."""
    found = numbers(problem(level, index, seed, split).question)
    assert split_of(found) == split_of(found[::-1]) == split


@pytest.mark.parametrize("level", range(1, NUM_LEVELS + 1))
def test_training_and_evaluation_are_disjoint(level: int) -> None:
    """Thousands of training problems share no numbers with hundreds of evaluation problems, across seeds."""
    train = {tuple(sorted(numbers(problem(level, i, seed, "train").question))) for seed in (0, 1) for i in range(2000)}
    held_out = {tuple(sorted(numbers(problem(level, i, seed, "eval").question))) for seed in (0, 1) for i in range(300)}
    assert held_out
    assert not train & held_out


@settings(deadline=None)
@given(LEVELS, INDICES, SEEDS, SPLITS)
def test_level_ranges(level: int, index: int, seed: int, split: Split) -> None:
    """Each level keeps to the sizes and the number of operands that its row of the table states."""
    found = numbers(problem(level, index, seed, split).question)
    assert len(found) == (2 if level <= 3 else 3)
    assert min(found) >= 2
    assert max(found) <= LARGEST[level]


@settings(deadline=None)
@given(LEVELS, INDICES, SEEDS, SPLITS)
def test_a_text_is_whole(level: int, index: int, seed: int, split: Split) -> None:
    """One kind of thing, at most two people and no one twice over, nothing left to fill in, a question at the end."""
    text = problem(level, index, seed, split).question
    assert "{" not in text
    assert text.endswith("?")
    words = re.findall(r"\w+", text)
    assert len({word for word in words if word in THINGS}) == 1
    assert len({word for word in words if word in NAMES}) <= 2
    assert not re.search(r"\b(\w+) has \d+ \w+,? (and )?\1 has", text)


def test_every_way_of_telling_comes_up() -> None:
    """All the texts are used, each read by a calculation of its own."""
    texts = [problem(level, i, 0, "train").question for level in range(1, NUM_LEVELS + 1) for i in range(200)]
    used = {id(calculate) for text in texts for calculate in readings(text)}
    assert len(used) == len(READINGS)


def test_the_sequence_is_fixed() -> None:
    """The first problems are what they were: a changed generator would silently change every run."""
    assert [problem(level, 0, 0, "train").question for level in range(1, 6)] == [
        "Emma has 17 shells and buys 17 more. How many shells does Emma have now?",
        "Carla has 7 cards and Leo has 8. How many cards do they have together?",
        "There are 10 boxes with 8 shells in each. How many shells are there in all?",
        "Ben has 2 stickers, Tom has 20 and a friend has 16. How many stickers do they have together?",
        "Felix has 10 boxes with 9 shells in each, and 3 more shells. How many shells does Felix have in all?",
    ]


@pytest.mark.parametrize("level", [0, 6, -1])
def test_an_unknown_level_is_refused(level: int) -> None:
    """A level outside 1 to 5 is an error that names it."""
    with pytest.raises(ValueError, match=f"levels 1 to 5, got {level}"):
        problem(level, 0, 0, "train")


def test_an_unknown_split_is_refused() -> None:
    """A misspelt split is an error, not an endless search."""
    with pytest.raises(ValueError, match="'train' and 'eval', got 'test'"):
        problem(1, 0, 0, "test")  # type: ignore[arg-type]
