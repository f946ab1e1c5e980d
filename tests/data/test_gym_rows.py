"""Tasks of the real reasoning-gym as rows, and its verifiers behind the reward of that name."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prl.config import Config
from prl.data.gym_rows import GymRows, make_task
from prl.errors import ConfigError, MissingExtraError
from prl.prompts import open_source
from prl.tokenizer import Tokenizer
from tests.tiny_tokenizers import save_tokenizer


def rows(task: str = "chain_sum", **options: Any) -> GymRows:
    """Ten problems of a task."""
    return GymRows(task, options, range(10), seed=3)


def test_a_problem_carries_its_whole_entry() -> None:
    """Question, answer and the task's entry, types included, the same at every reading."""
    table = rows(min_terms=2, max_terms=2)
    fields = table[4]
    assert table[4] == fields == rows(min_terms=2, max_terms=2)[4]
    entry = ast.literal_eval(fields["reasoning_gym"]["entry"])
    assert fields["prompt"] == entry["question"]
    assert fields["answer"] == entry["answer"]
    assert isinstance(entry["metadata"]["difficulty"]["num_terms"], tuple)
    assert make_task("chain_sum", {}, seed=0, size=1).score_answer(fields["answer"], entry) == 1.0
    assert table.where(4) == "reasoning-gym chain_sum problem 4"


def test_a_task_without_a_single_answer_has_none() -> None:
    """Its verifier knows; no answer is made up."""
    assert "answer" not in rows("rush_hour")[0]


def test_unknown_names_and_values_are_one_line() -> None:
    """The nearest task, the nearest parameter, and what the task says against a value."""
    with pytest.raises(
        ConfigError, match=r"data.task = 'chain_sums' is no task of reasoning-gym .did you mean 'chain_sum'"
    ):
        rows("chain_sums")
    with pytest.raises(ConfigError, match=r"data.task = 'composite' is no task"):
        rows("composite")
    with pytest.raises(ConfigError, match=r"data.options.max_term is no parameter .*did you mean 'max_terms'"):
        rows(max_term=3)
    with pytest.raises(ConfigError, match=r"data.options of reasoning-gym's 'chain_sum': \S"):
        rows(min_terms=9, max_terms=3)


def test_a_task_whose_entries_cannot_be_kept_is_refused() -> None:
    """A resumed run could not judge it: said before anything starts."""
    with pytest.raises(ConfigError, match=r"data.task = 'knights_knaves': an entry .* cannot be written down"):
        rows("knights_knaves")[0]


def test_a_task_that_runs_answers_as_python_is_refused() -> None:
    """A model's text is never evaluated outside the sandbox."""
    with pytest.raises(
        ConfigError, match=r"data.task = 'spiral_matrix': reasoning-gym judges it by running the answer"
    ):
        rows("spiral_matrix")


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """``pip install 'prl-train[data]'``."""
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(MissingExtraError, match=r"prl-train\[data\]"):
        rows()


def test_training_never_asks_what_is_held_out(tmp_path: Path) -> None:
    """Sums of two digits repeat soon: a training problem that is a held-out one is passed over and counted."""
    tokenizer = Tokenizer.load(save_tokenizer(tmp_path))
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    data = {"source": "reasoning_gym", "task": "chain_sum", "options": options, "num_prompts": 60}
    tree = {"model": "none", "data": data, "eval": {"num_samples": 20}, "engine": {"max_model_len": 500}}
    source = open_source(msgspec.convert(tree, Config), tokenizer, ["reasoning_gym"])
    held_out = {prompt.text for prompt in source.held_out(20)}
    prompts = [source.next()]
    while prompts[-1].id < 55:
        prompts.append(source.next())
    assert not held_out & {prompt.text for prompt in prompts}
    passed = source.passed_over()
    assert passed
    assert {reason for _, reason in passed} == {"held_out"}
    assert sorted([number for number, _ in passed] + [prompt.id for prompt in prompts]) == list(
        range(prompts[-1].id + 1)
    )
    assert source.statistics().filtered["held_out"] >= 1
