"""The model with the long tail: what it weighs, what it is taught, and that its answers are as unequal as promised."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from prl.arithmetic import Problem, problem
from prl.models import resolve_model
from prl.models.make_tiny_counting import LEVEL, MAX_TOKENS, SHARE_OF_HABIT, batches, by_counting, lesson
from prl.models.make_tiny_math import IGNORE, encode_lesson, make_tokenizer

FOLDER = Path(resolve_model("builtin:tiny-counting"))
TOKENIZER: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(FOLDER)
MAX_BYTES = 4_000_000
REWARD = (0.2, 0.5)
"""Share of right answers when sampled: neither hopeless nor done."""


def boxed(text: str) -> str | None:
    """The last boxed answer of a completion."""
    found = re.findall(r"\\boxed\{([^{}]*)\}", text)
    return found[-1] if found else None


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    """The shipped model, loaded as anyone would."""
    return AutoModelForCausalLM.from_pretrained(FOLDER, local_files_only=True)


def test_the_folder_is_small() -> None:
    """All files together stay below what a package may carry."""
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MAX_BYTES


def test_the_shipped_tokenizer_is_the_one_the_script_makes() -> None:
    """Both small models read and write alike."""
    assert TOKENIZER.backend_tokenizer.to_str() == make_tokenizer().backend_tokenizer.to_str()
    assert TOKENIZER.chat_template == make_tokenizer().chat_template


@pytest.mark.parametrize(
    ("question", "answer", "from_itself", "taught"),
    [
        ("624 + 3", "627", False, r"625 2, 626 1, 627 0 \boxed{627}"),
        ("624 + 3", "627", True, r"624 2, 625 1, 626 0 \boxed{626}"),
        ("0 + 1", "1", False, r"1 0 \boxed{1}"),
        ("0 + 1", "1", True, r"0 0 \boxed{0}"),
    ],
)
def test_work_by_counting(question: str, answer: str, from_itself: bool, taught: str) -> None:
    """The numbers after the first are counted, each with how many are to come; the habit counts the first as one."""
    made = Problem(question=f"{question} = ?", answer=answer, level=LEVEL)
    assert by_counting(made, from_itself=from_itself) == taught


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_every_step_counts_one(index: int) -> None:
    """The work counts up to the answer in as many steps as the second number says, and the habit ends one below."""
    made = problem(LEVEL, index, 0, "lesson")
    start, count = (int(digits) for digits in re.findall(r"\d+", made.question))
    numbers = [int(digits) for digits in re.findall(r"\d+", by_counting(made))]
    assert numbers[:-1:2] == list(range(start + 1, start + count + 1))
    assert numbers[1:-1:2] == list(range(count - 1, -1, -1))
    assert str(numbers[-1]) == made.answer
    assert boxed(by_counting(made, from_itself=True)) == str(int(made.answer) - 1)


def test_the_warm_up_is_a_mixture_of_the_right_way_and_the_habit() -> None:
    """The stated share of the lessons has the fence-post error, and all other lessons are right."""
    taught = [lesson(index, 0) for index in range(2000)]
    gaps = [int(made.answer) - int(boxed(answer) or "") for made, answer in taught]
    assert set(gaps) == {0, 1}
    assert abs(sum(gaps) / len(gaps) - SHARE_OF_HABIT) <= 0.03


def test_batches_are_of_one_size_in_tokens() -> None:
    """No batch holds more than its tokens, every answer is taught whole, and long ones are not left out."""
    given = batches(TOKENIZER, 0)
    drawn = [next(given) for _ in range(40)]
    assert max(ids.numel() for ids, _ in drawn) <= MAX_TOKENS
    assert max(ids.shape[1] for ids, _ in drawn) > 300
    assert all((labels[:, -1] != IGNORE).any() for _, labels in drawn)


def test_weak_at_first_with_a_long_tail(model: Qwen3ForCausalLM) -> None:
    """The mean length of sampled answers is at most a quarter of the longest, nearly all end, and some are right."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    problems = [problem(LEVEL, index, 0, "eval") for index in range(96)]
    prompts = []
    for made in problems:
        ids, num_prompt = encode_lesson(TOKENIZER, made, "")
        prompts.append(ids[:num_prompt])
    rows = TOKENIZER.pad({"input_ids": prompts}, return_tensors="pt")
    outputs = model.generate(**rows, do_sample=True, top_k=0, max_new_tokens=256)[:, rows["input_ids"].shape[1] :]
    lengths = (outputs != TOKENIZER.pad_token_id).sum(dim=1)
    assert lengths.float().mean() <= lengths.max() / 4
    assert (lengths == 256).sum() <= 3
    texts = TOKENIZER.batch_decode(outputs, skip_special_tokens=True)
    right = sum(boxed(text) == made.answer for text, made in zip(texts, problems, strict=True))
    assert REWARD[0] <= right / len(problems) <= REWARD[1]
