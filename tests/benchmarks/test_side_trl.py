"""TRL is given what prl is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prl.config import Config
from prl.models import resolve_model
from prl.prompts import open_source
from prl.rewards.scorer import Scorer
from prl.settings import load_config
from prl.tokenizer import Tokenizer
from prl.types import Prompt

pytestmark = pytest.mark.filterwarnings("ignore")

MATH = Path(__file__).parents[2] / "configs/math.toml"


def prompts_of(config: Config, num_prompts: int) -> list[Prompt]:
    """The first prompts that prl admits."""
    source = open_source(config, Tokenizer.load(resolve_model(config.model)), ["answer"])
    return [source.next() for _ in range(num_prompts)]


def test_the_rows_are_the_prompts_in_order_of_admission() -> None:
    """TRL's tokenizer reads the rows as the ids that prl's engines see."""
    from side_trl import rows_of
    from transformers import AutoTokenizer

    config = load_config(MATH)
    prompts = prompts_of(config, 8)
    rows = rows_of(prompts)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(config.model))
    assert rows["prompt_id"] == [prompt.id for prompt in prompts]
    assert tokenizer(text=rows["prompt"])["input_ids"] == [prompt.token_ids for prompt in prompts]


def test_the_rewards_are_prls_times_the_leave_one_out_factor() -> None:
    """Each completion is judged against its own prompt, and the mean is kept without the factor."""
    from side_trl import Rewards

    config = load_config(MATH)
    first, second = prompts_of(config, 2)
    answers = [f"\\boxed{{{prompt.fields['answer']}}}" for prompt in (first, second)]
    given: dict[str, Any] = {"completion_ids": [[1], [1], [1]], "prompt_id": [first.id, second.id, first.id]}
    with Rewards(Scorer(config.rewards), [first, second], 4 / 3) as rewards:
        assert rewards(prompts=[], completions=[answers[0], "\\boxed{-1}", answers[0]], **given) == [4 / 3, 0.0, 4 / 3]
    assert rewards.means == [pytest.approx(2 / 3)]


def test_a_step_of_trl_has_the_sequences_of_a_step_of_prl(tmp_path: Path) -> None:
    """However many processes and micro-batches, 16 prompts of 16 completions are one optimiser step."""
    from side_trl import settings_of

    made = settings_of(load_config(MATH), tmp_path, num_processes=1, microbatch=32, generation="generate")
    assert made.per_device_train_batch_size * made.gradient_accumulation_steps == 256
    assert made.generation_batch_size == 256
    assert made.num_generations == 16
