"""The shipped model: what it weighs, how it reads and writes, and how well it answers before any training."""

import re
import string
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from prl.arithmetic import Problem, Split, problem, split_of
from prl.models import resolve_model
from prl.models.make_tiny_math import (
    END,
    LEVEL_SHARES,
    PAD,
    START,
    at_once,
    batches,
    by_columns,
    encode_lesson,
    lesson,
    make_model,
    make_tokenizer,
    save,
    warm_up,
)

FOLDER = Path(resolve_model("builtin:tiny-math"))
TOKENIZER: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(FOLDER)
MAX_BYTES = 4_000_000
BAND = (0.25, 0.40)
"""Greedy accuracy of the shipped model on held-out problems of level 1."""


def prompt_ids(question: str) -> list[int]:
    """The ids a user's question becomes."""
    ids: list[int] = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=True, add_generation_prompt=True, return_dict=False
    )
    return ids


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
    """The data files have not drifted from the script beside them."""
    made = make_tokenizer()
    assert TOKENIZER.get_vocab() == made.get_vocab()
    assert TOKENIZER.chat_template == made.chat_template
    assert TOKENIZER.backend_tokenizer.to_str() == made.backend_tokenizer.to_str()


def test_the_chat_template_renders_once() -> None:
    """A question becomes exactly these tokens: no BOS, each special token one id, digits apart."""
    tokens = TOKENIZER.convert_ids_to_tokens(prompt_ids("17 + 25 = ?"))
    question = ["1", "7", "Ġ+", "Ġ", "2", "5", "Ġ=", "Ġ?"]
    assert tokens == [START, "user", "Ċ", *question, END, "Ċ", START, "assistant", "Ċ"]


def test_the_chat_template_knows_every_role() -> None:
    """System, user and assistant turns are kept in order, and the generation prompt comes only when it is asked for."""
    turns = [{"role": role, "content": role.upper()} for role in ("system", "user", "assistant")]
    assert TOKENIZER.apply_chat_template(turns, tokenize=False) == "".join(
        f"{START}{role}\n{role.upper()}{END}\n" for role in ("system", "user", "assistant")
    )


def test_a_turn_ends_with_the_stop_token(model: Qwen3ForCausalLM) -> None:
    """What ends a turn in the template is what generation stops at, in every file that says so; padding is another."""
    rendered = TOKENIZER.apply_chat_template([{"role": "assistant", "content": "x"}], tokenize=False)
    assert rendered.endswith(f"x{END}\n")
    end = TOKENIZER.convert_tokens_to_ids(END)
    assert [TOKENIZER.eos_token_id, model.config.eos_token_id, model.generation_config.eos_token_id] == [end] * 3
    assert TOKENIZER.pad_token_id == TOKENIZER.convert_tokens_to_ids(PAD) != end


@settings(deadline=None)
@given(st.text())
def test_every_text_encodes_and_decodes_to_itself(text: str) -> None:
    """The alphabet is all bytes, so no prompt is refused or altered, whatever its script."""
    clean = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    assert TOKENIZER.decode(TOKENIZER.encode(clean, add_special_tokens=False)) == clean


def test_printable_ascii_and_words_are_known() -> None:
    """Every printable character encodes, and each repeated word is one token."""
    assert TOKENIZER.decode(TOKENIZER.encode(string.printable)) == string.printable
    assert [len(TOKENIZER.encode(word)) for word in ("user", "assistant", "system", "\\boxed{")] == [1] * 4


@settings(deadline=None)
@given(st.integers(1, len(LEVEL_SHARES)), st.integers(0, 10**6), st.sampled_from(["train", "eval"]))
def test_every_problem_and_answer_round_trips(level: int, index: int, split: Split) -> None:
    """Questions and worked answers survive encoding, digit by digit."""
    made = problem(level, index, 0, split)
    for text in (made.question, at_once(made)):
        ids = TOKENIZER.encode(text, add_special_tokens=False)
        assert TOKENIZER.decode(ids) == text
        assert all(len(token) == 1 for token in TOKENIZER.convert_ids_to_tokens(ids) if any(map(str.isdigit, token)))


def test_weak_at_first_but_well_formed(model: Qwen3ForCausalLM) -> None:
    """Greedy answers to held-out problems are well formed, and right as seldom as a default run should start with."""
    torch.set_num_threads(1)
    problems = [problem(1, index, 0, "eval") for index in range(256)]
    rows = TOKENIZER.pad({"input_ids": [prompt_ids(made.question) for made in problems]}, return_tensors="pt")
    outputs = model.generate(**rows, do_sample=False, temperature=None, max_new_tokens=48)
    texts = TOKENIZER.batch_decode(outputs[:, rows["input_ids"].shape[1] :], skip_special_tokens=True)
    answers = [boxed(text) for text in texts]
    assert sum(answer is not None and answer.isdigit() for answer in answers) >= 0.98 * len(problems)
    right = sum(answer == made.answer for answer, made in zip(answers, problems, strict=True))
    assert BAND[0] <= right / len(problems) <= BAND[1]


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 100))
def test_lessons_are_fixed_right_and_never_held_out(index: int, seed: int) -> None:
    """A lesson depends on its index and seed only, ends in the right answer, and is no evaluation problem."""
    made, answer = lesson(index, seed)
    assert lesson(index, seed) == (made, answer)
    assert boxed(answer) == made.answer
    assert split_of([int(digits) for digits in re.findall(r"\d+", made.question)]) == "train"


@pytest.mark.parametrize(
    ("question", "answer", "taught"),
    [
        ("17 + 25", "42", r"7+5=12, 1+2+1=4 \boxed{42}"),
        ("99 + 99", "198", r"9+9=18, 9+9+1=19 \boxed{198}"),
        ("4 + 5", "9", r"4+5=9, 0+0+0=0 \boxed{9}"),
        ("52 - 27", "25", r"12-7=5, 5-2-1=2 \boxed{25}"),
        ("58 - 27", "31", r"8-7=1, 5-2-0=3 \boxed{31}"),
    ],
)
def test_work_by_columns(question: str, answer: str, taught: str) -> None:
    """Columns carry and borrow as on paper."""
    assert by_columns(Problem(question=f"{question} = ?", answer=answer, level=2)) == taught


@settings(deadline=None)
@given(st.sampled_from([1, 2]), st.integers(0, 10**6))
def test_columns_add_up(level: int, index: int) -> None:
    """Both lines of the work are right, and their digits put together are the answer."""
    made = problem(level, index, 0, "train")
    lines = by_columns(made).removesuffix(f" \\boxed{{{made.answer}}}").split(", ")
    ones, tens = (int(line.split("=")[1]) for line in lines)
    assert [sum(map(int, re.findall(r"^\d+|[+-]\d+", line.split("=")[0]))) for line in lines] == [ones, tens]
    assert 10 * tens + ones % 10 == int(made.answer)


def test_work_at_once_follows_the_order_of_operations() -> None:
    """One line per operation, parentheses first."""
    made = Problem(question="20 * 3 - (4 + 3) = ?", answer="53", level=5)
    assert at_once(made) == r"20*3=60, 4+3=7, 60-7=53 \boxed{53}"


def test_labels_cover_the_answer_and_its_stop_token() -> None:
    """The warm-up teaches what the assistant says, stop token included, and nothing of the prompt or padding."""
    ids, labels = next(batches(TOKENIZER, 0))
    tokens, num_prompt = encode_lesson(TOKENIZER, *lesson(0, 0))
    taught = labels[0][labels[0] >= 0].tolist()
    assert ids[0, : len(tokens)].tolist() == tokens
    assert taught == tokens[num_prompt:]
    assert taught[-1] == TOKENIZER.eos_token_id
    assert labels[0, num_prompt : len(tokens)].tolist() == taught


def test_the_script_makes_a_folder_that_loads(tmp_path: Path) -> None:
    """Two warm-up steps, saved and loaded again: the same weights, and the same weights from the same seed."""

    def made() -> Qwen3ForCausalLM:
        model = make_model(TOKENIZER, seed=3)
        warm_up(model, batches(TOKENIZER, 3), num_steps=2)
        return model

    first, second = made(), made()
    save(first, make_tokenizer(), tmp_path / "made")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    assert AutoTokenizer.from_pretrained(tmp_path / "made").get_vocab() == TOKENIZER.get_vocab()
    for name, parameter in second.named_parameters():
        assert torch.equal(parameter, loaded.get_parameter(name)), name
