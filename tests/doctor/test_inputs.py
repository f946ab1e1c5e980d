"""What prompts, names and files say without an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prl.doctor.evidence import Sampled
from prl.doctor.inputs import groups_of, is_retokenised, prompt_facts, sampling_defaults, stop_facts
from prl.tokenizer import Tokenizer
from prl.types import Prompt
from tests.doctor.scripted import EOS, MERGED, UNMERGED, FakeTokenizer
from tests.tiny_tokenizers import BOS_ID, BOS_TEMPLATE, EOS_ID, PLAIN_TEMPLATE, save_tokenizer

QWEN = [
    "model.embed_tokens.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.self_attn.q_norm.weight",
    "model.layers.0.mlp.up_proj.weight",
    "model.norm.weight",
]


def prompt_of(tokenizer: Tokenizer, content: str) -> Prompt:
    """As a prompt source renders it."""
    messages = [{"role": "user", "content": content}]
    text = tokenizer.render_text(messages)
    return Prompt(id=0, token_ids=tokenizer.encode_rendered(text), text=text, messages=messages, fields={})


def test_tensors_are_grouped_by_what_they_are_part_of() -> None:
    """A norm inside attention is a norm; an embedding that is also the head is called so."""
    assert groups_of(QWEN) == {
        "embedding (tied to the output head)": QWEN[:1],
        "norms": [QWEN[1], QWEN[3], QWEN[5]],
        "attention": [QWEN[2]],
        "MLP": [QWEN[4]],
    }
    assert groups_of([QWEN[0], "lm_head.weight", "score.bias"]) == {
        "embedding": QWEN[:1],
        "output head": ["lm_head.weight"],
        "other tensors": ["score.bias"],
    }


@pytest.mark.parametrize(("template", "leading"), [(PLAIN_TEMPLATE, 0), (BOS_TEMPLATE, 1)])
def test_bos_tokens_are_counted_where_they_stand(tmp_path: Path, template: str, leading: int) -> None:
    """Those that a template has are its own; one in a row's text is one too many."""
    tokenizer = Tokenizer.load(save_tokenizer(tmp_path, template=template, adds_bos=True))
    facts = prompt_facts(tokenizer, [prompt_of(tokenizer, "1"), prompt_of(tokenizer, "a<s>b")], 2)
    assert (facts.num_leading_bos, facts.num_inner_bos) == (leading, 1)
    assert (facts.bos_token_id, facts.starts_plain_text, facts.num_too_long) == (BOS_ID, True, 2)
    assert prompt_facts(tokenizer, [prompt_of(tokenizer, "1")], 0).num_inner_bos == 0


def test_history_is_kept_or_rewritten(tmp_path: Path) -> None:
    """A template that takes the thinking out of an earlier answer does not continue the conversation."""
    keeps = "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}[{% endif %}"
    strips = keeps.replace("m.content", "m.content.split('</think>')[-1]")
    for template, kept in ((keeps, True), (strips, False)):
        tokenizer = Tokenizer.load(save_tokenizer(tmp_path, template=template))
        assert prompt_facts(tokenizer, [], 0).keeps_history is kept


def test_text_and_back_is_measured_without_the_stop_token() -> None:
    """Two tokens that read as a third come back as it; the end is no text and is left out."""
    tokenizer: Any = FakeTokenizer()
    for ids, changed in ((UNMERGED, True), ([MERGED], False), ([MERGED, EOS], False)):
        sampled = Sampled(prompt_ids=[5], token_ids=list(ids), logprobs=[-1.0] * len(ids), stopped=ids[-1] == EOS)
        assert is_retokenised(tokenizer, sampled) is changed


def test_ends_are_counted(tmp_path: Path) -> None:
    """How many completions stopped, and at what."""
    tokenizer = Tokenizer.load(save_tokenizer(tmp_path, generation_eos=7))
    ends = [Sampled(prompt_ids=[5], token_ids=[4], logprobs=[-1.0], stopped=stopped) for stopped in (True, False, True)]
    facts = stop_facts(tokenizer, ends)
    assert (facts.num_stopped, facts.num_sampled, facts.stop_token_ids, facts.eos_token_id) == (2, 3, [EOS_ID, 7], 1)
    assert not facts.pad_is_eos


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, {}),
        ({"eos_token_id": 2}, {}),
        ({"top_p": 1.0, "temperature": 1.0, "top_k": 0, "repetition_penalty": 1.0}, {}),
        ({"eos_token_id": 2, "top_p": 0.8, "top_k": 20}, {"top_p": 0.8, "top_k": 20}),
    ],
)
def test_sampling_defaults_are_those_that_change_something(
    tmp_path: Path, config: dict[str, float] | None, expected: dict[str, float]
) -> None:
    """A generation config without any, or with neutral ones, changes nothing."""
    if config is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert sampling_defaults(str(tmp_path)) == expected
