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
from prl.models.make_tiny_math import IGNORE, encode_lesson, make_tokenizer
from prl.models.make_tiny_remainder import LEVEL, MAX_TOKENS, batches, by_subtraction

FOLDER = Path(resolve_model("builtin:tiny-remainder"))
TOKENIZER: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(FOLDER)
MAX_BYTES = 4_000_000
REWARD = (0.2, 0.75)
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
    ("question", "answer", "taught"),
    [
        ("23 % 5", "3", r"18, 13, 8, 3 \boxed{3}"),
        ("9 % 5", "4", r"4 \boxed{4}"),
        ("6 % 2", "0", r"4, 2, 0 \boxed{0}"),
    ],
)
def test_work_by_subtraction(question: str, answer: str, taught: str) -> None:
    """The divisor is taken away until less than it is left."""
    assert by_subtraction(Problem(question=f"{question} = ?", answer=answer, level=LEVEL)) == taught


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_every_step_takes_the_divisor_away(index: int) -> None:
    """The work counts down by the divisor to the answer, as often as the quotient says."""
    made = problem(LEVEL, index, 0, "train")
    dividend, divisor = (int(digits) for digits in re.findall(r"\d+", made.question))
    *differences, rest = (int(digits) for digits in re.findall(r"\d+", by_subtraction(made)))
    assert [dividend, *differences] == list(range(dividend, -1, -divisor))
    assert str(rest) == made.answer == str(dividend % divisor)


def test_batches_are_of_one_size_in_tokens() -> None:
    """No batch holds more than its tokens, every answer is taught whole, and long ones are not left out."""
    given = batches(TOKENIZER, 0)
    drawn = [next(given) for _ in range(40)]
    assert max(ids.numel() for ids, _ in drawn) <= MAX_TOKENS
    assert max(ids.shape[1] for ids, _ in drawn) > 300
    assert all((labels[:, -1] != IGNORE).any() for _, labels in drawn)


def test_weak_at_first_with_a_long_tail(model: Qwen3ForCausalLM) -> None:
    """Sampled answers end by themselves, their mean is at most a quarter of the longest, and some are right."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    problems = [problem(LEVEL, index, 0, "eval") for index in range(128)]
    prompts = []
    for made in problems:
        ids, num_prompt = encode_lesson(TOKENIZER, made, "")
        prompts.append(ids[:num_prompt])
    rows = TOKENIZER.pad({"input_ids": prompts}, return_tensors="pt")
    outputs = model.generate(**rows, do_sample=True, top_k=0, max_new_tokens=512)[:, rows["input_ids"].shape[1] :]
    lengths = (outputs != TOKENIZER.pad_token_id).sum(dim=1)
    assert lengths.float().mean() <= lengths.max() / 4
    texts = TOKENIZER.batch_decode(outputs, skip_special_tokens=True)
    right = sum(boxed(text) == made.answer for text, made in zip(texts, problems, strict=True))
    assert REWARD[0] <= right / len(problems) <= REWARD[1]
