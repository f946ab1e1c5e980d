"""Templates that rewrite what was said are found before the run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from prl.environments.history import rewritten_history
from prl.models import BUILTIN_MODELS
from prl.tokenizer import Tokenizer
from tests.tiny_tokenizers import save_tokenizer

HEAD = "{% for m in messages %}{{ m.role }}:"
TAIL = "<|end|>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
KEEPS = HEAD + "{{ m.content }}" + TAIL
FORGETS_THINKING = HEAD + "{{ m.content.split('</think>')[-1].strip() }}" + TAIL
UPPER = HEAD + "{% if m.role == 'assistant' %}[{{ m.content }}]{% else %}{{ m.content }}{% endif %}" + TAIL


@pytest.mark.parametrize(
    ("template", "said"),
    [(KEEPS, None), (None, None), (FORGETS_THINKING, "leaves the thinking out"), (UPPER, "rewrites earlier turns")],
)
def test_a_probe_conversation_tells(tmp_path: Path, template: str | None, said: str | None) -> None:
    """Field notes C: a template that strips thinking, or writes an answer in another way, is said; others are not."""
    found = rewritten_history(Tokenizer.load(save_tokenizer(tmp_path, template=template)))
    assert (found is None) == (said is None)
    assert said is None or (found is not None and said in found)


def test_the_built_in_model_keeps_its_history() -> None:
    """Its episodes are one sample each."""
    assert rewritten_history(Tokenizer.load(str(BUILTIN_MODELS["tiny-math"]))) is None
