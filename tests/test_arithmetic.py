import ast
import operator
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prl.arithmetic import LEVELS_WITH_LESSONS, NUM_LEVELS, Problem, Split, problem, split_of

LEVELS = st.integers(1, NUM_LEVELS)
INDICES = st.integers(0, 10**9)
SEEDS = st.integers(0, 2**64)
SPLITS: st.SearchStrategy[Split] = st.sampled_from(["train", "eval"])
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def numbers(text: str) -> list[int]:
    """The numbers of a question, in order."""
    return [int(digits) for digits in re.findall(r"\d+", text)]


def evaluate(node: ast.AST) -> tuple[int, list[int]]:
    """The value of an expression and of each of its parts, by a way of its own."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value, [node.value]
    assert isinstance(node, ast.BinOp), ast.dump(node)
    (left, lefts), (right, rights) = evaluate(node.left), evaluate(node.right)
    value = OPERATORS[type(node.op)](left, right)
    return value, [*lefts, *rights, value]


@settings(deadline=None)
@given(LEVELS, INDICES, SEEDS, SPLITS)
def test_answers_are_right(level: int, index: int, seed: int, split: Split) -> None:
    """The answer is the value of the expression, and no intermediate result is negative."""
    made = problem(level, index, seed, split)
    expression = made.question.removesuffix(" = ?")
    value, parts = evaluate(ast.parse(expression, mode="eval").body)
    assert made == Problem(question=f"{expression} = ?", answer=str(value), level=level)
    assert min(parts) >= 0


@settings(deadline=None)
@given(LEVELS, INDICES, SEEDS, SPLITS)
def test_the_same_arguments_give_the_same_problem(level: int, index: int, seed: int, split: Split) -> None:
    """A problem depends on its arguments and on nothing that was drawn before."""
    first = problem(level, index, seed, split)
    problem(level, index + 1, seed, split)
    assert problem(level, index, seed, split) == first


@settings(deadline=None)
@given(LEVELS, INDICES, SEEDS, SPLITS)
def test_a_problem_lies_in_the_split_it_was_asked_for(level: int, index: int, seed: int, split: Split) -> None:
    """The operands in any order say which split a problem is in, so no evaluation problem is ever trained on."""
    operands, lessons = numbers(problem(level, index, seed, split).question), level in LEVELS_WITH_LESSONS
    assert split_of(operands, lessons=lessons) == split
    assert split_of(operands[::-1], lessons=lessons) == split


@pytest.mark.parametrize("level", range(1, NUM_LEVELS + 1))
def test_training_and_evaluation_are_disjoint(level: int) -> None:
    """Thousands of training problems hold none of hundreds of evaluation problems, across seeds."""
    train = {problem(level, index, seed, "train").question for seed in (0, 1) for index in range(3000)}
    held_out = {problem(level, index, seed, "eval").question for seed in (0, 1) for index in range(300)}
    assert len(held_out) > 80
    assert not train & held_out


def test_lessons_are_disjoint_from_both() -> None:
    """What a model was taught at level 6 occurs neither in training nor in evaluation, and is of the same kind."""
    lessons = {problem(6, index, seed, "lesson").question for seed in (0, 1) for index in range(3000)}
    others = {problem(6, index, 0, split).question for split in ("train", "eval") for index in range(3000)}
    assert len(lessons) > 3000
    assert not lessons & others
    assert {numbers(question)[1] for question in lessons} == set(range(1, 64))


@settings(deadline=None)
@given(INDICES, SEEDS, SPLITS)
def test_level_ranges(index: int, seed: int, split: Split) -> None:
    """Each level keeps the operators and the sizes that its row of the table states."""
    by_level = {level: problem(level, index, seed, split) for level in range(1, NUM_LEVELS + 1)}
    assert re.fullmatch(r"\d{1,2} \+ \d{1,2} = \?", by_level[1].question)
    assert re.fullmatch(r"\d{1,2} [+-] \d{1,2} = \?", by_level[2].question)
    assert int(by_level[2].answer) <= 99
    assert re.fullmatch(r"\d{3} [+-] \d{3} = \?|\d{1,2} \+ \d{1,2} [+-] \d{1,2} = \?", by_level[3].question)
    assert re.fullmatch(r"\d{1,2} \* [2-9] = \?", by_level[4].question)
    assert re.fullmatch(r"[\d +*()-]+ = \?", by_level[5].question)
    assert max(numbers(by_level[5].question)) <= 20
    assert re.fullmatch(r"\d{1,3} \+ \d{1,2} = \?", by_level[6].question)
    start, count = numbers(by_level[6].question)
    assert start <= 899
    assert 1 <= count <= 63


def test_each_level_shows_all_its_kinds() -> None:
    """Every kind of problem that a level promises occurs among its first hundred."""

    def questions(level: int) -> str:
        return "\n".join(problem(level, index, 0, "train").question for index in range(100))

    assert re.search(r"^\d \+ \d\d =", questions(1), re.MULTILINE)
    assert {"+", "-"} <= set(questions(2))
    assert re.search(r"\d{3} - \d{3}", questions(3))
    assert re.search(r"\d+ \+ \d+ \+ \d+", questions(3))
    assert {"(", "*", "+", "-"} <= set(questions(5))


def test_counts_have_a_long_tail() -> None:
    """Half the second numbers of level 6 are small, and few are large: the mean is an eighth of the longest."""
    counts = sorted(numbers(problem(6, index, 0, "train").question)[1] for index in range(2000))
    assert counts[1000] < 4
    assert 0.015 <= sum(count >= 32 for count in counts) / 2000 <= 0.045
    assert sum(counts) / 2000 < counts[-1] / 8


def test_seeds_and_indices_vary_the_problems() -> None:
    """Neighbouring indices and seeds give different sequences, not one problem again and again."""
    first = [problem(1, index, 0, "train") for index in range(200)]
    other = [problem(1, index, 1, "train") for index in range(200)]
    assert len({made.question for made in first}) > 180
    assert first != other


def test_the_sequence_is_fixed() -> None:
    """The first problems are what they were: a changed generator would silently change every run."""
    assert [problem(level, 0, 0, "train").question for level in range(1, 7)] == [
        "50 + 16 = ?",
        "50 + 47 = ?",
        "61 + 14 + 83 = ?",
        "28 * 5 = ?",
        "4 * (5 - 1) = ?",
        "892 + 1 = ?",
    ]


@pytest.mark.parametrize("level", [0, 7, -1])
def test_an_unknown_level_is_refused(level: int) -> None:
    """A level outside 1 to 6 is an error that names it."""
    with pytest.raises(ValueError, match=f"levels 1 to 6, got {level}"):
        problem(level, 0, 0, "train")


def test_an_unknown_split_is_refused() -> None:
    """A misspelt split, or one that the level does not have, is an error, not an endless search."""
    with pytest.raises(ValueError, match=r"'train', 'eval', 'lesson'\), got 'test'"):
        problem(6, 0, 0, "test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"level 1 .* splits \('train', 'eval'\), got 'lesson'"):
        problem(1, 0, 0, "lesson")
