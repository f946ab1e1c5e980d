r"""Where the answer of a completion is, and that no text takes long to search."""

from __future__ import annotations

import time

import pytest

from prl.rewards.extract import TAIL_CHARS, Extract, final_answer
from prl.rewards.verdict.policy import Policy
from prl.rewards.verdict.same import verdict
from tests.rewards.samples import completion, prompt


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{5}", "5"),
        (r"First \boxed{5}, no: \boxed{ 6 }.", "6"),
        (r"\boxed{\boxed{\frac{1}{2}}}", r"\frac{1}{2}"),
        (r"\boxed {\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{x \right.} }", r"\left\{x \right."),
        (r"\boxed{a\\}", r"a\\"),
        ("The answer is 12.", "12"),
        ("The answer is 3.14. Or so.", "3.14"),
        ("The answer is 42. Or maybe 43.", "42, Or maybe 43"),
        ("**Answer:** 7", "7"),
        ("**Final answer: $x+1$**", "x+1"),
        ("the answer is 1\nThe Answer = 2\nbye", "2"),
        ("#### 72", "72"),
        (r"The answer is \boxed{8}.", "8"),
        ("Since \\boxed{x} holds.\n**Answer: D**", "D"),
        ("12 + 5 is 17, I think", "17"),
        ("costs 1,234, then -2.50", "-2.50"),
        ("17", "17"),
        ("half: 1/2", "1/2"),
        ("no number here", None),
        ("", None),
        (r"so it is \boxed{42", None),
        (r"\boxed{1} and \boxed{2", None),
        (r"\boxed{}", ""),
    ],
)
def test_the_answer_stated_last(text: str, answer: str | None) -> None:
    """The last box or statement counts, whichever stands later, and the last number where there is neither."""
    assert final_answer(completion(text), prompt()) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{35} and \boxed{4}", "35, 4"),
        (r"\boxed{1}, \boxed{2}, and \boxed{3}.", "1, 2, 3"),
        (r"$\boxed{1}$ or $\boxed{2}$", "1, 2"),
        (r"\boxed{1} \text{ or } \boxed{2}", "1, 2"),
        (" ".join(rf"\boxed{{{i}}}" for i in range(4)), "0, 1, 2, 3"),
        (r"\boxed{5}, that is \boxed{6}", "6"),
        (r"\boxed{5} \boxed{5}", "5"),
        (r"First \boxed{35}. After checking every case again, it is \boxed{4}.", "4"),
        (r"\boxed{7} or maybe 8", "7, or maybe 8"),
        (r"\boxed{7}. Perhaps 8.", "7, Perhaps 8"),
        (r"\boxed{7} or so I think", "7"),
        (r"\boxed{\boxed{1} and \boxed{2}}", "1, 2"),
    ],
)
def test_boxes_side_by_side_are_one_answer(text: str, answer: str) -> None:
    """What is offered together is judged together; a box behind other words corrects the one before."""
    assert final_answer(completion(text), prompt()) == answer


def test_boxes_option() -> None:
    """With ``last`` only the last box counts, whatever stands before it."""
    text = r"\boxed{35} and \boxed{4}"
    assert final_answer(completion(text), prompt(), boxes="last") == "4"


@pytest.mark.parametrize(
    ("extract", "answer"), [("auto", "9"), ("boxed", "5"), ("number", "3"), ("text", r"a \boxed{5}. Answer: 9. Bye 3")]
)
def test_extract_option(extract: Extract, answer: str) -> None:
    """The option narrows where an answer may be."""
    assert final_answer(completion(" a \\boxed{5}. Answer: 9. Bye 3 "), prompt(), extract) == answer


@pytest.mark.parametrize("extract", ["auto", "boxed"])
def test_only_a_box_counts_as_a_box(extract: Extract) -> None:
    """Without a box, ``boxed`` finds nothing where ``auto`` finds the number."""
    assert final_answer(completion("it is 4"), prompt(), extract) == {"auto": "4", "boxed": None}[extract]


@pytest.mark.parametrize(
    ("prompt_text", "text", "answer"),
    [
        ("", r"<think>\boxed{1}</think>\boxed{2}", "2"),
        ("", r"<think>maybe \boxed{1}", None),
        ("<think>\n", r"maybe \boxed{1}", None),
        ("<think>\n", r"maybe \boxed{1}</think>\boxed{2}", "2"),
        ("<think></think>", r"\boxed{3}", "3"),
        ("", r"<think>a</think>\boxed{1}<think>b</think>\boxed{2}", None),
        ("", r"\boxed{1}</think>", None),
        ("", r"<think>\boxed{1}</think>", None),
        ("", r"<thinking>\boxed{1}</thinking>\boxed{2}", "2"),
        ("<reasoning>", r"maybe \boxed{1}", None),
    ],
)
def test_thinking_is_no_answer(prompt_text: str, text: str, answer: str | None) -> None:
    """Only what stands after one closed block of thinking counts, also when the template opened it."""
    assert final_answer(completion(text), prompt(text=prompt_text)) == answer


def test_the_prompt_is_never_searched() -> None:
    """An answer that stands in the prompt is not the completion's."""
    assert final_answer(completion(" "), prompt(text=r"write \boxed{42}")) is None


@pytest.mark.parametrize(
    "unit",
    [
        "{",
        "}",
        r"\boxed{",
        "$",
        "answer is ",
        "answer ",
        "<think>",
        r"\boxed{1} ",
        r"\boxed{1} or ",
        "} or ",
        "$ ",
        "1,",
        "-",
        "9",
        "\\",
        " ",
    ],
)
@pytest.mark.parametrize("extract", ["auto", "boxed", "number", "text"])
def test_no_text_takes_long(unit: str, extract: Extract) -> None:
    """200 kB of any one thing is searched in far less than the time a scan that is not linear would take."""
    text = unit * (200_000 // len(unit))
    start = time.thread_time()
    final_answer(completion(text), prompt(), extract)
    final_answer(completion(r"\boxed{" + text), prompt(), extract)
    assert time.thread_time() - start < 0.5


def test_an_answer_far_from_the_end_is_not_found() -> None:
    """Only the tail of a text is searched."""
    assert final_answer(completion(r"\boxed{1}" + "x" * TAIL_CHARS), prompt()) is None


RIGHT_TEXTS = {
    "42": [
        r"<reasoning>\boxed{41}</reasoning>\boxed{42}",
        r"\boxed{41}, no wait, it has to be \boxed{42}",
        r"Final Answer: The final answer is $42$. I hope it is correct.",
        "The answer is forty-two.",
        "\\boxed{42}.\n\nAlternatively, 6*7 = 42",
    ],
    "0.5": ["The answer is .5"],
    "-3": ["The answer is \u22123"],
    "1.5": [r"$\boxed{\frac{3}{2}}$ or equivalently $1.5$"],
    "12": [
        r"\boxed{12}. We check that 3*4 = 12, so the answer is correct.",
        "The answer is 12. So the answer is correct.",
    ],
    "right": ["The answer is right."],
    "B": ["The correct answer is option B."],
    "$5.50": ["The answer is $5.50."],
    "2": ["Answer:\n$$2$$"],
}
"""Texts by the right answer, which they give."""
WRONG_TEXTS = {
    "42": [
        r"</think>\boxed{42}",
        r"<thinking>\boxed{42}</thinking>",
        "The answer is not 42.",
        "The answer is 42, I think.",
        "The answer is 42 or 43.",
        r"\boxed{42}. The answer is 43.",
        r"I am between \boxed{41} and \boxed{42}",
        "\\boxed{42}. Alternatively, 6*7 + 1 = 43.",
        "\\boxed{42}. Alternatively, 43.",
        "\\boxed{42}\n\nor 43",
    ],
    "12": [r"\boxed{12}. The answer is correct: 13"],
    "B": ["The answer is A or B"],
}
"""Texts by the right answer, which they do not give."""


@pytest.mark.parametrize(
    ("gold", "text", "right"),
    [
        (gold, text, right)
        for right, texts_by_gold in ((True, RIGHT_TEXTS), (False, WRONG_TEXTS))
        for gold, texts in texts_by_gold.items()
        for text in texts
    ],
)
def test_texts_to_their_end(gold: str, text: str, *, right: bool) -> None:
    """What is found in a whole text, judged by the rules."""
    answer = final_answer(completion(text), prompt())
    assert (answer is not None and verdict(gold, answer, Policy()).value == 1.0) is right
